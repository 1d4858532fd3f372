"""Requirements R01 to R10: the graph, its rules, and what has to be stored."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from scheduler import pipeline
from scheduler.context import CompileContext
from scheduler.errors import SchedulerError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir import node as nodes
from scheduler.ir.node import Node, const, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule
from scheduler.passes.canonicalize import RULES
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, Made, floats, program_of, same, values_of, x
from tests.scheduler.support.verified import Verified

# --- R01: immutable, interned graph -----------------------------------------------------------


def test_r01_a_program_written_twice_is_one_graph() -> None:
    a, w = x(8, 16), Tensor.weight(floats(16, 4))

    def head() -> Tensor:
        return ((a @ w).relu() * 0.5).softmax()

    assert head().node is head().node
    once, twice = program_of(head().flip(0)), program_of(head().flip(0) + head())
    assert twice.launches <= once.launches + 1
    assert twice.source.count("exp(") <= 2 * once.source.count("exp(")


def test_r01_what_differs_is_told_apart() -> None:
    a = x(3)
    assert (a + 0.0).node is not (a + -0.0).node
    assert const(1, dt.int32) is not const(True, dt.bool_)
    assert const(float("nan"), dt.float32) is const(float("nan"), dt.float32)
    assert a.node is not x(3).node  # two inputs, though they have one name
    assert a.sum(0).node is not a.max(0).node


def test_r01_a_million_paths_are_as_many_nodes_as_there_are_operations() -> None:
    y = x(4)
    for _ in range(40):
        y = y + y
    assert len(toposort([y.node])) == 41


def test_r01_nodes_nobody_holds_are_let_go() -> None:
    gc.collect()
    before = len(nodes._interned)
    y = x(4)
    for i in range(100):
        y = y * float(i + 2)
    assert len(nodes._interned) >= before + 200
    del y
    gc.collect()
    assert len(nodes._interned) <= before


# --- R02: rewrite rules to a fixpoint ---------------------------------------------------------


def test_r02_rules_run_until_nothing_changes_and_count_their_hits() -> None:
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


def test_r02_a_rule_sees_only_its_operations() -> None:
    seen: list[Op] = []

    def look(node: Node) -> Node | None:
        seen.append(node.op)
        return None

    Rewriter([Rule("look", (Op.MUL, Op.REDUCE), look)])([(x(4) * x(4, name="b") + 1.0).sum().node])
    assert sorted(op.name for op in seen) == ["MUL", "REDUCE"]


def test_r02_rules_that_undo_each_other_are_named() -> None:
    def turn(node: Node) -> Node:
        return make(Op.NEG if node.op is Op.ABS else Op.ABS, node.dtype, node.src)

    with pytest.raises(SchedulerError, match=r"do not come to an end.*there and back"):
        Rewriter([Rule("there and back", (Op.ABS, Op.NEG), turn)])([x(4).abs().node])


# --- R04: verified after every pass -----------------------------------------------------------


def _break(roots: Sequence[Node]) -> Mapping[Node, Node]:
    """Put an integer under the root of a float: no shape rule sees it."""
    wrong = make(Op.CAST, dt.int32, (roots[0],))
    return {r: make(Op.SQRT, dt.int32, (wrong,)) for r in roots}


def test_r04_every_pass_is_verified_in_these_tests() -> None:
    passes = pipeline.passes(CompileContext())
    assert passes
    assert all(isinstance(apply, Verified) for _, apply in passes)
    with pytest.raises(VerifyError, match=r"after broken: <SQRT int32\[4\]>.*needs a float type"):
        Verified("broken", _break)([x(4).exp().node])


def test_r04_debug_names_the_pass_that_breaks_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUG", "1")
    listed = pipeline.passes
    monkeypatch.setattr(pipeline, "passes", lambda c: (("broken", _break), *listed(c)))
    with pytest.raises(VerifyError, match=r"after broken: <SQRT int32\[4\]>.*needs a float type"):
        pipeline.schedule({"y": x(4).exp().node})


def test_r04_a_broken_last_pass_is_found_without_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    """In release the graph is verified once, after all passes."""
    monkeypatch.delenv("DEBUG", raising=False)
    listed = pipeline.passes
    monkeypatch.setattr(pipeline, "passes", lambda c: (*listed(c), ("broken", _break)))
    with pytest.raises(VerifyError, match="SQRT"):
        pipeline.schedule({"y": x(4).exp().node})


def test_r04_a_broken_graph_is_refused_before_the_first_pass() -> None:
    wrong = make(Op.MOD, dt.float32, (x(4).node, x(4, name="b").node))
    with pytest.raises(VerifyError, match="MOD needs an integer type"):
        pipeline.schedule({"y": wrong})


# --- R05: folding -----------------------------------------------------------------------------


@pytest.mark.opencl
def test_r05_what_depends_on_weights_only_is_computed_on_the_host() -> None:
    w, scale, bias = floats(16, 16), floats(16, seed=1), floats(16, seed=2)
    folded = (Tensor.weight(w) * Tensor.weight(scale)).softmax() @ Tensor.weight(w)
    made = program_of(x(4, 16) @ folded + (Tensor.weight(bias) * 2.0).exp())
    assert made.launches == 1
    assert "exp(" not in made.source
    e = np.exp(w * scale - (w * scale).max(-1, keepdims=True))
    want = floats(4, 16) @ ((e / e.sum(-1, keepdims=True)) @ w) + np.exp(bias * 2)
    same(values_of(made, x=floats(4, 16))[0], want)


def test_r05_neutral_elements_leave_no_operation() -> None:
    a = x(8, 8)
    plain = program_of(a.flip(0))
    assert program_of(((a * 1.0 - 0.0) / 1.0).flip(0).reshape(64).reshape(8, 8)).source == (
        plain.source
    )


@pytest.mark.opencl
def test_r05_reductions_of_nothing_are_the_neutral_element() -> None:
    nothing = x(3, 4)[:, :0]
    other, b = x(3, name="b"), floats(3)
    made = program_of(
        nothing.sum(1) + other, nothing.prod(1) + other, nothing.max(1).maximum(other)
    )
    for got, want in zip(values_of(made, x=floats(3, 4), b=b), (b, b + 1, b), strict=True):
        same(got, want)


@pytest.mark.opencl
def test_r05_an_output_without_elements_takes_no_kernel() -> None:
    made = program_of(x(3, 4)[:, :0] + 1.0)
    assert not made.manifest["kernels"]
    same(values_of(made, x=floats(3, 4))[0], np.zeros((3, 0), np.float32))


# --- R06: reductions over axes that only repeat -----------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_r06_a_repeated_axis_is_no_loop(name: str, axes: tuple[int, ...]) -> None:
    """All repeated axes and only those are left out: the collapse may be partial."""
    wide = x(4, 1, 8).broadcast_to((4, 5, 8))
    made = program_of(getattr(wide, name)(axes))
    assert made.launches == 1
    kept = tuple(s for a, s in enumerate((4, 5, 8)) if a in axes and a != 1)
    assert sorted(n for loop in made.loops for n in loop) == sorted(kept)
    a = np.broadcast_to(floats(4, 1, 8), (4, 5, 8))
    same(values_of(made, x=floats(4, 1, 8))[0], getattr(a, name)(axes), 1e-4)


@pytest.mark.opencl
def test_r06_a_product_over_a_repeated_axis_is_a_power() -> None:
    made = program_of(x(4, 1).broadcast_to((4, 3)).prod(1))
    same(values_of(made, x=floats(4, 1))[0], floats(4, 1)[:, 0] ** 3)


# --- R07: movements compose -------------------------------------------------------------------


@pytest.mark.opencl
def test_r07_a_chain_of_movements_is_one_index() -> None:
    def both(a: Tensor) -> Tensor:
        y = a.permute(2, 0, 1).reshape(6, 20).flip(1)[1:5, ::3]
        return y.T.reshape(2, 14)[:, ::-1].reshape(7, 4) + 1.0

    made = program_of(both(x(4, 5, 6)))
    assert made.launches == 1
    assert made.stored == []
    a = floats(4, 5, 6)
    y = np.flip(a.transpose(2, 0, 1).reshape(6, 20), 1)[1:5, ::3]
    same(values_of(made, x=a)[0], y.T.reshape(2, 14)[:, ::-1].reshape(7, 4) + 1)


def test_r07_movements_that_undo_each_other_leave_the_plain_index() -> None:
    a = x(4, 6, 8)
    turned = a.permute(2, 0, 1).flip((0, 2)).reshape(4 * 8, 6)
    back = turned.reshape(8, 4, 6).flip((0, 2)).permute(1, 2, 0)
    assert program_of(back * 2.0).source == program_of(a * 2.0).source


# --- R08, R09: padding is a masked read -------------------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("fill", [0.0, 1.0, -2.5])
def test_r08_padding_is_read_under_a_mask(fill: float) -> None:
    a, b = x(5, 7), x(8, 9, name="b")
    made = program_of(a.pad([(1, 2), (2, 0)], fill) * b)
    assert made.launches == 1
    assert made.stored == []
    v, w = floats(5, 7), floats(8, 9, seed=1)
    want = np.pad(v, ((1, 2), (2, 0)), constant_values=fill) * w
    same(values_of(made, x=v, b=w)[0], want)


UNSAFE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "log": (lambda t: t.log(), np.log),
    "reciprocal": (lambda t: t.reciprocal(), np.reciprocal),
    "exp": (lambda t: t.exp(), np.exp),
    "below": (lambda t: (t < 0.5).float(), lambda a: (a < 0.5).astype(np.float32)),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", UNSAFE)
def test_r09_what_does_not_map_zero_to_zero_is_padded_in_one_kernel(name: str) -> None:
    """The padding is the fill, not the function of a padded zero: no infinity is summed up."""
    ours, theirs = UNSAFE[name]
    made = program_of(ours(x(4, 4)).pad([(1, 1), (0, 2)], 1.0).sum(1))
    assert made.launches == 1
    a = floats(4, 4) + 1.5
    want = np.pad(theirs(a), ((1, 1), (0, 2)), constant_values=1).sum(1)
    same(values_of(made, x=a)[0], want)


# --- R10: what has to be stored ---------------------------------------------------------------


@pytest.mark.opencl
def test_r10_outputs_states_and_what_the_user_asks_for_are_stored() -> None:
    a, state = x(6, 6), Tensor.state("s", (6, 6))
    inner = a + 1.0
    pinned = (inner * 2.0).contiguous()
    push = state.assign(pinned.flip(0))
    made = program_of(inner, pinned.sum(0), writes=[push])
    assert ("float32", (6, 6)) in made.stored
    v = floats(6, 6)
    with made.load() as program:
        got = program.run({"x": v})
        same(got["y0"], v + 1)
        same(got["y1"], (v * 2 + 2).sum(0))
        same(program.state("s"), np.flip(v * 2 + 2, 0))


def test_r10_nothing_else_is() -> None:
    y = x(6, 6)
    for i in range(8):
        y = (y * 0.5 + float(i)).tanh().T
    assert program_of(y).stored == []


def test_r10_scheduling_computes_and_allocates_nothing() -> None:
    """Four gigabytes of intermediates are scheduled as fast as four kilobytes."""

    def scheduled(bits: int) -> tuple[float, Made]:
        started = time.perf_counter()
        wide = (x(2**bits, 1) * x(1, 2**bits, name="b")).reshape(2 ** (2 * bits))
        rows = wide[: 2 ** (2 * bits - 10)].reshape(2 ** (bits - 5), 2 ** (bits - 5))
        made = program_of(rows.sum(1))
        assert made.stored == []
        return time.perf_counter() - started, made

    rounds = [(scheduled(5), scheduled(15)) for _ in range(3)]
    assert min(large for _, (large, _) in rounds) < 10 * min(small for (small, _), _ in rounds)
    made = rounds[0][1][1]
    assert pickle.loads(pickle.dumps(made.manifest)) == made.manifest
