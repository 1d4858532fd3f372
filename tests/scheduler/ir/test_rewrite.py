"""Rules rewrite a graph until nothing changes: its form, never a bit of the value."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import Node, make
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule
from scheduler.passes.canonicalize import RULES
from scheduler.tensor.tensor import Tensor

NUMBERS = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 1e-42, 3e38]
X = Tensor.input("x", (len(NUMBERS),))
N = Tensor.input("n", (4,), dt.int32)


def canonical(*tensors: Tensor) -> list[Node]:
    new = Rewriter(RULES)([t.node for t in tensors])
    return [new[t.node] for t in tensors]


SCALARS = st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 2.0**-120, math.inf, math.nan])


@settings(max_examples=200)
@given(st.sampled_from(["add", "radd", "sub", "mul", "rmul", "div"]), SCALARS)
def test_arithmetic_with_any_constant_keeps_every_special_value(name: str, c: float) -> None:
    y = getattr(X, f"__{name if name != 'div' else 'truediv'}__")(c)
    given = {X.node.arg: np.array(NUMBERS, np.float32)}
    old, new = (interp.evaluate([n], given)[0] for n in (y.node, canonical(y)[0]))
    # The payload and sign of a NaN are the processor's business.
    assert np.array_equal(np.isnan(old), np.isnan(new))
    assert old[~np.isnan(old)].tobytes() == new[~np.isnan(new)].tobytes()


GONE: list[tuple[str, Tensor, Tensor]] = [
    ("x * 1", X * 1.0, X),
    ("x - 0", X - 0.0, X),
    ("x + -0", X + -0.0, X),
    ("x / 1", X / 1.0, X),
    ("n + 0", N + 0, N),
    ("0 + n", 0 + N, N),
    ("two permutations", X.reshape(3, 3).T.T.reshape(9), X),
    ("there and back", N.float().half().float(), N.float().half().float()),
    ("narrow to wide and back", N.cast(dt.int64).cast(dt.int32), N),
    ("a condition that holds", Tensor(True).broadcast_to((9,)).where(X, 0.0), X),
    ("two pins", X.contiguous().contiguous(), X.contiguous()),
]


# Nodes: what another test realizes becomes data in every tensor that lives.
@pytest.mark.parametrize(
    ("given_", "left"), [(g[1].node, g[2].node) for g in GONE], ids=[g[0] for g in GONE]
)
def test_what_does_nothing_goes_away(given_: Node, left: Node) -> None:
    assert Rewriter(RULES)([given_])[given_] is left


STAYS = [
    ("x + 0 turns -0 into 0", X + 0.0),
    ("x * 0 is not 0 for nan", X * 0.0),
    ("x - -0 turns -0 into 0", X - -0.0),
    ("x / 3 is not x * (1/3)", X / 3.0),
    ("a float does not survive int32", X.int().float()),
    ("int32 does not survive float32", N.float().int()),
]


@pytest.mark.parametrize("node", [s[1].node for s in STAYS], ids=[s[0] for s in STAYS])
def test_what_is_not_exact_stays(node: Node) -> None:
    assert Rewriter(RULES)([node])[node] is node


def test_division_by_a_power_of_two_becomes_multiplication() -> None:
    (node,) = canonical(X / 8.0)
    assert node.op is Op.MUL
    (node,) = canonical(X / 2.0**-120)
    assert node.op is Op.DIV, "its inverse is beyond what stays exact"


def test_rules_that_undo_each_other_are_named() -> None:
    rules = (
        Rule("add to sub", (Op.ADD,), lambda n: make(Op.SUB, n.dtype, n.src)),
        Rule("sub to add", (Op.SUB,), lambda n: make(Op.ADD, n.dtype, n.src)),
    )
    with pytest.raises(SchedulerError, match=r"do not terminate.*add to sub.*sub to add"):
        Rewriter(rules)([(X + X.flip(0)).node])
    swap = Rule("swap", (Op.ADD,), lambda n: make(n.op, n.dtype, n.src[::-1]))
    with pytest.raises(SchedulerError, match=r"do not terminate.*swap"):
        Rewriter([swap])([(X + X.flip(0)).node])


def test_a_rule_sees_only_its_operations() -> None:
    seen: list[Op] = []
    look = Rule("look", (Op.MUL, Op.REDUCE), lambda n: seen.append(n.op))
    Rewriter([look])([(X * X.flip(0) + 1.0).sum().node])
    assert sorted(op.name for op in seen) == ["MUL", "REDUCE"]


def test_rules_run_until_nothing_changes_and_count_their_hits() -> None:
    a = Tensor.input("a", (4, 6))
    y = a.exp()
    for _ in range(5):
        y = (y.T.T.reshape(24).reshape(4, 6) * 1.0).clone().clone()
    rewriter = Rewriter(RULES)
    new = rewriter([y.node])[y.node]
    # Each layer comes down to what is below it, so all boundaries become one.
    assert new is a.exp().contiguous().node
    assert rewriter.hits["double contiguous"] == 9
    assert rewriter.hits["neutral element"] == 5
    assert rewriter.hits["merge permutes"] >= 5
    again = Rewriter(RULES)
    assert again([new])[new] is new
    assert not again.hits
