"""``modeld make-model``: write the seeded example ONNX models.

Their weights are random, so their outputs are meaningless; they are for tests and benchmarks. Equal
seeds give equal bytes. --interface writes small models of another revision of openpilot's models.

Example::

    modeld make-model models --seed 0
    modeld make-model models --benchmarks
    modeld make-model --list-interfaces
    modeld make-model models/old --interface split-2025
    modeld compile models/vision.onnx models/policy.onnx -o driving.pkl
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.texts import flops_text
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import seed

if TYPE_CHECKING:
    import argparse

    from tools.example_models import ExampleModel

# Listed here so that --help and usage errors do not import onnx, which is slow. A test compares the
# names with example_models.BUILDERS.
MODELS = ("vision", "policy")
BENCHMARKS = (
    "vision_large",
    "resnet18",
    "efficientnet_b2_elu",
    "mobilenetv3_large",
    "unet",
    "fastvit",
    "mobilevit",
    "swin",
    "vit",
    "convnext",
    "espnet",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        nargs="?",
        help="output directory; created if missing",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--model",
        choices=(*MODELS, *BENCHMARKS, "all"),
        default="all",
        metavar="NAME",
        help=f"one of {', '.join((*MODELS, *BENCHMARKS))} (default: {' and '.join(MODELS)})",
    )
    which.add_argument(
        "--benchmarks",
        action="store_true",
        help=f"also the {len(BENCHMARKS)} networks of the benchmarks",
    )
    # Not in the group, because its usage line would be too long.
    parser.add_argument(
        "--interface",
        metavar="NAME",
        help="write small models of a revision instead: <role>.onnx each, or dmonitoring.onnx",
    )
    parser.add_argument(
        "--list-interfaces", action="store_true", help="list the revisions and write nothing"
    )
    parser.add_argument(
        "--seed", type=seed(), default=0, help="seed of the weights; equal seeds give equal bytes"
    )


def run(args: argparse.Namespace) -> int:
    """Write the models, list the written files and return exit code 0.

    Raises:
        UsageError: the interface is unknown, options conflict, or the directory is missing or not
            writable.
    """
    if args.list_interfaces:
        return _list_interfaces(args.json)
    if args.directory is None:
        raise UsageError("DIR: missing; name the directory that the files go to")
    # onnx is in the compile extra and slow to import, so `--help` does not import it.
    from tools.example_models import write_interface, write_models

    if args.interface is not None and (args.benchmarks or args.model != "all"):
        raise UsageError("--interface: expected neither --model nor --benchmarks with it")
    if args.interface is not None:
        written = write_interface(args.directory, args.interface, args.seed)
    else:
        names: tuple[str, ...] = MODELS if args.model == "all" else (args.model,)
        if args.benchmarks:
            names = (*MODELS, *BENCHMARKS)
        written = write_models(args.directory, names, args.seed)
    rows = [_row(path, model) for path, model in written]
    if args.json:
        print_json({"seed": args.seed, "models": rows})
        return 0
    for row in rows:
        print(
            f"{row['file']}  {row['bytes'] / 1e6:.1f} MB  "
            f"{row['parameters'] / 1e6:.2f} M parameters  {flops_text(1e9 * row['gflop'])}"
        )
    return 0


def _list_interfaces(as_json: bool) -> int:
    from scheduler.driving.revisions import load_monitoring, load_revisions

    rows = [
        (r.name, r.since, f"{r.title} ({', '.join(model.role for model in r.models)})")
        for r in load_revisions().values()
    ]
    rows += [(r.name, r.since, r.title) for r in load_monitoring().values()]
    if as_json:
        print_json({"interfaces": [name for name, _, _ in rows]})
        return 0
    width = max(len(name) for name, _, _ in rows)
    for name, since, title in rows:
        print(f"{name:{width}}  {since:10}  {title}")
    return 0


def _row(path: Path, model: ExampleModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "file": str(path),
        "bytes": len(model.data),
        "parameters": model.parameters,
        "gflop": model.flops / 1e9,
    }
