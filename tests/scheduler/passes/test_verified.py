"""Graphs are verified before, between and after passes."""

from collections.abc import Mapping, Sequence

import pytest

from scheduler import pipeline
from scheduler.context import CompileContext
from scheduler.errors import VerifyError
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make
from scheduler.ir.ops import Op
from tests.scheduler.support.programs import x
from tests.scheduler.support.verified import Verified

BROKEN = r"after broken: <SQRT int32\[4\]>.*needs a float type"


def _break(roots: Sequence[Node]) -> Mapping[Node, Node]:
    """Put an integer under the root of a float: no shape rule sees it."""
    wrong = make(Op.CAST, dt.int32, (roots[0],))
    return {r: make(Op.SQRT, dt.int32, (wrong,)) for r in roots}


def test_every_pass_is_verified_in_these_tests() -> None:
    passes = pipeline.passes(CompileContext())
    assert passes
    assert all(isinstance(apply, Verified) for _, apply in passes)
    with pytest.raises(VerifyError, match=BROKEN):
        Verified("broken", _break)([x(4).exp().node])


@pytest.mark.parametrize("debug", [0, 1])
def test_a_pass_that_breaks_the_graph_is_found(monkeypatch: pytest.MonkeyPatch, debug: int) -> None:
    """With DEBUG the pass is named; in release the graph is verified once, after all passes."""
    listed, broken = pipeline.passes, ("broken", _break)
    first, last = ((broken,), ()) if debug else ((), (broken,))
    monkeypatch.setattr(pipeline, "passes", lambda c: (*first, *listed(c), *last))
    with pytest.raises(VerifyError, match=BROKEN if debug else "SQRT"):
        pipeline.schedule({"y": x(4).exp().node}, context=CompileContext(flags=Flags(debug=debug)))


def test_a_broken_graph_is_refused_before_the_first_pass() -> None:
    wrong = make(Op.MOD, dt.float32, (x(4).node, x(4, name="b").node))
    with pytest.raises(VerifyError, match="MOD needs an integer type"):
        pipeline.schedule({"y": wrong})
