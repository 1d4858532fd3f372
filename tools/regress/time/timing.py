"""Decides whether a model is slower than its reference, even on a busy machine.

Absolute times mean nothing on a shared machine. The gate compares the ratio of the model's time to
that of a fixed workload (`CalibrationWorkload`), alternating both, on one core and in processor
time. The placement of memory pages differs from process to process and changes the ratio by 2 %.
Therefore several processes are started, and their spread gives a confidence interval. The gate
fails only if the whole interval is beyond the limit, and requests more processes while the limit is
inside it. It judges the mean of all recorded frames, and each frame separately.

A reference ratio is valid for one device. If CI machines differ, use a baseline: the other
artifact is measured alternately with the model, and the ratio of the two decides.

Two compilations can divide a model into different kernels, so slower kernels are found by pieces of
work. Launches on both sides that compute the same ONNX nodes are one piece. Other launches that
share a node, directly or through others, are one piece too. The times of a piece can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance
from typing import Final, NamedTuple

# Half of the 10 % that must be detected; four times the standard error with four processes.
LIMIT: Final = 0.05
MIN_PROCESSES: Final = 4
MAX_PROCESSES: Final = 12
# Maximum increase of the fraction of time spent waiting for something other than a processor. A
# reference's own fraction is below 1 % on a CPU.
WAITING_LIMIT: Final = 0.05

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom (from any table).
STUDENT_T: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
# Quantiles 1 - 2.5 % / 8 by degrees of freedom, for testing up to eight frames with the same total
# error rate. Between two keys, the smaller one applies.
STUDENT_T_OF_EIGHT: Final = {
    1: 101.9,
    2: 12.59,
    3: 6.895,
    4: 5.261,
    5: 4.526,
    6: 4.115,
    7: 3.855,
    14: 3.214,
    21: 3.038,
    35: 2.91,
    77: 2.812,
}
# Minimum share of the total loss for a kernel to be named.
NAMED_SHARE: Final = 0.1
MOST_NAMED: Final = 5
SHOWN_NODES: Final = 4


class LaunchTime(NamedTuple):
    """The time of one launch."""

    kernel: str
    nodes: tuple[str, ...]  # ONNX nodes that it computes, or parts of the frame program
    ms: float  # time of the launch in ms, or in units of the calibration workload


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One piece of work on both sides."""

    kernels: tuple[str, ...]  # its kernels now, in launch order
    kernels_before: tuple[str, ...]  # its kernels in the reference
    nodes: tuple[str, ...]  # its ONNX nodes, from both sides
    before_ms: float  # time in the reference; 0 if it did not exist
    now_ms: float  # time now; 0 if it no longer exists

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels now, or those of the reference if there are none now."""
        return self.kernels or self.kernels_before

    @property
    def lost_ms(self) -> float:
        """The increase of the time."""
        return self.now_ms - self.before_ms

    @property
    def text(self) -> str:
        """The change in one line."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        nodes = ", ".join(self.nodes[:SHOWN_NODES]) or "none"
        if len(self.nodes) > SHOWN_NODES:
            nodes += f" and {len(self.nodes) - SHOWN_NODES} more"
        times = f"{self.before_ms:.3f} ms before, {self.now_ms:.3f} ms now"
        return f"{self.names[0]}{more}, nodes {nodes}: {times}"


def compare_kernels(
    before: Sequence[LaunchTime], now: Sequence[LaunchTime]
) -> tuple[KernelChange, ...]:
    """Return the pieces of work of two programs, joined by kernel, largest increase first."""
    groups = Groups()
    # Launches with the same nodes on both sides form a piece by themselves.
    exact = {frozenset(_names(one)) for one in before} & {frozenset(_names(one)) for one in now}
    for launch in (*before, *now):
        if frozenset(_names(launch)) not in exact:
            groups.join(_names(launch))
    pieces: dict[object, tuple[list[LaunchTime], list[LaunchTime]]] = {}
    for side, launches in enumerate((before, now)):
        for launch in launches:
            nodes = frozenset(_names(launch))
            piece = nodes if nodes in exact else groups.root(_names(launch)[0])
            pieces.setdefault(piece, ([], []))[side].append(launch)
    # One kernel can have many pieces with a small loss each, so its pieces are added up.
    by_kernels: dict[tuple[str, ...], tuple[list[LaunchTime], list[LaunchTime]]] = {}
    for old, new in pieces.values():
        kernels = tuple(dict.fromkeys(one.kernel for one in new or old))
        both = by_kernels.setdefault(kernels, ([], []))
        both[0].extend(old)
        both[1].extend(new)
    found = [
        KernelChange(
            tuple(dict.fromkeys(one.kernel for one in new)),
            tuple(dict.fromkeys(one.kernel for one in old)),
            tuple(dict.fromkeys(node for one in (*new, *old) for node in one.nodes)),
            sum(one.ms for one in old),
            sum(one.ms for one in new),
        )
        for old, new in by_kernels.values()
    ]
    return tuple(sorted(found, key=lambda change: -change.lost_ms))


def slower_kernels(changes: Sequence[KernelChange], lost_ms: float) -> list[KernelChange]:
    """Return the slower pieces of work; empty if most of the loss is not in the kernels.

    `changes`: result of `compare_kernels`. `lost_ms`: increase of the time of a whole run.
    """
    # Launch times scatter, so kernels count only if they explain at least half of the loss.
    if sum(one.lost_ms for one in changes) < lost_ms / 2.0:
        return []
    lost = sum(one.lost_ms for one in changes if one.lost_ms > 0.0)
    named = [one for one in changes if one.lost_ms >= NAMED_SHARE * lost][:MOST_NAMED]
    return named or list(changes[:1])


def describe_kernels(changes: Sequence[KernelChange], lost_ms: float) -> list[str]:
    """Return lines that name the slower kernels, or state that none is slower.

    `changes`, `lost_ms`: see `slower_kernels`.
    """
    named = slower_kernels(changes, lost_ms)
    if named:
        return [f"slower kernel: {change.text}" for change in named]
    before, now = (sum(getattr(one, name) for one in changes) for name in ("before_ms", "now_ms"))
    text = (
        f"kernels one by one: {before:.3f} ms before, {now:.3f} ms now, of {lost_ms:.3f} ms "
        "that a run lost: what runs them is slower (runtime, driver or megakernel)"
    )
    return [text]


def _names(launch: LaunchTime) -> Sequence[str]:
    return launch.nodes or (launch.kernel,)


class Groups:
    """Disjoint groups of names (union-find)."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return the representative of a name's group."""
        while (parent := self._parents.setdefault(name, name)) != name:
            name = parent
        return name

    def join(self, names: Iterable[str]) -> None:
        """Join the groups of all these names into one."""
        roots = [self.root(name) for name in names]
        for root in roots:
            self._parents[self.root(root)] = self.root(roots[0])


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over processes, and its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FrameTiming:
    """The measurement of one frame of a drive."""

    name: str  # name of the drive and id of the frame
    ratio: Interval  # see `TimingResult`
    to_baseline: Interval | None  # see `TimingResult`


@dataclass(frozen=True, slots=True)
class Kernels:
    """The times of single kernels."""

    frame: str  # name of the frame that was run
    # Pieces of work on both sides, largest increase first; empty if only one side is known.
    changes: tuple[KernelChange, ...]
    # Launches of the model, with times in units of the calibration workload instead of ms.
    launches: tuple[LaunchTime, ...]


@dataclass(frozen=True, slots=True)
class TimingResult:
    """The measurement of one entry."""

    device: str  # the device and its processor; references of other ones do not apply
    clock: str  # ``processor`` (CPUs) or ``wall``
    ratio: Interval  # time of the model divided by that of the calibration workload
    to_baseline: Interval | None  # time of the model divided by the baseline's; None without one
    model_ms: float  # median over the processes, for information
    # Fraction of the wall time without processor time, over undisturbed runs. None if nearly all
    # runs were disturbed, or if times are wall times.
    waiting: float | None
    frames: tuple[FrameTiming, ...] = ()
    baseline_ms: float | None = None  # like `model_ms`; None without a baseline
    baseline_waiting: float | None = None
    kernels: Kernels | None = None  # None if kernels were not timed


@dataclass(frozen=True, slots=True)
class StoredTiming:
    """One accepted measurement."""

    ratio: Interval  # time of the model divided by that of the calibration workload
    clock: str  # see `TimingResult`
    model_ms: float  # for information
    waiting: float | None  # see `TimingResult`
    provenance: Mapping[str, str]  # date, commit, reason, environment
    frames: Mapping[str, Interval] = field(default_factory=dict)  # ratio by name of the frame
    launches: tuple[LaunchTime, ...] = ()  # see `Kernels`


@dataclass(frozen=True, slots=True)
class TimingVerdict:
    """The gate's decision."""

    passed: bool  # whether the speed is acceptable
    # Relative increase of the time over all frames, 0.1 = 10 %; None without a reference.
    slower: float | None
    text: str  # one line for the user
    # The slower parts: kernels with their ONNX nodes, or the software that launches them.
    lines: tuple[str, ...] = ()
    # The slower kernels; empty if none is slower, or none was timed.
    slower_kernels: tuple[KernelChange, ...] = ()
    worst: str = ""  # name of the frame with the largest increase; "" for the mean of all
    is_open: bool = False  # whether more processes could change the decision


@dataclass(frozen=True, slots=True)
class _Part:
    """The mean of all frames (no name) or one frame, with its reference."""

    name: str
    measured: Interval
    base: Interval

    @property
    def slower(self) -> float:
        return self.measured.mean / self.base.mean - 1.0

    @property
    def spread(self) -> float:
        return (self.measured.high - self.measured.low) / 2.0 / self.base.mean

    @property
    def fails(self) -> bool:
        # Both sides were measured, so the uncertainty of the reference counts as well.
        base_half = (self.base.high - self.base.low) / 2.0 / self.base.mean
        is_sure = self.slower - math.hypot(self.spread, base_half) > 0.0
        return is_sure and self.slower - self.spread > LIMIT

    @property
    def is_open(self) -> bool:
        return self.slower - self.spread <= LIMIT < self.slower + self.spread


def interval(samples: Sequence[float]) -> Interval:
    """Return mean and confidence interval (Student's t) of at least two independent values."""
    mean = fmean(samples)
    t = STUDENT_T[min(len(samples) - 1, len(STUDENT_T)) - 1]
    half = t * stdev(samples) / math.sqrt(len(samples))
    return Interval(mean, mean - half, mean + half, tuple(samples))


def frame_intervals(samples: Sequence[Sequence[float]]) -> list[Interval]:
    """Return mean and confidence interval of each frame, for up to eight frames tested together.

    The common deviation of a process's frames is the uncertainty of their mean. In addition, each
    frame scatters independently, all of them equally. This scatter is estimated from all frames
    together, which gives more degrees of freedom than one frame has.

    `samples`: values by process and frame, of at least two processes.
    """
    whole = interval([fmean(one) for one in samples])
    shares = [[value / fmean(one) for value in one] for one in samples]
    by_frame = list(zip(*shares, strict=True))
    count = len(samples)
    scatter = math.sqrt(fmean(variance(one) for one in by_frame))
    # The shares of one process add up to a constant.
    freedom = (count - 1) * (len(by_frame) - 1)
    t = min(t for least, t in STUDENT_T_OF_EIGHT.items() if least <= max(freedom, 1))
    found = []
    for number, shares_of_one in enumerate(by_frame):
        mean = whole.mean * fmean(shares_of_one)
        own = whole.mean * t * scatter / math.sqrt(count)
        half = math.hypot(own, (whole.high - whole.low) / 2.0)
        values = tuple(one[number] for one in samples)
        found.append(Interval(mean, mean - half, mean + half, values))
    return found


def judge_timing(result: TimingResult, stored: StoredTiming | None) -> TimingVerdict:
    """Decide whether the speed is acceptable.

    `result`: the new measurement. `stored`: the reference on this device; unused with a baseline,
    whose ratio is 1.
    """
    parts = _parts(result, stored)
    if not parts:
        return TimingVerdict(True, None, f"timing: no reference for {result.device}; not judged")
    whole, frames = parts[0], parts[1:]
    count = len(whole.measured.samples)
    text = f"timing: {whole.slower:+.1%} (+-{whole.spread:.1%}, {count} processes)"
    failing = [part for part in frames if part.fails]
    worst = max(failing or frames, key=lambda part: part.slower, default=whole)
    is_open = any(part.is_open for part in parts)
    if whole.fails:
        text += f": slower than the limit of {LIMIT:.0%}"
    elif failing:
        text += (
            f": {len(failing)} of {len(frames)} frames slower than the limit of {LIMIT:.0%}, at "
            f"the worst {worst.name}: {worst.slower:+.1%} (+-{worst.spread:.1%})"
        )
    if whole.fails or failing:
        lines, kernels = _to_blame(result, worst)
        return TimingVerdict(False, whole.slower, text, lines, kernels, worst.name)
    before = result.baseline_waiting if result.to_baseline else stored and stored.waiting
    if result.waiting is not None and result.waiting - (before or 0.0) > WAITING_LIMIT:
        text = (
            f"{text}: {result.waiting:.0%} of the time is spent waiting, {before or 0:.0%} before"
        )
        return TimingVerdict(False, whole.slower, text)
    if whole.slower + whole.spread > LIMIT:
        text += f": too noisy to rule out {LIMIT:.0%}"
    elif is_open:
        text += f": too noisy to rule out {LIMIT:.0%} of {worst.name}"
    return TimingVerdict(True, whole.slower, text, is_open=is_open)


def _parts(result: TimingResult, stored: StoredTiming | None) -> list[_Part]:
    """Return the mean and each frame that both sides have; [] without a reference."""
    if result.to_baseline is not None:
        one = Interval(1.0, 1.0, 1.0, ())
        frames = ((frame.name, frame.to_baseline, one) for frame in result.frames)
        known = [_Part(name, ratio, base) for name, ratio, base in frames if ratio is not None]
        return [_Part("", result.to_baseline, one), *known]
    if stored is None:
        return []
    return [
        _Part("", result.ratio, stored.ratio),
        *(
            _Part(frame.name, frame.ratio, stored.frames[frame.name])
            for frame in result.frames
            if frame.name in stored.frames
        ),
    ]


def _to_blame(
    result: TimingResult, worst: _Part
) -> tuple[tuple[str, ...], tuple[KernelChange, ...]]:
    if result.kernels is None:
        return (), ()
    changes = result.kernels.changes
    if not changes:
        text = "kernels were not compared: measure their earlier times with --baseline ARTIFACT"
        return (text,), ()
    lost_ms = result.model_ms * (1.0 - 1.0 / (1.0 + worst.slower))
    return tuple(describe_kernels(changes, lost_ms)), tuple(slower_kernels(changes, lost_ms))
