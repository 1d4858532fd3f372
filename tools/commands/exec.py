"""``modeld exec``: run an artifact or an ONNX model once, on arrays from a file or random ones.

Example::

    modeld exec policy.pkl --inputs in.npz --outputs out.npz
    modeld exec policy.pkl --random --seed 7
    modeld exec policy.onnx --random --dump /attn/Softmax --outputs out.npz

The input file holds one array per input, by name; ``modeld inspect`` shows names and shapes. An
ONNX model is first compiled for the device, into a directory that is deleted afterwards. --dump
adds the values of its nodes to the outputs. The model is then compiled with these values as
outputs, which splits kernels that otherwise compute several nodes, so the last bits may differ.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.files.user_file import whole_file
from tools.errors import UsageError
from tools.lib.given_data import write_npz
from tools.lib.json_output import print_json
from tools.lib.model_options import Changes, add_bind, add_constant, compiled_here, is_onnx
from tools.lib.options import seed
from tools.lib.terminal import format_table
from tools.timing.program_inputs import inputs_for

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from runtime.format.manifest import Manifest

MOST_NAMED = 6  # the maximum number of nodes of a kernel that a message lists


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("artifact", type=Path, metavar="FILE", help="artifact or ONNX model")
    parser.add_argument("--inputs", type=Path, metavar="NPZ", help="one array per input, by name")
    parser.add_argument("--random", action="store_true", help="random inputs, like bench")
    parser.add_argument("--seed", type=seed(), help="seed of the random inputs (0)")
    parser.add_argument("--outputs", type=Path, metavar="NPZ", help="output file (none)")
    parser.add_argument(
        "--dump",
        action="append",
        default=[],
        metavar="NODE",
        help="also the values of this node of an ONNX model; may be repeated",
    )
    add_bind(parser)
    add_constant(parser)
    parser.add_argument("--entry", help="entry point (the artifact's first)")
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")


def run(args: argparse.Namespace) -> int:
    """Run the model once, write the outputs, print a summary of them and return exit code 0.

    Raises:
        UsageError: options do not fit the file, the input file cannot be read, or the output file
            cannot be written.
        ModelError: the model cannot be compiled, or it lacks a node that --dump names.
        RuntimeFault: the artifact, the device or an input cannot be used.
    """
    from runtime import load_program

    if args.random == (args.inputs is not None):
        found = "both" if args.random else "neither"
        raise UsageError(f"expected --inputs NPZ or --random, found {found}; choose one")
    if args.seed is not None and not args.random:
        raise UsageError("--seed: expected with --random only, found --inputs")
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="modeld-exec-"))
        artifact = _artifact(args, Path(directory))
        program = stack.enter_context(load_program(artifact, args.device))
        specs = program.entry_inputs(args.entry)
        outputs = program.run(inputs_for(specs, args.inputs, args.seed or 0), args.entry)
        run_ms = program.stats.last_run_ms
    if args.outputs is not None:
        _write_arrays(args.outputs, outputs)
    rows = [_describe(name, array) for name, array in outputs.items()]
    if args.json:
        print_json({"run_ms": run_ms, "outputs": rows})
    else:
        header = ("output", "dtype", "shape", "min", "max", "not finite")
        print(format_table(header, [list(row.values()) for row in rows]))
    return 0


def _artifact(args: argparse.Namespace, directory: Path) -> Path:
    """Return the given artifact, or an artifact compiled from the given ONNX model."""
    path: Path = args.artifact
    if is_onnx(path):
        target = directory / f"{path.stem}.pkl"
        changes = Changes(args.bind, args.constant, args.dump)
        return compiled_here([path], target, args.device, changes)
    for option in ("bind", "constant"):
        if getattr(args, option):
            raise UsageError(f"--{option}: expected an ONNX model, found the artifact {path}")
    if args.dump:
        from runtime.format.artifact import read_artifact

        raise UsageError(_not_dumped(args, read_artifact(path).manifest))
    return path


def _not_dumped(args: argparse.Namespace, manifest: Manifest) -> str:
    """Return the error for --dump with an artifact: the node's kernel, and what to do instead."""
    name = args.dump[0]
    kernel = next((one for one in manifest.kernels if name in one.origin), None)
    if kernel is None:
        found = "no kernel that computes it"
    else:
        others = [node for node in kernel.origin if node != name]
        shown = ", ".join(others[:MOST_NAMED]) + (", ..." if len(others) > MOST_NAMED else "")
        found = f"it inside {kernel.name}" + (f", which also computes {shown}" if shown else "")
    return (
        f"--dump {name}: expected an ONNX model, found an artifact with {found}; give the model: "
        f"modeld exec MODEL.onnx --dump {name}"
    )


def _write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        with whole_file(path) as file:
            write_npz(file, arrays)
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror or error}") from error


def _describe(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "min": array.min().item() if array.size else None,
        "max": array.max().item() if array.size else None,
        # Number of NaN and infinite values. If there are any, --json prints min and max as null.
        "not_finite": int((~np.isfinite(array)).sum()),
    }
