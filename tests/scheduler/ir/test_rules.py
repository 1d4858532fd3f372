"""Rules rewrite a graph until nothing changes."""

from __future__ import annotations

import pytest

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node, make
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule
from scheduler.passes.canonicalize import RULES
from tests.scheduler.support.programs import x


def test_rules_run_until_nothing_changes_and_count_their_hits() -> None:
    a = x(4, 6)
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


def test_a_rule_sees_only_its_operations() -> None:
    seen: list[Op] = []

    def look(node: Node) -> Node | None:
        seen.append(node.op)
        return None

    Rewriter([Rule("look", (Op.MUL, Op.REDUCE), look)])([(x(4) * x(4, name="b") + 1.0).sum().node])
    assert sorted(op.name for op in seen) == ["MUL", "REDUCE"]


def test_rules_that_undo_each_other_are_named() -> None:
    def turn(node: Node) -> Node:
        return make(Op.NEG if node.op is Op.ABS else Op.ABS, node.dtype, node.src)

    with pytest.raises(SchedulerError, match=r"do not come to an end.*there and back"):
        Rewriter([Rule("there and back", (Op.ABS, Op.NEG), turn)])([x(4).abs().node])
