"""Every example model against every peer, written as a table to benchmarks/results/.

Each model is measured by ``modeld bench --against`` in a process of its own; benchmarks/README.md
says how, and what the figures mean. The last row is the whole driving program (two camera frames to
outputs) against the peers' vision and policy alone.

Example:
  .venv/bin/python benchmarks/all_models.py build/models --peers onnxruntime,openvino
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from runtime import choose_device
from runtime.origin import short_origin
from runtime.quantities import count_text
from scheduler.flags import Flags
from tools.lib.ceilings import cpu_name
from tools.lib.peers import installed

MODELS = (
    "vision",
    "vision_large",
    "policy",
    "resnet18",
    "efficientnet_b2_elu",
    "mobilenetv3_large",
    "unet",
    # Of benchmarks/narrow_models.py.
    "vision_half",
    "policy_half",
    "vision_int8",
    "policy_int8",
    "resnet18_int8",
    "mobilenetv3_large_int8",
)
DRIVING = ("vision", "policy")
RESULTS = Path(__file__).parent / "results"
TIMEOUT_S = 600
# tinygrad takes minutes to compile a model; it is compared where it is asked for.
# Rounds whose ratios differ by more than this were disturbed by something else.
NOISY = 1.5
USUAL_PEERS = ("onnxruntime", "openvino")


class BrokenError(Exception):
    """A command of ours failed."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came out for one model: the object of ``--json``, or why there is none."""

    title: str
    result: dict[str, Any] | None
    problem: str = ""


def modeld(*arguments: str) -> dict[str, Any]:
    """Run one ``modeld`` command with ``--json`` in a fresh process; return its object.

    Raises:
        BrokenError: it failed; holds its last line.
    """
    command = [sys.executable, "-m", "tools.cli", *arguments, "--json"]
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
    jobs = [(name, [name]) for name in MODELS] + [("driving program", list(DRIVING))]
    options = ["--blocks", str(blocks), "--threads", str(threads)]
    rows = []
    for title, names in jobs:
        files = [directory / f"{name}.onnx" for name in names]
        if missing := [path.name for path in files if not path.exists()]:
            rows.append(Row(title, None, f"{', '.join(missing)} is not there"))
        else:
            try:
                found = modeld("bench", "--against", peers, *map(str, files), *options)
                rows.append(Row(title, found))
            except BrokenError as error:
                rows.append(Row(title, None, str(error)))
        print(_progress(rows[-1]), flush=True)
    return rows


def roofline(model: Path, iterations: int) -> dict[str, Any]:
    """Return ceilings and kernels of one model.

    Raises:
        BrokenError: it does not compile or run.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory:
        artifact = str(Path(directory) / "model.pkl")
        modeld("compile", "--plain", str(model), "-o", artifact)
        return modeld("bench", artifact, "--roofline", "--iters", str(iterations))


def table(rows: Sequence[Row], peers: Sequence[str]) -> list[str]:
    """Return the comparison as lines of Markdown."""
    header = ["model", "launches", "ours ms", "ours / fastest"]
    for peer in peers:
        header += [f"{peer} ms", f"ours / {peer}", "min to max", "quietest", "max rel err"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        if row.result is None:
            continue
        cells = [row.title, str(row.result["launches"]), f"{row.result['ours_ms']:.2f}"]
        cells.append(f"**{row.result['ratio']:.2f}**")
        for peer in peers:
            cells += _cells(row.result["peers"][peer])
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        *(f"- **{row.title}** has no figures: {row.problem}" for row in rows if row.problem),
    ]
    return lines


def _cells(found: dict[str, Any]) -> list[str]:
    error = found["max_rel_err"]
    return [
        f"{found['theirs_ms']:.2f}",
        f"{found['ratio']:.2f}",
        f"{found['ratio_min']:.2f} to {found['ratio_max']:.2f}"
        + (" ~" if found["ratio_max"] > NOISY * found["ratio_min"] else ""),
        f"{found['ratio_quiet']:.2f}",
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
        f"# {datetime.now(UTC).date()}, {cpu_name()}",
        "",
        "Written by `make bench`; [README.md](../README.md) says how it is measured, and what not",
        "to conclude from it. Ratios are ours / theirs, the median over the blocks: below 1 we are",
        "faster. The fastest peer of a model is the one with the smallest median.",
        "",
        f"- Device: {info.name}; {info.driver}",
        f"- Versions: modeld {_version('modeld')}, Python {platform.python_version()}, "
        f"numpy {_version('numpy')}, " + ", ".join(f"{peer} {_version(peer)}" for peer in peers),
        f"- {platform.system()} {platform.release()}; {args.threads} threads for everybody",
        f"- {args.blocks} blocks of 20 frames, 0.4 s apart, in rotating order",
        f"- Ours: as `modeld compile` does without options (float32, {loops})",
        "",
        *table(rows, peers),
        "Ratios marked ~ vary by more than half between rounds: the machine was busy with",
        "something else. *Quietest* is our quickest block over theirs, of any rounds.",
        "",
        "The driving program is warp, queues, vision and policy on two camera frames of 1928x1208;",
        "the peers run their vision and policy models alone.",
        "",
        "Settings of the peers that counted (the faster of those tried, model by model):",
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
        f"{found['ratio']:.2f} of {name} ({found['ratio_min']:.2f} to {found['ratio_max']:.2f})"
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
    parser.add_argument("--blocks", type=int, default=8, help="of each model and peer (8)")
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
    slug = re.sub(r"[^a-z0-9]+", "-", cpu_name().lower()).strip("-")
    path = args.output or RESULTS / f"{datetime.now(UTC).date()}-{slug}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report(rows, kernels, args), encoding="utf-8")
    print(f"written: {path}")
    return 1 if any(row.problem for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
