"""Wide halves: float32 in registers, rounded where a half is stored and where something decides."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.narrow_models import in_halves
from runtime import run_once
from scheduler.compile import compile_plain
from scheduler.context import EXACT, WIDE, CompileContext, context_for
from scheduler.device.spec import SPECS
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import is_weight, toposort
from scheduler.ir.ops import ROUNDED
from scheduler.onnx_import import from_proto, import_model
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_cases import CASES
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.onnx_import.test_ops import build
from tests.scheduler.support.programs import Array, compute, load, plan_of
from tests.support.selection import quick_cases


def values(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def network(x: Tensor, width: int = 64) -> Tensor:
    """A residual network of eight layers; its activations stay of order 1."""
    for seed in range(8):
        weight = Tensor.weight(values(seed, width, width) / np.float16(width**0.5))
        x = (x + (x @ weight).gelu() * 0.5).layernorm()
    return x


def errors(halves: str) -> float:
    """The largest error of the network, beside itself in float64."""
    given = {"x": values(99, 16, 64)}
    right = network(Tensor.input("x", (16, 64), dt.float64)).interp(
        {"x": given["x"].astype(np.float64)}
    )
    with load(
        {"y": network(Tensor.input("x", (16, 64), dt.float16))}, context=context_for(halves=halves)
    ) as p:
        return float(np.abs(p.run(given)["y"].astype(np.float64) - right).max())


def test_wide_is_nearer_to_float64_than_exact() -> None:
    wide, exact = errors(WIDE), errors(EXACT)
    # The output itself is rounded to half: 2^-10 for values of up to 4.
    assert wide <= 2.0**-10 < exact


def test_sums_may_leave_the_range_of_halves_on_the_way() -> None:
    given = np.full((4,), 60000, np.float16)
    x = Tensor.input("x", (4,), dt.float16)
    with load({"y": (x + x) / 2.0}, context=context_for(halves=WIDE)) as program:
        assert program.run({"x": given})["y"].tolist() == given.tolist()
    with load({"y": (x + x) / 2.0}, context=context_for(halves=EXACT)) as program:
        assert np.isinf(program.run({"x": given})["y"]).all()


DECIDING = {
    "ArgMax": "int64[1,1] y) { p = Mul(a, b) y = ArgMax<axis = 1>(p)",
    "Floor": "float16[1,4096] y) { p = Mul(a, b) y = Floor(p)",
    "Greater": "bool[1,4096] y) { p = Mul(a, b) q = Add(p, a) y = Greater(p, q)",
    "Cast": "int32[1,4096] y) { p = Mul(a, b) y = Cast<to = 6>(p)",
    "Equal": "bool[1,4096] y) { p = Mul(a, b) m = ReduceMax(p) y = Equal(p, m)",
}


@pytest.mark.parametrize("name", quick_cases(DECIDING, "ArgMax", "Cast"))
def test_what_decides_sees_the_halves_of_the_model(name: str) -> None:
    text = f"(float16[1,4096] a, float16[1,4096] b) => ({DECIDING[name]} }}"
    given = {n: values(s, 1, 4096) * np.float16(4) for s, n in enumerate("ab")}
    wide, exact = (
        compile_plain(from_proto(parsed(text)), halves=halves) for halves in (WIDE, EXACT)
    )
    found = [run_once(made.manifest, made.data, given)["y"] for made in (wide, exact)]
    np.testing.assert_array_equal(found[0], found[1])
    assert [made.manifest["metadata"]["halves"] for made in (wide, exact)] == [WIDE, EXACT]


def test_only_what_decides_is_rounded_and_signs_do_not() -> None:
    x, y = (Tensor.input(name, (8, 8), dt.float16) for name in "xy")

    def rounded(tensor: Tensor) -> int:
        nodes = toposort(run_passes([tensor.node], CompileContext(halves=WIDE)))
        return sum(n.dtype is dt.float16 and n.src[:1] != () for n in nodes)

    assert rounded((x * y + x).tanh() * y) == 1  # the output
    assert rounded(((x * y + x) < 0).where(x, y * 2.0)) == 1
    assert rounded((x * y).floor() + (x + y)) == 2
    assert rounded(((x * y) @ y).exp().cast(dt.int32)) == 2  # product of matrices, and its exp


def test_states_and_inputs_keep_their_type() -> None:
    state = Tensor.state("s", (4,), dt.float16)
    x = Tensor.input("x", (4,), dt.float16)
    write = state.assign(state * 0.5 + x * 3.0)
    with load({"y": state * 2.0}, [write], context_for(halves=WIDE)) as program:
        given = np.array([1.0, -0.1, 1000.0, 2e-7], np.float16)
        want = np.zeros(4, np.float16)
        for _ in range(3):
            program.run({"x": given})
            want = (want.astype(np.float32) * 0.5 + given.astype(np.float32) * 3).astype(np.float16)
        assert program.state("s").dtype == np.float16
        np.testing.assert_array_equal(program.state("s"), want)


@pytest.mark.parametrize("row", ["cpu", "gpu"])
def test_weights_stay_halves_where_that_costs_less(row: str) -> None:
    """A row of one position reads each weight once; of 512 it would convert each 512 times."""
    context = replace(context_for(SPECS[row]), halves=WIDE)

    def stored(rows: int) -> list[str]:
        weight = Tensor.weight(values(1, 64, 64))
        plan = plan_of({"y": Tensor.input("x", (rows, 64), dt.float16) @ weight}, context=context)
        loads = toposort(node for launch in plan.launches for node in launch.reads)
        return [node.dtype.name for node in loads if is_weight(node)]

    assert stored(1) == ["float16"]
    assert stored(512) == ["float32" if row == "cpu" else "float16"]


def test_infinities_in_weights_and_a_scale_of_zero() -> None:
    weight = np.array([np.inf, -np.inf, np.nan, 0.0, 65504.0, 6e-8], np.float16)
    x = Tensor.input("x", (6,), dt.float16)
    given = np.array([1.0, 2.0, 3.0, 0.0, 1.0, 1.0], np.float16)
    found = compute(x * Tensor.weight(weight), x=given)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found, given * weight)


def test_no_operator_but_a_cast_asks_for_a_rounding() -> None:
    """Translators that widen what they read end with halves that nobody has to see."""
    asked = set()
    for case in {(case.op, len(case.inputs)): case for case in CASES if not case.domain}.values():
        try:
            outputs = import_model(in_halves(build(case, folded=False)[0])).outputs
        except ModelError:  # no operator of halves
            continue
        for node in toposort([tensor.node for tensor in outputs.values()]):
            if node.arg == ROUNDED and node.src[0].dtype is dt.float32:
                asked.add(case.op)
    assert asked <= {"Cast", "CastLike"}
