"""The timing gate's decision: whether a model is slower than its reference, also on a busy machine.

Absolute times say nothing on a shared machine. What is compared is the ratio of the model's time to
that of a fixed workload (`CalibrationWorkload`), run by run in alternation, on one core and by
processor time. Where memory pages lie differs from process to process and moves the ratio by 2 %,
so several processes are started and their spread decides how sure one may be: the gate fails only
if a whole confidence interval lies beyond the limit, and asks for more processes while the limit
lies inside one. It looks at all recorded frames of the drives together, and at each by itself.

A reference ratio holds for one device. Where CI's machines differ, give a baseline: the artifact of
the other side is then measured alternately with the model, and the ratio of the two decides.

Two compilations may cut a model into different kernels, so slower kernels are found by pieces of
work. Launches on both sides that compute the same ONNX nodes are one piece. Other launches that
share a node, directly or through others, are one piece too. The times of a piece can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev, variance
from typing import Final, NamedTuple

# Half of the 10 % that must be noticed; four times the spread of a mean of four processes.
LIMIT: Final = 0.05
MIN_PROCESSES: Final = 4
MAX_PROCESSES: Final = 12
# Share of the time spent waiting for something else than a processor; a reference's own is below
# 1 % on a CPU.
WAITING_LIMIT: Final = 0.05

# Quantiles of Student's t by degrees of freedom from 1 (any table of it): 97.5 %.
STUDENT_T: Final = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)
# For one of up to eight that are all looked at, so that together they err no more often:
# 1 - 2.5 % / 8. Of the degrees of freedom between, the fewer ones hold.
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
# Of what all kernels lost together: what one has to have lost to be named.
NAMED_SHARE: Final = 0.1
MOST_NAMED: Final = 5
SHOWN_NODES: Final = 4


class LaunchTime(NamedTuple):
    """One launch."""

    kernel: str
    nodes: tuple[str, ...]  # ONNX nodes that it computes, or parts of the frame program
    ms: float  # what it takes


@dataclass(frozen=True, slots=True)
class KernelChange:
    """One piece of work on both sides."""

    kernels: tuple[str, ...]  # that do it now, in order of launches
    kernels_before: tuple[str, ...]  # that did it
    nodes: tuple[str, ...]  # ONNX nodes of it, of both sides
    before_ms: float  # what it took; 0 where there was no such work
    now_ms: float  # what it takes; 0 where it is gone

    @property
    def names(self) -> tuple[str, ...]:
        """The kernels; those of before, where the work is gone."""
        return self.kernels or self.kernels_before

    @property
    def lost_ms(self) -> float:
        """By how much it is slower."""
        return self.now_ms - self.before_ms

    @property
    def text(self) -> str:
        """One line."""
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        nodes = ", ".join(self.nodes[:SHOWN_NODES]) or "none"
        if len(self.nodes) > SHOWN_NODES:
            nodes += f" and {len(self.nodes) - SHOWN_NODES} more"
        times = f"{self.before_ms:.3f} ms before, {self.now_ms:.3f} ms now"
        return f"{self.names[0]}{more}, nodes {nodes}: {times}"


def compare_kernels(
    before: Sequence[LaunchTime], now: Sequence[LaunchTime]
) -> tuple[KernelChange, ...]:
    """Return the pieces of work of two programs, those of one kernel joined; most lost first."""
    groups = Groups()
    # What computes the same nodes on both sides is a piece by itself.
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
    # One kernel may do many pieces, each of which has lost little.
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
    """Return the pieces of work that became slower; none where what a run lost lies elsewhere.

    `changes`: as `compare_kernels` sorts them. `lost_ms`: what a whole run lost.
    """
    # Times of launches scatter, so less than half of the loss is none of theirs.
    if sum(one.lost_ms for one in changes) < lost_ms / 2.0:
        return []
    lost = sum(one.lost_ms for one in changes if one.lost_ms > 0.0)
    named = [one for one in changes if one.lost_ms >= NAMED_SHARE * lost][:MOST_NAMED]
    return named or list(changes[:1])


def describe_kernels(changes: Sequence[KernelChange], lost_ms: float) -> list[str]:
    """Return lines that say which kernels are slower, or that none is; takes the same."""
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
    """Names that belong together."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def root(self, name: str) -> str:
        """Return the name that stands for a group."""
        while (parent := self._parents.setdefault(name, name)) != name:
            name = parent
        return name

    def join(self, names: Iterable[str]) -> None:
        """Make one group of the groups of all these."""
        roots = [self.root(name) for name in names]
        for root in roots:
            self._parents[self.root(root)] = self.root(roots[0])


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over processes, and where its true value lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FrameTiming:
    """What was measured of one frame of a drive."""

    name: str  # of the drive, and id of the frame
    ratio: Interval  # as of `TimingResult`
    to_baseline: Interval | None  # as of `TimingResult`


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels one by one, where they were timed."""

    frame: str  # that was run
    # Pieces of work on both sides, that which lost most first; empty where only one side is known.
    changes: tuple[KernelChange, ...]
    # Of the model, in times of the calibration workload instead of ms.
    launches: tuple[LaunchTime, ...]


@dataclass(frozen=True, slots=True)
class TimingResult:
    """What was measured."""

    device: str  # the device and its processor; references of another one do not apply
    clock: str  # ``processor`` (CPUs) or ``wall``
    ratio: Interval  # time of the model over that of the calibration workload
    to_baseline: Interval | None  # time of the model over that of the baseline; None without one
    model_ms: float  # median over the processes; for people
    # Share of the undisturbed runs that was no processor time; None where nearly all runs were
    # disturbed, or time is wall time anyway.
    waiting: float | None
    frames: tuple[FrameTiming, ...] = ()
    baseline_ms: float | None = None  # as `model_ms`; None without a baseline
    baseline_waiting: float | None = None
    kernels: Kernels | None = None  # None where they were not timed


@dataclass(frozen=True, slots=True)
class StoredTiming:
    """One measurement that was accepted."""

    ratio: Interval  # time of the model over that of the calibration workload
    clock: str  # as in `TimingResult`
    model_ms: float  # for people
    waiting: float | None  # as in `TimingResult`
    provenance: Mapping[str, str]  # date, commit, reason, environment
    frames: Mapping[str, Interval] = field(default_factory=dict)  # ratio by name of the frame
    launches: tuple[LaunchTime, ...] = ()  # as in `Kernels`


@dataclass(frozen=True, slots=True)
class TimingVerdict:
    """The gate's decision."""

    passed: bool  # whether the gate is open
    # By how much the model is slower than its reference, 0.1 = 10 %, over all frames; None: no
    # reference.
    slower: float | None
    text: str  # one line for people
    # What became slower: kernels with their ONNX nodes, or what runs them.
    lines: tuple[str, ...] = ()
    # Of these; empty where no kernel is to blame, or none was timed.
    slower_kernels: tuple[KernelChange, ...] = ()
    worst: str = ""  # name of the frame that lost most; "" of the whole
    is_open: bool = False  # more processes may still change the decision


@dataclass(frozen=True, slots=True)
class _Part:
    """The whole (no name), or one frame, beside its reference."""

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
        # Both sides were measured: the uncertainty of the reference counts as well.
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
    """Return mean and confidence interval of each frame, of up to eight that are all looked at.

    What a process does to all of its frames alike is the whole's uncertainty. Beside that each
    frame scatters for itself, and all of them as much: so their scatter is known from all together,
    by more values than one frame has.

    `samples`: by process and frame; at least two processes.
    """
    whole = interval([fmean(one) for one in samples])
    shares = [[value / fmean(one) for value in one] for one in samples]
    by_frame = list(zip(*shares, strict=True))
    count = len(samples)
    scatter = math.sqrt(fmean(variance(one) for one in by_frame))
    # The shares of one process sum to a constant.
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
    """Decide.

    `result`: what was measured now. `stored`: the reference on this device; unused with a baseline,
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
    """Return the whole and each frame that both sides have, [] without a reference."""
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
        text = "kernels were not compared: --baseline ARTIFACT knows what they took before"
        return (text,), ()
    lost_ms = result.model_ms * (1.0 - 1.0 / (1.0 + worst.slower))
    return tuple(describe_kernels(changes, lost_ms)), tuple(slower_kernels(changes, lost_ms))
