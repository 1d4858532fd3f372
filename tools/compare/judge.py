"""Pairs of messages of one service judged: what differs, by how much, and how it adds up."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cereal.schema import log
from tools.compare.align import UNREADABLE, Message, Pair
from tools.compare.fields import Discrete, Flat, Layout, Place, Shape, flatten, layout_of
from tools.compare.findings import FieldSeries, FieldStatistics, Finding, FindingKind
from tools.compare.layouts import Fields, PairLayout, pair_layout
from tools.compare.numbers import Numbers
from tools.compare.tally import Order, Tallies, Tally, shown
from tools.compare.tolerances import Tolerances
from tools.messages.event_bytes import Span, Structure, span_of, structure_at

# ----------------------------------------------------------------------------------------------
# Bytes of messages without what is ignored, so that equal messages are seen without reading them.
#
# What cannot be found where messages of ours have it is left as it is; equal bytes are equal in any
# case.


def spans_of(service: str, names: Sequence[str]) -> list[Span]:
    """Return where plain fields stand in the messages of a service; those of other types nowhere.

    Args:
        service: name of the Event member.
        names: fields at the top of its message; ones that it does not have are left out.
    """
    member = log.Event.schema.fields[service]
    if member.proto.slot.type.which() != "struct":
        return []
    fields = member.schema.fields
    spans = [span_of(fields[name]) for name in names if name in fields]
    return [span for span in spans if span is not None]


def cleared(data: bytes, spans: Sequence[Span]) -> bytes:
    """Return an Event's bytes with ``logMonoTime`` and some of its message's fields zeroed.

    Args:
        data: the framed message.
        spans: from `spans_of`.
    """
    result = bytearray(data)
    root = structure_at(data)
    if root is None:
        return data
    _clear(result, root, (0, 8))
    body = structure_at(data, root.pointers_start) if spans and root.pointers else None
    if body is not None:
        for span in spans:
            _clear(result, body, span)
    return bytes(result)


def _clear(result: bytearray, body: Structure, span: Span) -> None:
    """Zero a field, unless the writer's structure is older and ends before it."""
    at, size = body.start + span[0], span[1]
    if at + size <= body.pointers_start:
        result[at : at + size] = bytes(size)


class ServiceJudge:
    """Compares the messages of one service.

    Args:
        service: name of the Event member.
        tolerances: what may differ.
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
        """Return what was found."""
        self._order.finish(self.tallies)
        self._numbers.finish()
        return self.tallies.all()

    def statistics(self) -> list[FieldStatistics]:
        """Return the statistics of every numeric field, after `finish`."""
        return self._numbers.statistics()

    def series(self) -> list[FieldSeries]:
        """Return what fields that differ at all did over the frames, after `finish`."""
        return self._numbers.series()

    def _cleared(self, message: Message) -> bytes:
        return cleared(message.data, self._ignored)

    def _flat(self, message: Message) -> Flat | None:
        """Return the values of a message; None where it is damaged."""
        try:
            flat = flatten(message.event)
            valid = bool(message.event.valid)
        except UNREADABLE:
            return None
        flat.discrete.append(valid)
        if not flat.shape[0]:  # nothing of it is declared: its bytes are all there is
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
            noted.add(pattern)  # a frame counts once for each field
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
            # What has no measure counts as worst.
            worst = math.inf if math.isnan(score) else score
            self.tallies.add(Tally(finding, worst, message.position))


def _share(off: float, here: Discrete, there: Discrete) -> float:
    """Return a difference over the larger magnitude; NaN where it is none of integers."""
    if isinstance(here, int) and isinstance(there, int) and off > 0:
        return off / max(abs(here), abs(there))
    return math.nan


def _measured_times(fields: Fields) -> list[str]:
    """Return the fields that are cleared before bytes are compared: they differ in every run.

    Others that are ignored only cost a closer look.
    """
    names = ("modelExecutionTime", "gpuExecutionTime", "dspExecutionTime")
    return [name for name in names if fields.tolerance(name).ignore]
