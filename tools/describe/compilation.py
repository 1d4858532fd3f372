"""Describes a compilation: its verification, tuned loops, precision and estimates for a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from runtime.texts import count_text, flops_text, size_text
from scheduler.device.spec import DeviceSpec
from scheduler.tuning.tune import Tuned
from tools.adreno.cost import ANALYTIC
from tools.lib.terminal import format_table, printable

if TYPE_CHECKING:
    from scheduler.check.outputs import OutputCheck
    from scheduler.check.self_check import Report

MAX_OUTPUTS = 12
MAX_PARTS = 8


def describe_check(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the lines about a self-check; none if there was none."""
    return map(printable, _lines(reports))


def _lines(reports: Sequence[Report]) -> Iterator[str]:
    for report in reports:
        verdict = "failed" if report.failures else "verified"
        kinds = "".join(f", {kind}" for kind in report.kinds)
        sets = count_text(report.seeds, "set of inputs", "sets of inputs") + kinds
        yield f"{report.model}: {verdict} against {report.reference}, {sets}"
        if report.outputs:
            header = ("output", "max abs", "of largest", "allowed", "at", "")
            rows = [_row(c) for c in report.outputs[:MAX_OUTPUTS]]
            rows += [_part(c) for c in report.parts[:MAX_PARTS]]
            table = format_table(header, rows)
            yield from (f"  {line}" for line in table.splitlines())
        if len(report.outputs) > MAX_OUTPUTS:
            rest = count_text(len(report.outputs) - MAX_OUTPUTS, "output")
            yield f"  and {rest} closer than these"
        if report.constant:
            yield f"  depends on no input: {', '.join(report.constant)}"
        if report.unchanged:
            names = ", ".join(report.unchanged)
            yield f"  warning: never changed, here and in the reference: {names}"
        if report.reason:
            yield f"  {report.reason}"
        if report.left_out:
            yield f"  skipped: {'; '.join(report.left_out)}"
        yield from (f"  {failure}" for failure in report.failures)


def _row(check: OutputCheck) -> tuple[object, ...]:
    where = "-" if check.where is None else f"[{', '.join(map(str, check.where))}]"
    return (
        check.name,
        f"{check.max_abs:.2e}",
        f"{check.max_rel:.1e}",
        f"{check.tolerance:.0e}",
        f"{where} {check.part}".rstrip(),
        "wrong" if check.problem else f"ok: {check.note}" if check.note else "ok",
    )


def _part(check: OutputCheck) -> tuple[object, ...]:
    """Return the row of an output slice, which is compared with its own largest value."""
    return (*_row(check)[:3], "-", _row(check)[4], "")


MAX_NAME = 48
# Kernels below this share of the time are summarized in one number.
MIN_SHARE = 0.002


def describe_tuning(tuned: Tuned) -> str:
    """Return a table of kernels and a line of totals.

    A time is the minimum for one launch of a kernel by itself, times its launches per run.
    """
    total = tuned.heuristic_ms
    shown = [k for k in tuned.lines if k.times * k.heuristic_ms >= MIN_SHARE * total]
    rows = [
        (
            k.name if len(k.name) <= MAX_NAME else f"{k.name[: MAX_NAME - 3]}...",
            k.times,
            k.times * k.heuristic_ms,
            k.times * k.best_ms,
            k.choice or "-",
            k.state,
        )
        for k in shown
    ]
    header = ("kernel", "times", "heuristic ms", "best ms", "choice", "")
    rest = len(tuned.lines) - len(shown)
    gain = 1 - tuned.best_ms / total if total else 0.0
    return (
        f"{format_table(header, rows)}\n"
        f"tuned in {tuned.seconds:.1f} s: {total:.3f} ms of kernels, now {tuned.best_ms:.3f} "
        f"({100 * gain:.1f} % less); {count_text(rest, 'kernel')} of less than "
        f"{100 * MIN_SHARE:g} % not shown"
    )


def describe_precision(entries: Mapping[str, Mapping[str, Any]], *, in_full: bool) -> Iterator[str]:
    """Yield lines about the largest entry; none if fp16 storage was not requested.

    `entries` come from `scheduler.passes.halves.precision.PrecisionReport.plain`. `in_full` lists
    each value that stays float32, with the reason.
    """
    if not entries:
        return
    name, report = max(entries.items(), key=lambda item: item[1]["weight_bytes"][0])
    weights, values = report["halves"]
    for what, count, key in (
        ("weight", weights, "weight_bytes"),
        ("intermediate", values, "value_bytes"),
    ):
        before, after = report[key]
        if count:
            sizes = f"{size_text(before)} -> {size_text(after)} ({after / before:.0%})"
            yield f"{name}: {count_text(count, what)} stored as fp16: {sizes}"
    if report.get("eight_bits"):
        yield f"{name}: {count_text(report['eight_bits'], 'weight')} of them as 8 bits, exactly"
    biases = count_text(report["biases"], "bias or scale", "biases and scales")
    others = f", {count_text(len(report['kept']), 'other value')}" if report["kept"] else ""
    yield f"stay float32: {biases}{others}{'' if in_full or not others else ' (-v names them)'}"
    for kept in report["kept"] if in_full else ():
        shape = "x".join(map(str, kept["shape"]))
        yield f"  {kept['what']} {kept['name']} ({shape}): {kept['reason']}"


# --- Estimates --------------------------------------------------------------------------------
# Counted in the generated code, not measured. An image read is a `read_imagef` in the source of a
# kernel, counted once per launch, as in the published numbers. A gated read depends on a condition.
# A read in a loop counts once.

# comma.ai's reference vision model with fp16 storage on an Adreno 630, as its tests assert them.
PUBLISHED_VISION: Final = {"kernels": 123, "image_reads": 1361, "gated_reads": 38}


@dataclass(frozen=True, slots=True)
class TargetReport:
    """The cost of one entry point on a target.

    Attributes:
        entry: name of the entry point.
        kernels: number of launches.
        image_reads, gated_reads, image_writes: accesses in the source of each launch, summed.
        images, buffers: launch arguments that are images, and buffers.
        bytes_moved: touched bytes of each argument, once per launch.
        gflop: 10**9 operations.
        arithmetic_ms, memory_ms, launch_ms: time at each of the target's ceilings.
        estimate_ms: for each launch the slower of the first two, plus its launch.
        few_items: launches with fewer work-items than the target runs simultaneously.
    """

    entry: str
    kernels: int
    image_reads: int
    gated_reads: int
    image_writes: int
    images: int
    buffers: int
    bytes_moved: int
    gflop: float
    arithmetic_ms: float
    memory_ms: float
    launch_ms: float
    estimate_ms: float
    few_items: int

    def plain(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
        return {**asdict(self), "estimate": ANALYTIC.plain(self.estimate_ms)}


def target_report(manifest: Mapping[str, Any], entry: str, spec: DeviceSpec) -> TargetReport:
    """Count an entry point's work and estimate its time on a target with known ceilings."""
    launches = [manifest["kernels"][i] for i in manifest["entries"][entry]["launches"]]
    codes = [k["code"] for k in launches]
    peak = spec.peak
    arithmetic = [k["flops"] / peak.gflops / 1e6 for k in launches]
    memory = [k["bytes"] / peak.gbytes / 1e6 for k in launches]
    slower = sum(max(a, m) for a, m in zip(arithmetic, memory, strict=True))
    launch_ms = len(launches) * peak.launch_us / 1e3
    arguments = [manifest["buffers"][i] for k in launches for i in k["args"]]
    return TargetReport(
        entry=entry,
        kernels=len(launches),
        image_reads=sum(code["image_reads"] for code in codes),
        gated_reads=sum(code["gated_reads"] for code in codes),
        image_writes=sum(code["image_writes"] for code in codes),
        images=sum("image" in b for b in arguments),
        buffers=sum("image" not in b for b in arguments),
        bytes_moved=sum(k["bytes"] for k in launches),
        gflop=round(sum(k["flops"] for k in launches) / 1e9, 4),
        arithmetic_ms=round(sum(arithmetic), 3),
        memory_ms=round(sum(memory), 3),
        launch_ms=round(launch_ms, 3),
        estimate_ms=round(slower + launch_ms, 3),
        few_items=sum(k["global"][0] < spec.subgroup * spec.cores for k in launches),
    )


def describe_target(report: TargetReport, spec: DeviceSpec) -> list[str]:
    """Return lines for people, with the published numbers next to ours."""
    known = PUBLISHED_VISION
    reads = f"image reads {report.image_reads} ({known['image_reads']})"
    gated = f"gated {report.gated_reads} ({known['gated_reads']})"
    parts = f"arithmetic {report.arithmetic_ms:.2f}, memory {report.memory_ms:.2f}"
    arguments = f"{count_text(report.images, 'image')}, {count_text(report.buffers, 'buffer')}"
    return [
        f"{report.entry} on target {spec.target}, counted, not measured",
        "  (in brackets: published for the reference vision model on an Adreno 630)",
        f"  kernels {report.kernels} ({known['kernels']}), {reads}, {gated}",
        f"  arguments: {arguments}",
        f"  too small to fill the device: {count_text(report.few_items, 'kernel')}",
        f"  {report.bytes_moved / 1e6:.1f} MB moved, {flops_text(1e9 * report.gflop)}",
        f"  no less than {report.estimate_ms:.2f} ms: {parts}, launches {report.launch_ms:.2f}",
        f"  {ANALYTIC.text(report.estimate_ms)}, estimated from published times (docs/adreno.md)",
    ]
