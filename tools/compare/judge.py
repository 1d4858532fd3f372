"""Pairs of messages of one service judged: what differs, by how much, and how it adds up."""

from __future__ import annotations

from cereal.schema import DAMAGED, content
from tools.compare.align import Message, Pair
from tools.compare.fields import Flat, Layout, Node, Place, Shape, flatten, layout_of, member_node
from tools.compare.findings import FieldSeries, FieldStatistics, FindingKind
from tools.compare.layouts import Fields, PairLayout, pair_layout
from tools.compare.numbers import Numbers
from tools.compare.tally import Order, Tallies, Tally, shown
from tools.compare.tolerances import Tolerances

_VALID = Place(".valid", ".valid")


class ServiceJudge:
    """Compares the messages of one service.

    Args:
        service: name of the Event member.
        tolerances: what may differ.
    """

    def __init__(self, service: str, tolerances: Tolerances) -> None:
        self.tallies = Tallies(service)
        self._service = service
        self._node = member_node(service)
        self._fields = Fields(service, tolerances)
        self._zeroed = _zeroed(self._node, self._fields)
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
        layout = self._layout(tuple(one.shape), tuple(other.shape))
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
            if self._node is None:  # nothing of it is declared: its bytes are all there is
                flat = Flat(discrete=[self._canonical(message)])
            else:
                flat = flatten(self._node, content(message.event))
            flat.discrete.append(bool(message.event.valid))
        except DAMAGED:
            return None
        return flat

    def _layout(self, left: Shape, right: Shape) -> PairLayout:
        key = (left, right)
        found = self._layouts.get(key)
        if found is None:
            found = pair_layout(self._places(left), self._places(right), self._fields)
            self._layouts[key] = found
        return found

    def _places(self, shape: Shape) -> Layout:
        if self._node is None:
            return Layout(discrete=[Place("", ""), _VALID])
        layout = layout_of(self._node, shape)
        layout.discrete.append(_VALID)
        return layout

    def _compare_shapes(self, layout: PairLayout, message: Message) -> None:
        for place, here, there in layout.lengths:
            kind: FindingKind = "type" if isinstance(here, str) else "length"
            texts = (str(here), str(there))
            self.tallies.add_discrete(kind, (place.pattern, place.exact), message, texts)

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
            noted.add(place.pattern)  # a frame counts once for each field
            texts = (shown(here), shown(there))
            where = (place.pattern, place.exact)
            self.tallies.add_discrete("value", where, message, texts, tolerance.text)


def _zeroed(node: Node | None, fields: Fields) -> list[str]:
    """Return the plain fields that are ignored: measured times stand at the top of messages."""
    if node is None or node.kind != "struct":
        return []
    return [
        name
        for name, member in node.members
        if member.kind in ("number", "wide") and fields.tolerance(name).ignore
    ]
