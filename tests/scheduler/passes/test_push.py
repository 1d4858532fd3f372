"""Slices and gathers move towards what they read: what nobody reads is not computed."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.affine import depends, index_of, ranges_of, tensor_of, value_at
from scheduler.ir.movement import MOVES, Box, cut, rebuild, sizes, source_box, whole
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import push_slices
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.scheduler.passes.pass_check import (
    Build,
    check,
    check_row,
    index,
    one,
    ops,
    row,
    rows,
    values,
    weight,
)

X, Y, Z = (Tensor.input(name, (25, 8)) for name in "xyz")
I = Tensor.input("i", (3,), dt.int32)  # noqa: E741  # an index


def largest(node: Node) -> dict[Op, int]:
    found: dict[Op, int] = {}
    for n in toposort([node]):
        found[n.op] = max(found.get(n.op, 0), int(np.prod(n.shape)))
    return found


LAST: dict[str, Callable[[Tensor], Tensor]] = {
    "elementwise": lambda x: (x.exp() + 1.0)[24:],
    "a product": lambda x: (x @ weight(8, 4))[24:],
    "two layers": lambda x: ((x @ weight(8, 4)).relu() @ weight(4, 6, seed=1))[24:],
    "a norm": lambda x: x.layernorm()[24:],
    "a reversed axis": lambda x: x.sqrt().flip(0)[:1],
    "padding": lambda x: x.sqrt().pad([(2, 0), (0, 0)])[26:],
    "a reshape": lambda x: x.sqrt().reshape(5, 5, 8)[4:, 4:],
    "a transposition": lambda x: x.sqrt().T[:, 24:],
    "windows": lambda x: x.sqrt().window(0, 1, 1, 1)[24:],
    "a pin": lambda x: (x.sqrt().contiguous() * 2.0)[24:],
    "a gather of columns": lambda x: x.sqrt().gather(index(3, 1, 3), 1)[24:],
    "a kept axis": lambda x: x.reshape(25, 2, 4).sum(1)[24:],
}


@pytest.mark.parametrize("name", LAST)
def test_only_the_last_of_25_rows_is_computed(name: str) -> None:
    before, after = LAST[name](X).node, one(push_slices, LAST[name](X))
    for op, count in largest(after).items():
        if op not in MOVES and op is not Op.BUFFER:
            assert count * 8 <= max(64, largest(before)[op]), f"{op} is still of {count} elements"
    assert sum(largest(after).values()) < sum(largest(before).values())


def xyz() -> Tensor:
    return Tensor.cat([X.exp(), Y.exp(), Z.exp()])


@rows(
    row("all that is read", lambda: [(X @ weight(8, 4)).relu(), X.sum(0) * 2.0]),
    row("most of a tensor", lambda: (X @ weight(8, 4))[1:]),
    row("two sources of three", lambda: xyz()[20:40], BUFFER=2, CAT=1),
    row("one source of three", lambda: xyz()[30:40], BUFFER=1, CAT=0),
    row("padding alone", lambda: X.pad([(3, 0), (0, 0)], 2.0)[:3] + 1.0, BUFFER=0),
)
def test_what_is_left_of_slices(build: Build, counts: Mapping[str, int]) -> None:
    check_row(push_slices, build, counts)


def test_readers_of_different_parts_share_one_node() -> None:
    y = X.exp() * 2.0
    first, second = check(push_slices, [(y[3:5] + 1.0).node, (y[4:8] - 1.0).node])
    assert ops(first, second).count(Op.EXP) == 1
    assert largest(first)[Op.EXP] == 5 * 8


def test_words_of_stored_bytes_are_cut_and_not_their_bytes() -> None:
    """Other readers of the bytes want another part, which need not be whole words."""
    stored = make(Op.CONTIGUOUS, dt.uint8, (X.clip(0.0, 9.0).cast(dt.uint8).node,))
    words = Tensor.of(make(Op.WORDS, dt.uint32, (stored,)))
    wanted = [words[3:5, :1].node, (Tensor.of(stored)[4:8, 1:6] + 1).node]
    new = push_slices(wanted)
    verify(list(new.values()), "the pass")
    fed = {"x": np.arange(200, dtype=np.float32).reshape(25, 8) / 16.0}
    for node in wanted:
        assert largest(new[node])[Op.CONTIGUOUS] == 5 * 8
        np.testing.assert_array_equal(Tensor.of(new[node]).interp(fed), Tensor.of(node).interp(fed))


def test_an_output_and_a_state_are_whole_though_others_read_a_part() -> None:
    y = X.exp()
    full, part = check(push_slices, [y.node, (y[:2] * 3.0).node])
    assert full is y.node
    assert part.shape == (2, 8)
    queue = Tensor.state("q", (25, 8))
    after = queue.assign(Tensor.cat([queue[1:], X[:1]]) * 2.0)
    write, read = check(push_slices, [after.node, (after[24:] + 1.0).node])
    assert write is after.node
    assert Op.ASSIGN in ops(read)


IMAGE = Tensor.input("image", (6, 10), dt.int32)
MOVED = (
    *(IMAGE.reshape(s) for s in ((60,), (2, 3, 5, 2), (4, 15), (1, 6, 1, 10, 1))),
    *(IMAGE.T, IMAGE.reshape(6, 1, 10).expand(6, 4, 10), IMAGE[1:6:2, 3:], IMAGE.flip(1)),
    *(IMAGE.pad([(2, 1), (0, 3)], 7), IMAGE.window(1, 3, 2, 2)),
)


@given(st.sampled_from(MOVED), st.data())
def test_a_box_of_movement_is_movement_of_a_box(tensor: Tensor, data: st.DataObject) -> None:
    node, box = tensor.node, list[tuple[int, int]]()
    for size in tensor.shape:
        start = data.draw(st.integers(0, size - 1))
        box.append((start, data.draw(st.integers(start + 1, size))))
    read = source_box(node, tuple(box))
    source = node.src[0]
    part = source if read is None else cut(source, whole(source.shape), read)
    found = rebuild(node, tuple(box), part)
    numbers = {"image": np.arange(60, dtype=np.int32).reshape(6, 10)}
    expected, got = values([cut(node, whole(node.shape), tuple(box)), found], numbers)
    np.testing.assert_array_equal(got, expected)


EXPRESSIBLE: list[tuple[tuple[int, ...], Box, Box]] = [
    ((60,), ((20, 30),), ((2, 3), (0, 10))),
    ((60,), ((21, 29),), ((2, 3), (1, 9))),
    ((60,), ((25, 35),), ((2, 4), (0, 10))),
    ((2, 3, 10), ((1, 2), (2, 3), (4, 6)), ((5, 6), (4, 6))),
    ((2, 3, 10), ((0, 2), (2, 3), (4, 6)), ((0, 6), (4, 6))),
    ((4, 15), ((1, 2), (0, 15)), ((0, 3), (0, 10))),
]


@pytest.mark.parametrize(("shape", "box", "read"), EXPRESSIBLE)
def test_boxes_through_a_reshape(shape: tuple[int, ...], box: Box, read: Box) -> None:
    assert source_box(IMAGE.reshape(shape).node, box) == read
    assert sizes(read) == tuple(stop - start for start, stop in read)


N = 10
TABLE = Tensor.input("x", (N, 4))
ROW = Tensor.input("r", (1, 4))
DATA = np.random.default_rng(3).standard_normal((N, 4)).astype(np.float32)


def data_of_gathers(node: Node) -> set[Op]:
    """Return what gathers read, below movement."""
    found = set[Op]()
    for n in toposort([node]):
        if n.op is Op.GATHER:
            data = n.src[0]
            while data.op in (Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP):
                data = data.src[0]
            found.add(data.op)
    return found


BELOW: dict[str, Callable[[], Tensor]] = {
    "a chain": lambda: (TABLE.exp() * 2.0 + 1.0).gather(I),
    "several operands": lambda: (TABLE * Tensor.input("y", (N, 4)) + ROW).gather(I),
    "moved": lambda: (TABLE.exp() + ROW).T.reshape(2, 2, N).gather(I, 2),
    "repeated": lambda: TABLE.exp().reshape(N, 1, 4).expand(N, 3, 4).gather(I, 1),
    "columns": lambda: TABLE.tanh().gather(index(3, 0), 1),
    "an index of two axes": lambda: TABLE.exp().gather(Tensor.input("k", (2, 1), dt.int64)),
}


@pytest.mark.parametrize("name", BELOW)
def test_a_gather_moves_below_arithmetic(name: str) -> None:
    inputs = {"x": DATA, "i": np.array([1, -1, 0], np.int32)}
    inputs["k"] = np.array([[-N], [3]], np.int64)
    node = BELOW[name]().node
    new = push_gather([node])[node]
    verify([new], "push_gather")
    before, after = values([node, new], inputs)
    assert after.tobytes() == before.tobytes()
    assert data_of_gathers(new) <= {Op.BUFFER, Op.IOTA}


def shared() -> Tensor:
    value = TABLE.exp()
    return value.gather(I).sum() + value.sum()


@rows(
    row("more than there is", lambda: TABLE.exp().gather(Tensor.input("k", (11,), dt.int32))),
    row("expensive and needed elsewhere", shared),
    row("a reduction", lambda: (TABLE @ weight(4, 4)).relu().gather(I)),
    row("what depends on weights only", lambda: Tensor.weight(DATA).exp().gather(I)),
    row("nothing computed", lambda: TABLE.T.gather(index(2, 0))),
)
def test_a_gather_stays(build: Build, counts: Mapping[str, int]) -> None:
    check_row(push_gather, build, counts)


@given(st.integers(0, 2**32 - 1))
def test_an_affine_expression_is_the_values_of_its_tensor(seed: int) -> None:
    draw = Draw(seed)
    shape = (draw.integer(1, 4), draw.integer(1, 5), draw.integer(1, 3))
    ranges = ranges_of(shape)
    ix = ixs.constant(draw.integer(-9, 9))
    for r in ranges:
        ix = ixs.add(ix, ixs.mul(ixs.of(r), draw.integer(-3, 3)))
    node = tensor_of(ix, ranges, shape)
    grid = np.indices(shape)
    want = np.full(shape, ix.const)
    for atom, factor in ix.terms:
        want = want + factor * grid[ranges.index(atom)]
    np.testing.assert_array_equal(values([node], {})[0], want)
    assert value_at(node, index_of(ranges)) is ix


def test_values_that_are_not_affine() -> None:
    ranges = ranges_of((4,))
    at, iota = index_of(ranges), Tensor.arange(4)
    unknown = (iota * iota, index(0, 1, 3, 4), iota.float() + 0.5, Tensor.input("k", (4,)))
    for tensor in (*unknown, iota * 0.5):
        assert value_at(tensor.node, at) is None
    falling = ixs.add(ixs.constant(7), ixs.mul(ixs.of(ranges[0]), -2))
    assert value_at(index(7, 5, 3, 1).node, at) is falling


def test_axes_that_values_depend_on() -> None:
    ranges, column = ranges_of((N, 4)), Tensor.input("c", (N, 1))
    mixed = TABLE.T.T + column.expand(N, 4)
    assert depends(mixed.node, index_of(ranges)) == set(ranges)
    assert depends(column.exp().expand(N, 4).node, index_of(ranges)) == {ranges[0]}
