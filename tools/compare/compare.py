"""Compares two event logs field by field, aligned by frame id.

Both logs are read once, side by side. `compare_logs` compares two files and also their effect on
the drive. `compare_events` compares two series of serialized Events, such as references stored in
another format. Both return a `Comparison`, which lists the differences beyond the tolerances and
the statistics of every field. A `ServiceJudge` compares the messages of one service.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cereal.errors import ServiceError
from cereal.log_reader import read_log_bytes
from cereal.schema import log
from cereal.services import members_of
from runtime.texts import count_text
from tools.behaviour.difference import Sides, judge_behaviour
from tools.behaviour.gates import Gates
from tools.behaviour.quantities import BehaviourReader, true_behaviour
from tools.behaviour.truth import Truth
from tools.compare.align import UNREADABLE, Aligner, Message, Pair, Unmatched
from tools.compare.fields import (
    Discrete,
    Fields,
    Flat,
    Layout,
    PairLayout,
    Place,
    Shape,
    cleared,
    flatten,
    layout_of,
    pair_layout,
    spans_of,
)
from tools.compare.findings import (
    Comparison,
    FieldSeries,
    FieldStatistics,
    Finding,
    FindingKind,
    Order,
    Tallies,
    Tally,
    shown,
    sorted_findings,
)
from tools.compare.numbers import Numbers
from tools.compare.tolerances import Tolerances, read_tolerances
from tools.errors import CompareError, UsageError

# Services of each daemon. A daemon that publishes one of its services publishes all of them.
DAEMON_OUTPUTS = (
    ("modelV2", "drivingModelData", "cameraOdometry"),
    ("driverStateV2",),
)
OUTPUT_SERVICES = tuple(name for group in DAEMON_OUTPUTS for name in group)
# The service whose messages hold the quantities of `tools.behaviour`.
BEHAVIOUR_SERVICE = "modelV2"


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """The services to compare, and how strictly."""

    services: Sequence[str] | None = None  # names of services; None for the daemons' outputs
    all_services: bool = False  # whether to compare every service
    tolerances: Tolerances = field(default_factory=read_tolerances)  # default: the package's table
    uncalibrated: bool = False  # whether to compare frames before the calibration, too
    gates: Gates = field(default_factory=Gates)  # conditions on the effect on the drive
    truth: Truth | None = None  # ground truth of a rendered drive


def compare_logs(left: Path, right: Path, options: CompareOptions | None = None) -> Comparison:
    """Compare two log files; `left` is the reference.

    A truncated log is compared up to its end, with a warning.

    Raises:
        LogError: a file cannot be read or is not a log.
        CompareError: the logs have nothing to compare.
        UsageError: `options` name a service that does not exist.
    """
    texts: list[str] = []
    options = options or CompareOptions()
    logs = read_log_bytes(left, texts.append), read_log_bytes(right, texts.append)
    sides = BehaviourReader(), BehaviourReader()
    chosen = _chosen(options)
    if not chosen or BEHAVIOUR_SERVICE in chosen:
        # The logs are read only once, so the behaviours are collected during the comparison.
        logs = sides[0].watch(logs[0]), sides[1].watch(logs[1])
    comparison = compare_events(*logs, options, (str(left), str(right)))
    true = None if options.truth is None else true_behaviour(options.truth)
    both = Sides(sides[0].behaviour(), sides[1].behaviour(), true)
    behaviour = judge_behaviour(both, options.gates, uncalibrated=options.uncalibrated)
    warnings = (*texts, *comparison.warnings)
    return replace(comparison, warnings=warnings, behaviour=behaviour, sides=both)


def compare_events(
    left: Iterable[bytes],
    right: Iterable[bytes],
    options: CompareOptions | None = None,
    names: tuple[str, str] = ("left", "right"),
) -> Comparison:
    """Compare two series of serialized Events.

    Args:
        left: the reference; iterated once.
        right: the series to compare with it; iterated once.
        options: the services to compare, and how strictly.
        names: names of both sides, for messages.

    Raises:
        CompareError: there is nothing to compare.
        UsageError: `options` name a service that does not exist.
    """
    return _Run(left, right, options or CompareOptions(), names).comparison()


def _chosen(options: CompareOptions) -> frozenset[str]:
    """Return the Event members to compare; an empty set means all."""
    if options.all_services:
        return frozenset()
    known = log.Event.schema.fields
    chosen: set[str] = set()
    for name in options.services or OUTPUT_SERVICES:
        try:
            members = members_of(name)
        except ServiceError:
            members = (name,)
        if not set(members) <= set(known) or name in ("logMonoTime", "valid"):
            raise UsageError(
                f"service {name!r}: expected the name of a message, found no such message; "
                "see cereal/log.capnp"
            )
        chosen |= set(members)
    return frozenset(chosen)


class _Run:
    """The state of one comparison."""

    def __init__(
        self,
        left: Iterable[bytes],
        right: Iterable[bytes],
        options: CompareOptions,
        names: tuple[str, str],
    ) -> None:
        chosen = _chosen(options)
        self._aligner = Aligner(left, right, lambda name: not chosen or name in chosen)
        self._options, self._names = options, names
        self._judges: dict[str, ServiceJudge] = {}
        self._frames: set[int] = set()
        self._skipped: Counter[str] = Counter()
        self._messages = 0
        # Unmatched messages by service. Only at the end it is known whether a log lacks a service.
        self._alone: dict[str, Tallies] = {}

    def comparison(self) -> Comparison:
        """Read both series to their ends and return the comparison."""
        for item in self._aligner:
            if isinstance(item, Pair):
                self._compare(item)
            else:
                self._note(item)
        tallies = [tally for judge in self._judges.values() for tally in judge.finish()]
        more, notes = self._one_sided()
        if not self._messages and not more:
            raise CompareError(self._why_nothing())
        return Comparison(
            left=self._names[0],
            right=self._names[1],
            frames=len(self._frames),
            skipped=max(self._skipped.values(), default=0),
            messages=self._messages,
            findings=sorted_findings(tallies + more),
            statistics=[s for judge in self._judges.values() for s in judge.statistics()],
            warnings=notes,
            series=[s for judge in self._judges.values() for s in judge.series()],
            times=self._aligner.times,
        )

    def _compare(self, pair: Pair) -> None:
        service = pair.left.service
        if self._is_uncalibrated(pair.left):
            self._skipped[service] += 1
            return
        if service not in self._judges:
            self._judges[service] = ServiceJudge(service, self._options.tolerances)
        self._judges[service].compare(pair)
        self._messages += 1
        if pair.left.frame_id >= 0:
            self._frames.add(pair.left.frame_id)

    def _note(self, alone: Unmatched) -> None:
        message = alone.message
        if self._is_uncalibrated(message, of_right=alone.side == "right"):
            return
        tallies = self._alone.setdefault(message.service, Tallies(message.service))
        if alone.side == "left":
            tallies.add_discrete("missing", ("", ""), message, ("a message", "none"))
        elif message.repetition:
            times = f"{message.repetition + 1} messages"
            tallies.add_discrete("repeated", ("", ""), message, ("fewer", times))
        else:
            tallies.add_discrete("extra", ("", ""), message, ("none", "a message"))

    def _is_uncalibrated(self, message: Message, *, of_right: bool = False) -> bool:
        """Return whether a message precedes the left log's first valid one of its service.

        The daemon marks outputs as valid once it has a calibration. Earlier outputs use zero or
        stale transforms and are meaningless.
        """
        if self._options.uncalibrated or message.service not in OUTPUT_SERVICES:
            return False
        first = self._aligner.first_valid.get(message.service)
        if first is None:
            return self._aligner.seen.left[message.service] > 0
        return message.frame_id < first.frame_id if of_right else message.position < first.position

    def _one_sided(self) -> tuple[list[Tally], list[str]]:
        """Return findings for unmatched messages, and notes about services that are not compared.

        A service that the right log lacks entirely is a finding, unless the right log has no
        message of the same daemon: then that daemon was not run.
        """
        seen, found, notes = self._aligner.seen, [], []
        for service, tallies in self._alone.items():
            left, right = seen.left[service], seen.right[service]
            group = next((g for g in DAEMON_OUTPUTS if service in g), (service,))
            was_run = self._is_asked_for(service) or any(seen.right[name] for name in group)
            if left and (right or was_run):
                found += tallies.all()
                continue
            only, count = (0, left) if left else (1, right)
            notes.append(
                f"{service}: {count_text(count, 'message')} in {self._names[only]} only, "
                "not compared"
            )
        for name, count in zip(self._names, self._aligner.unreadable, strict=True):
            if count:
                notes.append(f"{name}: {count_text(count, 'damaged event')} left out")
        return found, notes

    def _is_asked_for(self, service: str) -> bool:
        return self._options.services is not None and service in _chosen(self._options)

    def _why_nothing(self) -> str:
        seen, (left, right) = self._aligner.seen, self._names
        shared = sorted(set(seen.left) & set(seen.right))
        if shared:
            return (
                f"{left}: expected a frame after the calibration, found no valid message of "
                f"{', '.join(shared)}; --uncalibrated compares all frames"
            )
        found = " and ".join(
            f"{', '.join(sorted(counts)) or 'none'} in {name}"
            for name, counts in ((left, seen.left), (right, seen.right))
        )
        return (
            f"{right}: expected messages of the services of {left}, found {found}; "
            "choose others with --service or --all"
        )


class ServiceJudge:
    """Compares the messages of one service.

    Args:
        service: name of the Event member.
        tolerances: permitted differences of each field.
    """

    def __init__(self, service: str, tolerances: Tolerances) -> None:
        self.tallies = Tallies(service)
        self._service = service
        self._fields = Fields(service, tolerances)
        self._ignored = spans_of(service, _measured_times(self._fields))
        self._layouts: dict[tuple[Shape, Shape], PairLayout] = {}
        self._numbers = Numbers(self._fields, self.tallies, bit_exact=tolerances.bit_exact)
        self._order = Order()
        self._bit_exact = tolerances.bit_exact

    def compare(self, pair: Pair) -> None:
        """Compare one pair of messages."""
        left, right = pair.left, pair.right
        self._order.add(pair, self.tallies)
        same = left.data == right.data or self._cleared(left) == self._cleared(right)
        one = self._flat(left)
        other = one if same else self._flat(right)
        if one is None or other is None:
            if not same:
                texts = ["damaged" if flat is None else "readable" for flat in (one, other)]
                self.tallies.add_discrete("type", ("", ""), left, (texts[0], texts[1]))
            return
        layout = self._layout(pair, (one.shape, other.shape))
        if not same:
            self._compare_shapes(layout, left)
            self._compare_discrete(layout, one, other, left)
        self._numbers.add(layout, (left.frame, left.position), one.numbers, other.numbers)

    def finish(self) -> list[Tally]:
        """Complete the statistics and return the findings."""
        self._order.finish(self.tallies)
        self._numbers.finish()
        return self.tallies.all()

    def statistics(self) -> list[FieldStatistics]:
        """Return the statistics of every numeric field, after `finish`."""
        return self._numbers.statistics()

    def series(self) -> list[FieldSeries]:
        """Return the values over the frames of each field that differs at all, after `finish`."""
        return self._numbers.series()

    def _cleared(self, message: Message) -> bytes:
        return cleared(message.data, self._ignored)

    def _flat(self, message: Message) -> Flat | None:
        """Return the values of a message, or None if it is damaged."""
        try:
            flat = flatten(message.event)
            valid = bool(message.event.valid)
        except UNREADABLE:
            return None
        flat.discrete.append(valid)
        if not flat.shape[0]:  # no declared fields: compare the bytes
            flat.discrete.append(self._cleared(message))
        return flat

    def _layout(self, pair: Pair, shapes: tuple[Shape, Shape]) -> PairLayout:
        found = self._layouts.get(shapes)
        if found is None:
            sides = [self._places(message) for message in (pair.left, pair.right)]
            found = self._layouts[shapes] = pair_layout(sides[0], sides[1], self._fields)
        return found

    def _places(self, message: Message) -> Layout:
        layout = layout_of(message.event)
        layout.discrete.append(Place(".valid", ".valid"))
        if not layout.paths:
            layout.discrete.append(Place("", ""))
        return layout

    def _compare_shapes(self, layout: PairLayout, message: Message) -> None:
        noted: set[str] = set()
        for mismatch in layout.mismatches:
            pattern, exact = mismatch.place.pattern, mismatch.place.exact
            if pattern in noted:
                continue
            noted.add(pattern)  # each frame counts once per field
            kind: FindingKind = "length" if mismatch.is_length else "type"
            texts = (mismatch.left, mismatch.right)
            self.tallies.add_discrete(kind, (pattern, exact), message, texts)

    def _compare_discrete(
        self, layout: PairLayout, one: Flat, other: Flat, message: Message
    ) -> None:
        noted: set[str] = set()
        for i, j, place, tolerance in layout.discrete:
            here, there = one.discrete[i], other.discrete[j]
            if here == there or place.pattern in noted:
                continue
            off = score = math.nan
            if type(here) is int and type(there) is int:
                off = abs(here - there)
                limit = max(tolerance.absolute, tolerance.relative * max(abs(here), abs(there)))
                if off <= limit and not self._bit_exact:
                    continue
                score = off / limit if limit else math.inf
            noted.add(place.pattern)
            finding = Finding(
                kind="value",
                service=self.tallies.service,
                field=place.pattern,
                frames=1,
                first_frame=message.frame,
                worst_frame=message.frame,
                worst_place=place.exact,
                left=shown(here),
                right=shown(there),
                worst_absolute=float(off),
                worst_relative=_share(off, here, there),
                limit=tolerance.text,
            )
            # A difference without a size counts as the worst.
            worst = math.inf if math.isnan(score) else score
            self.tallies.add(Tally(finding, worst, message.position))


def _share(off: float, here: Discrete, there: Discrete) -> float:
    """Return a difference of integers relative to the larger magnitude; NaN for other values."""
    if isinstance(here, int) and isinstance(there, int) and off > 0:
        return off / max(abs(here), abs(there))
    return math.nan


def _measured_times(fields: Fields) -> list[str]:
    """Return the ignored fields with measured durations, which differ in every run.

    They are cleared before bytes are compared, so that equal messages are recognized quickly. For
    other ignored fields the values are compared.
    """
    names = ("modelExecutionTime", "gpuExecutionTime", "dspExecutionTime")
    return [name for name in names if fields.tolerance(name).ignore]
