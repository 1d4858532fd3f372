"""Narrowing: what nobody reads is not computed, and what is read stays the same."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.ir.boxes import MOVES, Box, cut, rebuild, sizes, source_box, whole
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.passes.push_slices import push_slices
from scheduler.tensor.tensor import Tensor
from tests.fuzz.graphs import programs
from tests.fuzz.networks import stack
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import check, index, one, ops, sliced, text, values, weight

X = Tensor.input("x", (25, 8))


@settings(max_examples=300)
@given(programs(14), st.integers(0, 2**32 - 1))
def test_cut_programs_keep_their_values(program: Program, seed: int) -> None:
    check(push_slices, sliced(program, seed), program.inputs)


@settings(max_examples=80)
@given(st.integers(0, 2**32 - 1))
def test_cut_networks_keep_their_values(seed: int) -> None:
    outputs, inputs = stack(seed)
    choice = Random(seed)  # noqa: S311  # a test program, not a secret
    roots = [t[..., -choice.randint(1, t.shape[-1]) :].node for t in outputs.values()]
    check(push_slices, roots, inputs)


def test_nothing_changes_where_all_is_read() -> None:
    y = (X @ weight(8, 4)).relu().node
    z = (X.sum(0) * 2.0).node
    assert push_slices([y, z]) == {y: y, z: z}


def largest(node: Node) -> dict[Op, int]:
    """Return the largest number of elements that nodes of each op have."""
    found: dict[Op, int] = {}
    for n in toposort([node]):
        found[n.op] = max(found.get(n.op, 0), int(np.prod(n.shape)))
    return found


def inputs_of(node: Node) -> set[str]:
    return {n.arg.name for n in toposort([node]) if n.op is Op.BUFFER}


LAST = [
    ("elementwise", lambda x: (x.exp() + 1.0)[24:]),
    ("a product", lambda x: (x @ weight(8, 4))[24:]),
    ("two layers", lambda x: ((x @ weight(8, 4)).relu() @ weight(4, 6, seed=1))[24:]),
    ("a norm", lambda x: x.layernorm()[24:]),
    ("a reversed axis", lambda x: x.sqrt().flip(0)[:1]),
    ("padding", lambda x: x.sqrt().pad([(2, 0), (0, 0)])[26:]),
    ("a reshape", lambda x: x.sqrt().reshape(5, 5, 8)[4:, 4:]),
    ("a transposition", lambda x: x.sqrt().T[:, 24:]),
    ("windows", lambda x: x.sqrt().window(0, 1, 1, 1)[24:]),
    ("a pin", lambda x: (x.sqrt().contiguous() * 2.0)[24:]),
    ("a gather of columns", lambda x: x.sqrt().gather(index(3, 1, 3), 1)[24:]),
    ("a kept axis", lambda x: x.reshape(25, 2, 4).sum(1)[24:]),
]


@pytest.mark.parametrize("build", [b for _, b in LAST], ids=[n for n, _ in LAST])
def test_only_the_last_of_25_rows_is_computed(build: Callable[[Tensor], Tensor]) -> None:
    before, after = build(X).node, one(push_slices, build(X))
    for op, count in largest(after).items():
        if op not in MOVES and op is not Op.BUFFER:
            assert count * 8 <= max(64, largest(before)[op]), f"{op} is still of {count} elements"
    assert sum(largest(after).values()) < sum(largest(before).values())


def test_sources_of_a_concat_that_nobody_reads_are_gone() -> None:
    y = Tensor.input("y", (25, 8))
    z = Tensor.input("z", (25, 8))
    concat = Tensor.cat([X.exp(), y.exp(), z.exp()])
    assert inputs_of(one(push_slices, concat[20:40])) == {"x", "y"}
    within = one(push_slices, concat[30:40])
    assert inputs_of(within) == {"y"}
    assert Op.CAT not in ops(within)


def test_what_reads_only_padding_becomes_the_fill() -> None:
    assert ops(one(push_slices, X.pad([(3, 0), (0, 0)], 2.0)[:3] + 1.0)).count(Op.BUFFER) == 0


def test_readers_of_different_parts_share_one_node() -> None:
    y = X.exp() * 2.0
    first, second = check(push_slices, [(y[3:5] + 1.0).node, (y[4:8] - 1.0).node])
    assert sum(n.op is Op.EXP for n in toposort([first, second])) == 1
    assert largest(first)[Op.EXP] == 5 * 8


def test_most_of_a_tensor_is_all_of_it() -> None:
    y = (X @ weight(8, 4))[1:]
    assert push_slices([y.node])[y.node] is y.node


def test_an_output_keeps_its_shape_though_others_read_a_part() -> None:
    y = X.exp()
    full, part = check(push_slices, [y.node, (y[:2] * 3.0).node])
    assert full is y.node
    assert part.shape == (2, 8)


def test_a_state_is_written_whole_though_a_part_of_it_is_read() -> None:
    queue = Tensor.state("q", (25, 8))
    after = queue.assign(Tensor.cat([queue[1:], X[:1]]) * 2.0)
    write, read = check(push_slices, [after.node, (after[24:] + 1.0).node])
    assert write is after.node
    assert Op.ASSIGN in ops(read)


def test_text_before_and_after() -> None:
    y = (X.exp() @ weight(8, 4))[24:]
    before, after = text(y.node), text(one(push_slices, y))
    assert before == (
        "%0 = buffer input x : float32[25, 8]\n"
        "%1 = exp (%0) : float32[25, 8]\n"
        "%2 = reshape (25, 1, 8) (%1) : float32[25, 1, 8]\n"
        "%3 = expand (25, 4, 8) (%2) : float32[25, 4, 8]\n"
        "%4 = buffer weight : float32[8, 4]\n"
        "%5 = permute (1, 0) (%4) : float32[4, 8]\n"
        "%6 = reshape (1, 4, 8) (%5) : float32[1, 4, 8]\n"
        "%7 = expand (25, 4, 8) (%6) : float32[25, 4, 8]\n"
        "%8 = mul (%3, %7) : float32[25, 4, 8]\n"
        "%9 = reduce add axes 2 (%8) : float32[25, 4, 1]\n"
        "%10 = reshape (25, 4) (%9) : float32[25, 4]\n"
        "%11 = shrink ((24, 25, 1), (0, 4, 1)) (%10) : float32[1, 4]\n"
        "return %11"
    )
    assert after == (
        "%0 = buffer input x : float32[25, 8]\n"
        "%1 = shrink ((24, 25, 1), (0, 8, 1)) (%0) : float32[1, 8]\n"
        "%2 = exp (%1) : float32[1, 8]\n"
        "%3 = reshape (1, 1, 8) (%2) : float32[1, 1, 8]\n"
        "%4 = expand (1, 4, 8) (%3) : float32[1, 4, 8]\n"
        "%5 = buffer weight : float32[8, 4]\n"
        "%6 = permute (1, 0) (%5) : float32[4, 8]\n"
        "%7 = reshape (1, 4, 8) (%6) : float32[1, 4, 8]\n"
        "%8 = mul (%4, %7) : float32[1, 4, 8]\n"
        "%9 = reduce add axes 2 (%8) : float32[1, 4, 1]\n"
        "%10 = reshape (1, 4) (%9) : float32[1, 4]\n"
        "return %10"
    )


# --- boxes ------------------------------------------------------------------------------------

I = Tensor.input("i", (6, 10), dt.int32)  # noqa: E741  # an image of distinct numbers
MOVED = [
    ("reshape", I.reshape(60)),
    ("reshape apart", I.reshape(2, 3, 5, 2)),
    ("reshape across", I.reshape(4, 15)),
    ("reshape with ones", I.reshape(1, 6, 1, 10, 1)),
    ("permute", I.T),
    ("expand", I.reshape(6, 1, 10).expand(6, 4, 10)),
    ("shrink", I[1:6:2, 3:]),
    ("flip", I.flip(1)),
    ("pad", I.pad([(2, 1), (0, 3)], 7)),
    ("window", I.window(1, 3, 2, 2)),
]


@given(st.sampled_from([t for _, t in MOVED]), st.data())
def test_a_box_of_movement_is_movement_of_a_box(tensor: Tensor, data: st.DataObject) -> None:
    node, box = tensor.node, list[tuple[int, int]]()
    for size in tensor.shape:
        start = data.draw(st.integers(0, size - 1))
        box.append((start, data.draw(st.integers(start + 1, size))))
    read = source_box(node, tuple(box))
    source = node.src[0]
    part = source if read is None else cut(source, whole(source.shape), read)
    found = rebuild(node, tuple(box), part)
    numbers = {"i": np.arange(60, dtype=np.int32).reshape(6, 10)}
    expected, got = values([cut(node, whole(node.shape), tuple(box)), found], numbers)
    np.testing.assert_array_equal(got, expected)


EXPRESSIBLE: list[tuple[Tensor, Box, Box]] = [
    (I.reshape(60), ((20, 30),), ((2, 3), (0, 10))),
    (I.reshape(60), ((21, 29),), ((2, 3), (1, 9))),
    (I.reshape(60), ((25, 35),), ((2, 4), (0, 10))),
    (I.reshape(2, 3, 10), ((1, 2), (2, 3), (4, 6)), ((5, 6), (4, 6))),
    (I.reshape(2, 3, 10), ((0, 2), (2, 3), (4, 6)), ((0, 6), (4, 6))),
    (I.reshape(4, 15), ((1, 2), (0, 15)), ((0, 3), (0, 10))),
]


@pytest.mark.parametrize(("tensor", "box", "read"), EXPRESSIBLE)
def test_boxes_through_a_reshape(tensor: Tensor, box: Box, read: Box) -> None:
    assert source_box(tensor.node, box) == read
    assert sizes(read) == tuple(stop - start for start, stop in read)
