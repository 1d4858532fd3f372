"""``modeld inspect``: show the content of an artifact, an ONNX model or a log.

Example::

    modeld inspect driving.pkl
    modeld inspect vision.onnx --json
    modeld inspect vision.onnx --nodes --bind batch=2
    modeld inspect --schedule vision.onnx
    modeld inspect --schedule driving.pkl --entry run --viz out.html
    modeld inspect --schedule driving.pkl --viz out.html --times profile.json
    modeld inspect driving.pkl --adreno --json
    modeld inspect out.rlog.zst --dump --service modelV2 --field position.x --field action
    modeld inspect out.rlog.zst --dump --service carState --from 10 --to 20 --output car.csv
    modeld inspect --schema ~/openpilot

--schema compares our tables of the bus with a checkout of openpilot or sunnypilot, without
executing its code. It lists new services, changed rates, new fields and enumerants, and
incompatible fields. Exit code 1 if there are any. Names that only our tables have, or that differ,
are listed too.

--adreno compiles each kernel of an artifact with Mesa's compiler for Adreno and shows instructions,
registers, waves, spills and issue slots; `make adreno-tools` fetches it (docs/adreno.md).

The kind of file is detected from its first bytes, never from its name.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from runtime.texts import count_text
from tools.adreno.toolchain import GPUS
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.model_options import add_bind, parse_bindings
from tools.lib.named_file import kind_of
from tools.lib.options import MOST_S, above, real
from tools.lib.terminal import Section, format_table, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from scheduler.debug.viz import PageTable
    from tools.adreno.cost import EntryCost


class Describer(Protocol):
    """A module that describes one kind of file."""

    def describe(self, path: Path, **options: Any) -> tuple[dict[str, Any], list[Section]]:
        """Return the description as plain data for JSON, and as tables to print."""


FORMATS = ("jsonl", "csv", "npz")
# Options of --dump, by the name of their attribute.
DUMP_OPTIONS = {
    "service": "service",
    "field": "field",
    "from_s": "from",
    "to_s": "to",
    "format": "format",
    "output": "output",
    "data": "data",
}

# Kind of file -> the module whose `describe` reads it; imported only when such a file is given.
DESCRIBERS = {
    "artifact": "tools.describe.artifact",
    "onnx": "tools.describe.model",
    "log": "tools.describe.log",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("file", type=Path, nargs="?", help="artifact, ONNX model or event log")
    parser.add_argument(
        "--schema",
        type=Path,
        metavar="DIR",
        help="instead of a file: compare the bus tables of a checkout with ours",
    )
    parser.add_argument(
        "--nodes",
        action="store_true",
        help="every node of an ONNX model, with its output, work, inputs and attributes, and every "
        "initializer",
    )
    add_bind(parser)
    parser.add_argument(
        "--schedule",
        action="store_true",
        help="show the kernel table of an artifact or an ONNX model",
    )
    parser.add_argument(
        "--adreno",
        type=int,
        nargs="?",
        const=GPUS[0],
        choices=GPUS,
        metavar="GPU",
        help="cost of an artifact's kernels on this Adreno, from Mesa's compiler "
        f"({', '.join(map(str, GPUS))})",
    )
    parser.add_argument(
        "--entry",
        help="with --schedule, --adreno: which entry's table (default: the first one's)",
    )
    parser.add_argument(
        "--viz",
        type=Path,
        metavar="OUT.html",
        help="with --schedule: also write a page with passes, kernel graph and memory",
    )
    parser.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="with --viz: show the times in this output of `bench --profile --json`",
    )
    _add_dump_arguments(parser)


def _add_dump_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "messages of a log",
        "Every message has its service, logMonoTime (ns), valid and, if it has one, frameId. "
        "Numbers that are not finite are null in JSON, nan and inf elsewhere; enumerants are text.",
    )
    group.add_argument(
        "--dump", action="store_true", help="print the messages, one line of JSON for each"
    )
    group.add_argument(
        "--service",
        action="append",
        default=[],
        metavar="NAME",
        help="only messages of this service; may be repeated (all)",
    )
    group.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="PATH",
        help="only this field and its members, such as position.x, laneLines[1].y, action; "
        "may be repeated (all)",
    )
    group.add_argument(
        "--from",
        dest="from_s",
        type=real("--from", 0, MOST_S),
        metavar="S",
        help="start time in seconds of the drive; its first event after initData is at 0",
    )
    group.add_argument(
        "--to", dest="to_s", type=above("--to", 0, MOST_S), metavar="S", help="end time"
    )
    group.add_argument(
        "--format",
        choices=FORMATS,
        help="jsonl, csv (lists take a column for each element) or npz (an array for each field; "
        "needs --output) (by the ending of --output, else jsonl)",
    )
    group.add_argument("--output", type=Path, metavar="FILE", help="write to a file")
    group.add_argument(
        "--data",
        choices=("length", "base64"),
        help="how to print byte fields (length)",
    )


def run(args: argparse.Namespace) -> int:
    """Describe the file, or compare a checkout; return 1 if the checkout has differences, else 0.

    Raises:
        FileKindError: the file cannot be read or is of no supported kind.
        UsageError: an option does not apply to this kind of file.
    """
    if args.schema is not None:
        return _compare_schema(args)
    if args.file is None:
        raise UsageError("expected a file or --schema DIR, found neither")
    kind = kind_of(args.file)
    if args.dump:
        return _dump(args, kind)
    _check_options(args, kind)
    bind = parse_bindings(args.bind)
    if args.schedule:
        if args.nodes:
            raise UsageError("--nodes lists the model's own nodes; leave out --schedule")
        return _schedule(args, kind)
    if args.adreno is not None:
        return _adreno(args, kind)
    for option in ("entry", "viz", "times"):
        if getattr(args, option) is not None:
            raise UsageError(f"--{option} needs --schedule")
    describer = cast("Describer", importlib.import_module(DESCRIBERS[kind]))
    # Only the describer of ONNX models accepts these options.
    more = {"bind": bind, "nodes": args.nodes} if kind == "onnx" else {}
    facts, sections = describer.describe(args.file, **more)
    if args.json:
        print_json({"kind": kind, "file": args.file.name, **facts})
        return 0
    print(f"{args.file.name}: {kind}, {args.file.stat().st_size} bytes")
    _print_sections(sections)
    return 0


def _check_options(args: argparse.Namespace, kind: str) -> None:
    for name, option in DUMP_OPTIONS.items():
        if getattr(args, name) not in (None, []):
            raise UsageError(f"--{option} needs --dump")
    for option in ("bind", "nodes"):
        if getattr(args, option) and kind != "onnx":
            raise UsageError(f"--{option} needs an ONNX model, found a file of kind {kind}")


def _compare_schema(args: argparse.Namespace) -> int:
    # Imported here: models are described without loading the bus schema.
    from tools.describe.stack import describe

    for option in (
        "file",
        "dump",
        "bind",
        "nodes",
        "schedule",
        "adreno",
        "entry",
        "viz",
        "times",
        *DUMP_OPTIONS,
    ):
        if getattr(args, option) not in (None, False, []):
            name = "FILE" if option == "file" else f"--{DUMP_OPTIONS.get(option, option)}"
            raise UsageError(f"{name}: expected without --schema, found both; leave one out")
    facts, sections = describe(args.schema)
    if args.json:
        print_json({"kind": "schema", "checkout": str(args.schema), **facts})
    else:
        _print_sections(sections)
    return 1 if facts["differences"] else 0


def _dump(args: argparse.Namespace, kind: str) -> int:
    # Imported here: models are described without loading the bus schema.
    from tools.describe.log import Request, dump

    if kind != "log":
        raise UsageError(f"--dump needs an event log, found a file of kind {kind}")
    for name in ("bind", "nodes", "schedule", "entry", "viz", "times"):
        if getattr(args, name):
            raise UsageError(f"--{name} is not for logs; leave out --dump")
    if None not in (args.from_s, args.to_s) and args.from_s >= args.to_s:
        raise UsageError(
            f"--to: expected more than the {args.from_s:g} s of --from, found {args.to_s:g}"
        )
    ending = args.output.suffix.lstrip(".") if args.output else ""
    tally = dump(
        Request(
            path=args.file,
            services=tuple(args.service),
            fields=tuple(args.field),
            from_s=args.from_s,
            to_s=args.to_s,
            data_as=args.data or "length",
        ),
        args.output,
        args.format or (ending if ending in FORMATS else "jsonl"),
    )
    if args.json:
        output = str(args.output) if args.output else None
        print_json({"messages": tally.rows, "damaged": tally.damaged, "output": output})
    elif args.output and not args.quiet:
        print(f"{args.output}: {count_text(tally.rows, 'message')}")
    return 0


def _schedule(args: argparse.Namespace, kind: str) -> int:
    # Imported here: logs are described without loading the compiler or the runtime.
    from tools.describe.schedule import describe, load

    if args.times is not None and args.viz is None:
        raise UsageError("--times needs --viz, whose page shows them")
    scheduled = load(args.file, kind, parse_bindings(args.bind))
    times = {}
    if args.times is not None:
        from tools.describe.schedule import load_times

        times = load_times(args.times, scheduled.manifest)
    facts, sections = describe(scheduled, args.entry)
    tables: dict[str, PageTable] = {}
    if args.adreno is not None:
        from tools.adreno.cost import page_table, plain
        from tools.adreno.cost import sections as adreno_sections

        cost = _adreno_cost(args, kind, scheduled.manifest)
        facts["adreno"] = plain(cost)
        sections += adreno_sections(cost)
        tables[cost.entry] = page_table(cost)
    if args.viz is not None:
        from scheduler.debug.viz import write_page

        write_page(args.viz, scheduled.manifest, scheduled.plans, tables, times)
    if args.json:
        print_json({"kind": kind, "file": args.file.name, **facts})
        return 0
    print(f"{args.file.name}: {kind}, {args.file.stat().st_size} bytes")
    _print_sections(sections)
    return 0


def _adreno(args: argparse.Namespace, kind: str) -> int:
    # Imported here: only --adreno needs these modules.
    from runtime.format.artifact import read_artifact
    from tools.adreno.cost import lines, plain, sections

    if args.viz is not None:
        raise UsageError("--viz needs --schedule; with both, the page has what --adreno finds")
    cost = _adreno_cost(args, kind, read_artifact(args.file).manifest.raw)
    if args.json:
        print_json({"kind": kind, "file": args.file.name, "adreno": plain(cost)})
        return 1 if cost.failures else 0
    _print_sections(sections(cost))
    print("\n".join(["", *lines(cost)]))
    return 1 if cost.failures else 0


def _adreno_cost(args: argparse.Namespace, kind: str, manifest: Mapping[str, Any]) -> EntryCost:
    from tools.adreno.cost import cost_of
    from tools.adreno.toolchain import find_toolchain
    from tools.lib.terminal import counted

    if kind != "artifact":
        raise UsageError(
            f"--adreno {args.file}: expected an artifact, found a file of kind {kind}; compile it "
            "with --target adreno"
        )
    return cost_of(manifest, args.entry, find_toolchain(), args.adreno, counted)


def _print_sections(sections: list[Section]) -> None:
    for section in sections:
        print(f"\n{printable(section.title)}")
        rows = [
            [printable(cell) if isinstance(cell, str) else cell for cell in row]
            for row in section.rows
        ]
        print(format_table(section.header, rows))
