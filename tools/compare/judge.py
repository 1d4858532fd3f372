"""Pairs of messages of one service judged: what differs, by how much, and how it adds up."""

from __future__ import annotations

from cereal.errors import MessageError
from cereal.schema import DAMAGED
from tools.compare.align import Message, Pair
from tools.compare.fields import Flat, Layout, Place, Shape, flatten, layout_of
from tools.compare.findings import FieldSeries, FieldStatistics, FindingKind
from tools.compare.layouts import Fields, PairLayout, pair_layout
from tools.compare.numbers import Numbers
from tools.compare.tally import Order, Tallies, Tally, shown
from tools.compare.tolerances import Tolerances
from tools.lib.message_values import has_field


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
        self._zeroed = _measured_times(service, self._fields)
        self._layouts: dict[tuple[Shape, Shape], PairLayout] = {}
        self._numbers = Numbers(self._fields, self.tallies, bit_exact=tolerances.bit_exact)
        self._order = Order()

    def compare(self, pair: Pair) -> None:
        """Compare one pair of messages."""
        left, right = pair.left, pair.right
        self._order.add(pair, self.tallies)
        same = left.data == right.data or self._canonical(left) == self._canonical(right)
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

    def _canonical(self, message: Message) -> bytes:
        """Return the message's bytes without what is ignored; its own where it is damaged."""
        try:
            builder = message.event.as_builder()
            builder.logMonoTime = 0
            body = getattr(builder, self._service) if self._zeroed else None
            for name in self._zeroed:
                setattr(body, name, 0)
            return bytes(builder.to_bytes())
        except DAMAGED:
            return message.data

    def _flat(self, message: Message) -> Flat | None:
        """Return the values of a message; None where it is damaged."""
        try:
            flat = flatten(message.event)
            valid = bool(message.event.valid)
        except (MessageError, *DAMAGED):
            return None
        flat.discrete.append(valid)
        if not flat.shape[0]:  # nothing of it is declared: its bytes are all there is
            flat.discrete.append(self._canonical(message))
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
            if type(here) is int and type(there) is int:
                size = max(abs(here), abs(there))
                if abs(here - there) <= max(tolerance.absolute, tolerance.relative * size):
                    continue
            noted.add(place.pattern)
            texts = (shown(here), shown(there))
            where = (place.pattern, place.exact)
            self.tallies.add_discrete("value", where, message, texts, tolerance.text)


def _measured_times(service: str, fields: Fields) -> list[str]:
    """Return the fields that are ignored by default: measured times stand at the top of messages.

    Only these are cleared before bytes are compared; others that are ignored cost a closer look.
    """
    return [
        name
        for name in ("modelExecutionTime", "gpuExecutionTime", "dspExecutionTime")
        if has_field(service, name) and fields.tolerance(name).ignore
    ]
