"""Our kernels and tinygrad's beside each other, both compiled by Mesa for an Adreno 630.

Each model is compiled by `modeld compile --plain --target freedreno` and by tinygrad with what
openpilot sets, in float32 and in halves. The code of each kernel comes from the same compiler,
Mesa's ir3, and is read and counted by the same rules (`tools/adreno`). Nothing is run: a floor is
the issue slots of all work-items over what the GPU issues in a second, not a time.
Exit code 1 means that a model of ours could not be compiled, never that we are behind.

Example:
  make bench-adreno
  .venv/bin/python -m benchmarks.adreno_peers build/bench-models/vision.onnx --precisions fp16
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.adreno_launches import GPU, Launch, Totals, totals
from runtime.format.artifact import read_artifact
from runtime.own_process import own_command
from tools.adreno.build import Failure, build, kernel_sources
from tools.adreno.statistics import read_code
from tools.adreno.toolchain import MESA, Toolchain, find_toolchain

RESULTS: Final = Path(__file__).parent / "results"
CHECKOUT: Final = Path(__file__).parent.parent
# What openpilot sets for the device, and what compiling without one needs: no copy is real, and a
# kernel that comes from a cache or another process has no code that could be read.
OPENPILOT: Final = {
    "DEV": "NULL:IR3:a630,IMAGE_PITCH_ALIGNMENT=64",
    "IMAGE": "1",
    "NOLOCALS": "1",
    "OPENPILOT_HACKS": "1",
    "JIT_BATCH_SIZE": "0",
}
WITHOUT_DEVICE: Final = {"NULL_ALLOW_COPYOUT": "1", "PARALLEL": "0", "CCACHE": "0"}
TARGET: Final = "freedreno"  # whose compiler it is
PRECISIONS: Final = {"fp32": "0", "fp16": "1"}
# Columns of the table of kernels; slots are those of one work-item.
SLOTS: Final = ("mac", "texture", "load", "conversion", "integer", "move", "wait")
KERNEL_COLUMNS: Final = (
    *("floor_ms", "launches", "work_items", "slots", *SLOTS),
    *("registers", "waves", "instructions", "kernel", "node"),
)


class PeerFailedError(Exception):
    """A model was not compiled; holds the last line of what was said."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model in one precision.

    Attributes:
        model: file.
        precision: key of `PRECISIONS`.
        ours, theirs: launches of a frame; empty if there are none.
        problem: why one of them has none.
    """

    model: Path
    precision: str
    ours: tuple[Launch, ...] = ()
    theirs: tuple[Launch, ...] = ()
    problem: str = ""

    @property
    def title(self) -> str:
        """What the row is of."""
        return f"`{self.model.parent.name}/{self.model.stem}` {self.precision}"


def our_launches(model: Path, precision: str, toolchain: Toolchain) -> tuple[Launch, ...]:
    """Return what we would launch for a frame.

    Raises:
        PeerFailedError: the model is not compiled.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as folder:
        path = Path(folder, "model.pkl")
        options = ("--plain", "--target", TARGET, "--precision", precision, "--no-binary", "-q")
        _run(own_command("tools.cli", "compile", str(model), "-o", str(path), *options), {})
        manifest = read_artifact(path).manifest
    sources = kernel_sources(manifest.raw)
    built = build(toolchain, sources.values(), GPU.number, lambda *_: None)
    found = []
    for index in manifest.entries[0].launches:
        kernel = manifest.kernels[index]
        code = built[sources[kernel.name]]
        if isinstance(code, Failure):
            raise PeerFailedError(f"{code.name}: {code.problem}")
        x, y, z = (n // m for n, m in zip(kernel.global_size, kernel.local_size, strict=True))
        found.append(Launch(kernel.name, code, (x, y, z), kernel.local_size, kernel.origin))
    return tuple(found)


def their_launches(model: Path, precision: str, kept: Path) -> tuple[Launch, ...]:
    """Return what tinygrad would launch for a frame; what it compiled once is kept in `kept`.

    Raises:
        PeerFailedError: it does not compile the model.
    """
    variables = {**OPENPILOT, **WITHOUT_DEVICE, "FLOAT16": PRECISIONS[precision]}
    parts = (model.read_bytes(), repr(sorted(variables.items())).encode())
    digest = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    path = kept / f"tinygrad-{model.stem}-{digest}.json"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".part")
        _run([sys.executable, "-m", "benchmarks.tinygrad_ir3", str(model), str(made)], variables)
        made.replace(path)
    found = json.loads(path.read_text(encoding="utf-8"))
    return tuple(_their_launch(launch, found["codes"]) for launch in found["launches"])


def _their_launch(launch: Mapping[str, Any], codes: Sequence[str]) -> Launch:
    """Return one launch; its group's size is a constant that the driver writes."""
    size = ", ".join(hex(n) for n in launch["group"])
    lines = [f"@const(c2.x)\t{size}", *codes[launch["code"]].splitlines()]
    code = read_code(launch["name"], lines)
    return Launch(launch["name"], code, tuple(launch["groups"]), tuple(launch["group"]))


def _run(command: Sequence[str], variables: Mapping[str, str]) -> None:
    done = subprocess.run(  # noqa: S603 - modules of ours
        command,
        env={**os.environ, **variables},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        # What is said of objects that end with the process comes after the cause.
        said = done.stderr.partition("Exception ignored in:")[0].strip().splitlines()
        raise PeerFailedError((said or ["no message"])[-1][:200])


def compare(model: Path, precision: str, toolchain: Toolchain, kept: Path) -> Row:
    """Return a row; where tinygrad fails it has ours alone.

    Raises:
        PeerFailedError: ours is not compiled.
    """
    ours = our_launches(model, precision, toolchain)
    try:
        return Row(model, precision, ours, their_launches(model, precision, kept))
    except PeerFailedError as error:
        return Row(model, precision, ours, problem=f"tinygrad does not compile it: {error}")


def _cell(ours: float, theirs: float | None, form: str) -> str:
    """Return ours beside theirs, in bold where we are behind."""
    mine = format(ours, form)
    if theirs is None:
        return f"{mine} / -"
    text = f"{mine} / {format(theirs, form)}"
    return f"**{text}**" if ours > theirs else text


def table(rows: Sequence[Row]) -> list[str]:
    """Return the comparison, ours / tinygrad's, as lines of Markdown."""
    titles = ["model", *(title for title, _ in Totals.COLUMNS.values())]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for row in rows:
        ours = totals(row.ours)
        theirs = totals(row.theirs) if row.theirs else None
        cells = [row.title]
        for name, (_, form) in Totals.COLUMNS.items():
            other = None if theirs is None else theirs.column(name)
            cells.append(_cell(ours.column(name), other, form))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {row.title}: {row.problem}" for row in rows if row.problem)]
    return lines


def kernel_table(rows: Sequence[Row]) -> str:
    """Return the kernels of all models and both sides as CSV, the largest floors first."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*("model", "precision", "side"), *KERNEL_COLUMNS])
    for row in rows:
        model = f"{row.model.parent.name}/{row.model.stem}"
        for side, launches in (("ours", row.ours), ("tinygrad", row.theirs)):
            writer.writerows((model, row.precision, side, *cells) for cells in _kernels(launches))
    return file.getvalue()


def _kernels(launches: Sequence[Launch]) -> Iterator[tuple[str, ...]]:
    """Yield the columns of each kernel; launches of one kernel and size are one row."""
    groups: dict[tuple[str, int], list[Launch]] = {}
    for launch in launches:
        groups.setdefault((launch.name, launch.items), []).append(launch)
    for same in sorted(groups.values(), key=lambda same: -len(same) * same[0].floor_ms):
        one = same[0]
        yield (
            f"{len(same) * one.floor_ms:.3f}",
            str(len(same)),
            str(one.items),
            f"{sum(one.slots.values()):.0f}",
            *(f"{one.slots[name]:.0f}" for name in SLOTS),
            str(one.registers),
            str(one.waves),
            str(one.code.instructions),
            one.name,
            one.origin[0] if one.origin else "",
        )


def report(rows: Sequence[Row], table_name: str) -> str:
    """Return the page; `table_name` is the file of `kernel_table` next to it."""
    lines = [
        f"# {datetime.now(UTC).date()}, kernels for an Adreno 630",
        "",
        "Written by `make bench-adreno`; [README.md](../README.md) explains the method. Nothing",
        "was run: an issue floor is a lower bound on a launch's time, not a time. Cells are ours /",
        f"tinygrad's, bold if we are behind. [{table_name}]({table_name}) lists the kernels.",
        "",
        f"- Ours: OpenCL C through rusticl of Mesa {MESA} of Debian",
        "- tinygrad 0.14.0: its own NIR through tinymesa 25.2.7.2, a newer Mesa; "
        + " ".join(f"`{name}={value}`" for name, value in OPENPILOT.items())
        + ", `FLOAT16=1` for fp16",
        "",
        *table(rows),
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, write page and CSV, print the table; 1 if a model of ours is not compiled."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+", help="ONNX files")
    parser.add_argument(
        "--precisions",
        nargs="+",
        choices=PRECISIONS,
        default=list(PRECISIONS),
        help="fp32, fp16 (both)",
    )
    parser.add_argument(
        "--kept", type=Path, default=Path("build/adreno-peers"), help="where tinygrad's code stays"
    )
    parser.add_argument("--output", type=Path, help="page to write (results/DATE-adreno-630.md)")
    args = parser.parse_args(arguments)
    toolchain, rows, failed = find_toolchain(), [], 0
    for model in args.models:
        for precision in args.precisions:
            try:
                rows.append(compare(model, precision, toolchain, args.kept.resolve()))
            except PeerFailedError as error:
                failed = 1
                print(f"{model}, {precision}: {error}", file=sys.stderr)
                continue
            print(table(rows[-1:])[-2 if not rows[-1].problem else -3], flush=True)
    path = args.output or RESULTS / f"{datetime.now(UTC).date()}-adreno-630.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    kernels = path.with_suffix(".csv")
    path.write_text(report(rows, kernels.name), encoding="utf-8")
    kernels.write_text(kernel_table(rows), encoding="utf-8")
    print(f"written: {path}, {kernels}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
