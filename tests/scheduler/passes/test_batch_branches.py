"""Branches over stacked weights: one sum for all of them, with the same values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.batch_branches import MAX_MEMBERS, batch_branches
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import check, one, ops, text, weight

X = Tensor.input("x", (2, 6))


def head(x: Tensor, seed: int, width: int = 4) -> Tensor:
    return (x @ weight(x.shape[-1], width, seed=seed) + weight(width, seed=100 + seed)).relu()


def sums(roots: list[Node]) -> int:
    return sum(n.op is Op.REDUCE for n in toposort(roots))


@st.composite
def networks(draw: st.DrawFn) -> list[Node]:
    """Draw heads of one or two layers; some differ in bias, activation, width or input."""
    x = draw(st.sampled_from([X, X.exp(), X.reshape(1, 2, 6), X.max(1, keepdim=True) * X]))
    outputs: list[Tensor] = []
    for i in range(draw(st.integers(2, 6))):
        y = x
        for layer in range(draw(st.integers(1, 2))):
            width = draw(st.sampled_from([4, 4, 4, 3]))
            y = y @ weight(y.shape[-1], width, seed=10 * i + layer)
            bias = draw(st.sampled_from(["own", "own", "own", "shared", "none"]))
            if bias != "none":
                y = y + weight(width, seed=1000 + (i if bias == "own" else 0))
            act = draw(st.sampled_from(["relu", "relu", "gelu", "none"]))
            y = y.relu() if act == "relu" else y.gelu() if act == "gelu" else y
        outputs.append(y)
    if draw(st.booleans()):
        return [Tensor.cat(outputs, -1).node]
    return [y.node for y in outputs]


@settings(max_examples=300)
@given(networks())
def test_networks_keep_their_values(roots: list[Node]) -> None:
    found = check(batch_branches, roots)
    assert sums(found) <= sums(roots)


def test_ten_heads_are_one_sum() -> None:
    heads = Tensor.cat([head(X, i) for i in range(10)], 1)
    found = one(batch_branches, heads)
    assert sums([found]) == 1
    assert ops(found).count(Op.MAX) == 1


def test_second_layers_of_one_width_are_batched_too() -> None:
    heads = Tensor.cat([head(head(X, i), 20 + i, 3) for i in range(4)], 1)
    assert sums([one(batch_branches, heads)]) == 2


def test_second_layers_of_several_widths_read_slices() -> None:
    heads = Tensor.cat([head(head(X, i), 20 + i, 3 + i) for i in range(4)], 1)
    found = one(batch_branches, heads)
    assert sums([found]) == 1 + 4
    reads = [n for n in toposort([found]) if n.op is Op.SHRINK]
    assert [n.arg[0] for n in reads] == [(i, i + 1, 1) for i in range(4)]


def test_other_activations_go_their_own_way() -> None:
    outputs = [head(X, i) for i in range(3)] + [(X @ weight(6, 4, seed=9)).gelu()]
    found = one(batch_branches, Tensor.cat(outputs, 1))
    assert sums([found]) == 2


def test_more_members_than_one_batch_takes() -> None:
    outputs = Tensor.cat([X @ weight(6, 1, seed=i) for i in range(MAX_MEMBERS + 3)], 1)
    assert sums([one(batch_branches, outputs)]) == 2


def test_outputs_of_the_program_are_members() -> None:
    roots = [head(X, i).node for i in range(3)]
    found = check(batch_branches, roots)
    assert sums(found) == 1
    assert [r.shape for r in found] == [(2, 4)] * 3


def test_a_sum_that_others_read_ends_the_branch() -> None:
    plain = [X @ weight(6, 4, seed=i) for i in range(2)]
    found = check(batch_branches, [*[p.node for p in plain], *[p.relu().node for p in plain]])
    assert sums(found) == 1
    assert sum(n.op is Op.MAX for n in toposort(found)) == 2


WIDE = Tensor.input("wide", (64, 512))
KEPT: list[tuple[str, Callable[[], list[Tensor]]]] = [
    ("one branch", lambda: [head(X, 0)]),
    ("different widths", lambda: [head(X, i, 4 + i) for i in range(2)]),
    ("different data", lambda: [head(X, 0), head(X + 1.0, 1)]),
    ("no weights", lambda: [X @ Tensor.input(f"w{i}", (6, 4)) for i in range(2)]),
    ("large results", lambda: [WIDE @ weight(512, 257, seed=i) for i in range(2)]),
    ("much arithmetic", lambda: [WIDE @ weight(512, 80, seed=i) for i in range(2)]),
    ("maxima", lambda: [(X.unsqueeze(1) + weight(4, 6, seed=i)).max(-1) for i in range(2)]),
]


@pytest.mark.parametrize("build", [b for _, b in KEPT], ids=[n for n, _ in KEPT])
def test_left_alone(build: Callable[[], list[Tensor]]) -> None:
    roots = [t.node for t in build()]
    assert all(old is new for old, new in batch_branches(roots).items())


def test_the_names_of_all_members_stay() -> None:
    roots, origins = [head(X, i).node for i in range(2)], Origins()
    origins.name([X.node], ())
    for i, root in enumerate(roots):
        origins.name(toposort([root])[:-1], (f"head{i}",))
        origins.name([root], (f"relu{i}",))
    new = batch_branches(roots)
    origins.follow(new)
    order = toposort([new[r] for r in roots])
    (batched,) = (n for n in order if n.op is Op.REDUCE)
    assert origins.of(batched) == ("head0", "head1")
    (end,) = (n for n in order if n.op is Op.MAX)
    assert origins.of(end) == ("relu0", "relu1")
    assert {origins.of(new[r]) for r in roots} == {()}  # a view, which its reader computes


GOLDEN = """\
%0 = buffer input x : float32[2, 6]
%1 = reshape (2, 1, 6) (%0) : float32[2, 1, 6]
%2 = reshape (1, 2, 1, 6) (%1) : float32[1, 2, 1, 6]
%3 = expand (2, 2, 4, 6) (%2) : float32[2, 2, 4, 6]
%4 = buffer weight : float32[2, 6, 4]
%5 = permute (0, 2, 1) (%4) : float32[2, 4, 6]
%6 = reshape (2, 1, 4, 6) (%5) : float32[2, 1, 4, 6]
%7 = expand (2, 2, 4, 6) (%6) : float32[2, 2, 4, 6]
%8 = mul (%3, %7) : float32[2, 2, 4, 6]
%9 = reduce add axes 3 (%8) : float32[2, 2, 4, 1]
%10 = reshape (2, 2, 4) (%9) : float32[2, 2, 4]
%11 = buffer weight : float32[2, 4]
%12 = reshape (2, 1, 4) (%11) : float32[2, 1, 4]
%13 = expand (2, 2, 4) (%12) : float32[2, 2, 4]
%14 = add (%10, %13) : float32[2, 2, 4]
%15 = const 0.0 : float32[]
%16 = reshape (1, 1) (%15) : float32[1, 1]
%17 = reshape (1, 1, 1) (%16) : float32[1, 1, 1]
%18 = expand (2, 2, 4) (%17) : float32[2, 2, 4]
%19 = max (%14, %18) : float32[2, 2, 4]
%20 = shrink ((0, 1, 1), (0, 2, 1), (0, 4, 1)) (%19) : float32[1, 2, 4]
%21 = reshape (2, 4) (%20) : float32[2, 4]
%22 = shrink ((1, 2, 1), (0, 2, 1), (0, 4, 1)) (%19) : float32[1, 2, 4]
%23 = reshape (2, 4) (%22) : float32[2, 4]
%24 = cat 1 (%21, %23) : float32[2, 8]
return %24"""


def test_text_before_and_after() -> None:
    y = Tensor.cat([head(X, 0), head(X, 1)], 1)
    assert text(one(batch_branches, y)) == GOLDEN
    assert text(y.node).count("reduce") == 2
