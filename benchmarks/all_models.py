"""Every example model against every peer, written as a table to benchmarks/results/.

Each model is measured by ``modeld bench --against`` in a process of its own; benchmarks/README.md
says how, and what the figures mean. A model in fp16 takes turns with the one in float32, too. The
last row is the whole driving program (two camera frames to outputs) against the peers' vision and
policy alone. Geometric means over the others say in two figures how we stand.

Example:
  .venv/bin/python -m benchmarks.all_models build/bench-models --peers onnxruntime,openvino
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean
from typing import Any, Final

from benchmarks.narrow_models import EIGHT_BITS, HALVES
from runtime import choose_device
from runtime.own_process import own_command
from runtime.texts import count_text, short_origin
from scheduler.flags import Flags
from tools.timing.peers import installed

# What is measured, in order, by class of values: keys of example_models.BUILDERS, without suffix.
CLASSES: Final = {
    "float32": (
        "",
        (
            *("vision", "vision_large", "policy", "resnet18", "efficientnet_b2_elu"),
            *("mobilenetv3_large", "unet", "fastvit", "mobilevit", "swin", "vit", "convnext"),
            "espnet",
        ),
    ),
    "halves": ("_half", HALVES),
    "eight bits": ("_int8", EIGHT_BITS),
}
DRIVING = ("vision", "policy")
RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 600
# Rounds whose ratios differ by more than this were disturbed by something else.
NOISY = 1.5
# tinygrad takes minutes to compile a model; it is compared where it is asked for.
USUAL_PEERS = ("onnxruntime", "openvino")


class BrokenError(Exception):
    """A command of ours failed."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came out for one model: the object of ``--json``, or why there is none.

    Attributes:
        title: of the row.
        result: the object, if there is one.
        problem: why there is none.
        kind: key of ``CLASSES``; of the driving program, which does more than its peers, empty.
    """

    title: str
    result: dict[str, Any] | None
    problem: str = ""
    kind: str = ""

    @property
    def of_float32(self) -> float | None:
        """The time of a model in fp16 over that of the same one in float32, both ours."""
        peers = self.result["peers"] if self.result else {}
        return next((p["ratio"] for name, p in peers.items() if name.startswith("file:")), None)


def modeld(*arguments: str) -> dict[str, Any]:
    """Run one ``modeld`` command with ``--json`` in a fresh process; return its object.

    Raises:
        BrokenError: it failed; holds its last line.
    """
    command = own_command("tools.cli", *arguments, "--json")
    try:
        # Our own module on paths of the caller; nothing goes through a shell.
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise BrokenError(f"no result within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise BrokenError((done.stderr.strip().splitlines() or ["no message"])[-1])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare_all(directory: Path, peers: str, blocks: int, threads: int) -> list[Row]:
    """Measure each model that is in `directory`, and the driving program."""
    jobs = [
        (f"{name}{suffix}", [f"{name}{suffix}"], kind, name)
        for kind, (suffix, names) in CLASSES.items()
        for name in names
    ]
    jobs.append(("driving program", list(DRIVING), "", ""))
    options = ["--blocks", str(blocks), "--threads", str(threads)]
    rows = []
    for number, (title, names, kind, whole) in enumerate(jobs):
        files = [directory / f"{name}.onnx" for name in names]
        against = f"{peers},file:{directory / whole}.onnx" if kind == "halves" else peers
        if missing := [path.name for path in files if not path.exists()]:
            rows.append(Row(title, None, f"{', '.join(missing)} is not there", kind))
        else:
            try:
                found = modeld("bench", "--against", against, *map(str, files), *options)
                rows.append(Row(title, found, kind=kind))
            except BrokenError as error:
                rows.append(Row(title, None, str(error), kind))
        print(f"{number + 1}/{len(jobs)} {_progress(rows[-1])}", flush=True)
    return rows


def roofline(model: Path, iterations: int) -> dict[str, Any]:
    """Return ceilings and kernels of one model.

    Raises:
        BrokenError: it does not compile or run.
    """
    return modeld("bench", str(model), "--roofline", "--iters", str(iterations))


def table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Return the comparison as lines of Markdown."""
    header = ["model", "launches", "ours ms", "ours / fastest", "fp16 / float32"]
    for peer in peers:
        header += [f"{peer} ms", f"ours / {peer}", "max rel err"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        if row.result is None:
            continue
        cells = [row.title, str(row.result["launches"]), f"{row.result['ours_ms']:.2f}"]
        cells.append(f"**{row.result['ratio']:.2f}**")
        cells.append("-" if row.of_float32 is None else f"{row.of_float32:.2f}")
        for peer in peers:
            cells += _cells(row.result["peers"][peer])
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        *(f"- **{row.title}** has no figures: {row.problem}" for row in rows if row.problem),
    ]
    return lines


def means(rows: Sequence[Row]) -> list[str]:
    """Return geometric means of the ratios against the fastest peer, as lines of Markdown."""
    lines = [
        "| values | models | ours / fastest, geometric mean | noisy ones |",
        "|---|---|---|---|",
    ]
    for kind in (*CLASSES, "all"):
        chosen = [row for row in rows if row.kind and kind in (row.kind, "all")]
        found = [row.result for row in chosen if row.result is not None]
        if found:
            mean = geometric_mean(result["ratio"] for result in found)
            noisy = sum(map(_is_noisy, found))
            lines.append(f"| {kind} | {len(found)} of {len(chosen)} | **{mean:.2f}** | {noisy} |")
    halves = [row.of_float32 for row in rows if row.of_float32 is not None]
    if halves:
        mean = geometric_mean(halves)
        lines += ["", f"Our models in fp16 take {mean:.2f} of the time of those in float32."]
    return lines


def _is_noisy(found: dict[str, Any]) -> bool:
    noisy: bool = found["ratio_max"] > NOISY * found["ratio_min"]
    return noisy


def _cells(found: dict[str, Any]) -> list[str]:
    error = found["max_rel_err"]
    return [
        f"{found['theirs_ms']:.2f}",
        f"{found['ratio']:.2f} ({found['ratio_min']:.2f}-{found['ratio_max']:.2f})"
        + ("~" if _is_noisy(found) else ""),
        "-" if error is None else f"{error:.0e}",
    ]


def kernel_lines(found: dict[str, Any], shown: int = 12) -> list[str]:
    """Return ceilings and the slowest kernels as lines of Markdown."""
    rates = found["ceilings"]["gbytes_per_s"]
    memory = ", ".join(f"{rate:.0f} GB/s from {level}" for level, rate in rates.items())
    sgemm = found["ceilings"]["sgemm_gflops"]
    slow = len(found["flagged"])
    ceilings = f"Ceilings: {found['ceilings']['gflops']:.0f} GFLOP/s multiply-adds, {memory}"
    kernels = count_text(len(found["kernels"]), "kernel")
    launches = count_text(len(found["launches"]), "launch")
    total = f"{kernels} in {launches}, medians, {found['kernels_ms']:.2f} ms on the device; "
    lines = [
        ceilings + (f", numpy sgemm {sgemm:.0f} GFLOP/s." if sgemm else "."),
        total + f"over 2 % of the frame below half of their roofline (!): {slow}; all launches "
        f"below half: {found['below_half_share']:.1%}.",
        "",
        "| runs | from | ms | share | GFLOP/s | GB/s | bound | of roofline | of sgemm |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kernel in found["kernels"][:shown]:
        origin = short_origin(kernel["origin"])
        of_sgemm = "-" if kernel["of_sgemm"] is None else f"{kernel['of_sgemm']:.0%}"
        runs = len(kernel["launches"])
        lines.append(
            f"| {runs} | {origin} | {kernel['ms']:.3f} | {kernel['share']:.1%} | "
            f"{kernel['gflops']:.0f} | {kernel['gbytes_per_s']:.1f} | {kernel['bound']} | "
            f"{kernel['of_roofline']:.0%}{' !' if kernel['flagged'] else ''} | {of_sgemm} |"
        )
    return lines


def _cpu_name() -> str:
    """Return the name of the CPU as Linux gives it, with the number of cores we may use."""
    name = "unknown CPU"
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    return f"{name}, {count_text(len(os.sched_getaffinity(0)), 'core')}"


def report(rows: Sequence[Row], kernels: Sequence[str], args: argparse.Namespace) -> str:
    """Return the page."""
    peers = args.peers.split(",")
    info = choose_device().info
    good = [row.result for row in rows if row.result is not None]
    loops = (
        "loops from the shipped table of measured ones"
        if Flags.from_environment().tuned
        else "nothing tuned"
    )
    lines = [
        f"# {datetime.now(UTC).date()}, {_cpu_name()}",
        "",
        "Written by `make bench`; [README.md](../README.md) explains the method. Ratios are ours /",
        "theirs, the median over the blocks with its range: below 1 we are faster. The fastest",
        "peer of a model is the one with the smallest median.",
        "",
        f"- Device: {info.name}; {info.driver}",
        f"- Versions: modeld {_version('modeld')}, Python {platform.python_version()}, "
        f"numpy {_version('numpy')}, " + ", ".join(f"{peer} {_version(peer)}" for peer in peers),
        f"- {platform.system()} {platform.release()}; {args.threads} threads for everybody",
        f"- {args.blocks} blocks of 20 frames, 0.4 s apart, in rotating order",
        f"- Ours: as `modeld compile` does without options (float32, {loops})",
        "",
        *means(rows),
        "",
        *table(rows, peers),
        "Ratios marked ~ vary by more than half between rounds: the machine was busy.",
        "",
        "The driving program is warp, queues, vision and policy on two camera frames of 1928x1208;",
        "the peers run vision and policy only.",
        "",
        "Fastest settings of the peers, and for how many models:",
        "",
    ]
    for peer in peers:
        used = [found["peers"][peer]["options"] for found in good]
        counts = {option: used.count(option) for option in dict.fromkeys(used)}
        lines.append(f"- {peer}: " + "; ".join(f"{text} ({n})" for text, n in counts.items()))
    return "\n".join([*lines, "", "## Kernels of vision", "", *kernels, ""])


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _progress(row: Row) -> str:
    if row.result is None:
        return f"{row.title}: {row.problem}"
    ratios = ", ".join(
        f"{found['ratio']:.2f} of {name.rpartition('/')[2]} "
        f"({found['ratio_min']:.2f} to {found['ratio_max']:.2f})"
        for name, found in row.result["peers"].items()
    )
    return f"{row.title}: {row.result['ours_ms']:.2f} ms, {ratios}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, print where it is; 1 if a model could not be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, help="directory of modeld make-model --benchmarks")
    parser.add_argument("--peers", help="comma-separated (those of the bench extra that are there)")
    parser.add_argument("--blocks", type=int, default=6, help="of each model and peer (6)")
    parser.add_argument("--threads", type=int, default=2, help="of everybody (2)")
    parser.add_argument("--output", type=Path, help="page to write (results/DATE-CPU.md)")
    args = parser.parse_args(arguments)
    if not args.peers:
        args.peers = ",".join(name for name in installed() if name in USUAL_PEERS)
    if not args.peers:
        parser.error("no peer is installed; pip install 'modeld[bench]'")
    rows = compare_all(args.models, args.peers, args.blocks, args.threads)
    try:
        kernels = kernel_lines(roofline(args.models / "vision.onnx", 30))
    except BrokenError as error:
        kernels = [f"No figures: {error}"]
        rows = [*rows, Row("kernels of vision", None, str(error))]
    slug = re.sub(r"[^a-z0-9]+", "-", _cpu_name().lower()).strip("-")
    path = args.output or RESULTS / f"{datetime.now(UTC).date()}-{slug}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(rows, kernels, args), encoding="utf-8")
    print(*means(rows), f"written: {path}", sep="\n")
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
