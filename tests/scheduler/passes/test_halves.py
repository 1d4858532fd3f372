"""Exact halves: what a kernel has in a register is what another one reads from memory."""

from collections.abc import Callable

import numpy as np
import pytest

from runtime import run_once
from scheduler.compile import compile_plain
from scheduler.context import EXACT, HALVES, CompileContext, context_for
from scheduler.ir import dtype as dt
from scheduler.ir.node import is_weight, toposort
from scheduler.ir.rounding import rounds
from scheduler.onnx_import import from_proto
from scheduler.onnx_import.element_types import BFLOAT16
from scheduler.passes.halves.half_arithmetic import exact_halves
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.support.programs import Array, compute, load
from tests.support.selection import quick_cases

LONG = 65536
EXACTLY = CompileContext(halves=EXACT)


def values(seed: int, count: int = LONG) -> Array:
    """Halves of both signs between 2^-6 and 2^4."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(2.0**-6, 16.0, count) * rng.choice([-1.0, 1.0], count)
    return np.asarray(size.astype(np.float16))


# --- what is compared with a reduction of itself --------------------------------------------------


def test_places_of_extremes_of_computed_halves() -> None:
    """Each of inputs of its own: what two of them share would be stored."""
    given = {name: values(seed) for seed, name in enumerate("abcdef", 1)}
    a, b, c, d, e, f = (Tensor.input(name, (LONG,), dt.float16) for name in given)
    quotients = c / d
    count = quotients.eq(quotients.max()).cast(dt.int32).sum()
    with load({"most": (a * b).argmax(), "least": (e * f).argmin(), "count": count}) as program:
        found = program.run(given)
        # numpy rounds each product to half
        assert found["most"] == (given["a"] * given["b"]).argmax()
        assert found["least"] == (given["e"] * given["f"]).argmin()
        quotient = given["c"] / given["d"]
        assert found["count"] == (quotient == quotient.max()).sum() > 0


def test_operators_on_places_of_computed_halves() -> None:
    a, b = values(5).reshape(1, -1), values(6).reshape(1, -1)
    types = dict.fromkeys(("ArgMax", "ArgMin"), "int64[1,1]") | {"Hardmax": f"float16[1,{LONG}]"}
    given = {f"{name}{op}": value for op in types for name, value in (("a", a), ("b", b))}
    inputs = ", ".join(f"float16[1,{LONG}] {name}" for name in given)
    outputs = ", ".join(f"{kind} {op}" for op, kind in types.items())
    nodes = " ".join(f"p{op} = Mul(a{op}, b{op}) {op} = {op}<axis = 1>(p{op})" for op in types)
    made = compile_plain(from_proto(parsed(f"({inputs}) => ({outputs}) {{ {nodes} }}")))
    found = run_once(made.manifest, made.data, given)
    most, least = (a * b).argmax(), (a * b).argmin()
    assert (found["ArgMax"].item(), found["ArgMin"].item()) == (most, least)
    assert found["Hardmax"].sum() == found["Hardmax"][0, most] == 1


Step = Callable[[Tensor, Tensor], Tensor]
# Of halves within 2^-10 to 2^10 the sums of 8 are exact in float32, and so in any order.
STEPS: tuple[Step, ...] = (
    lambda x, y: x + y,
    lambda x, y: x - y * 0.3,
    lambda x, y: x * y,
    lambda x, y: x / (y.abs() + 1.5),
    lambda x, y: (x * 0.7) * 1.3 + y / 3.0,
    lambda x, y: (x > y).where(x * 0.1, y),
    lambda x, y: x.abs().sqrt().maximum(y),
    lambda x, y: x.eq(x.max(-1, keepdim=True)).where(x, y),
    lambda x, y: x.clip(-7, 7).round().sum(-1, keepdim=True) + y,
    lambda x, y: (x * 3.1).max(-1, keepdim=True) - y.flip(0),
    lambda x, y: (x / 7.0).floor() * 0.37 + y,
    lambda x, y: x.argmax(-1, keepdim=True).cast(y.dtype) + x * y,
)
FUNCTIONS: tuple[Step, ...] = (
    *STEPS,
    lambda x, y: x.clip(-4, 4).exp() - y,
    lambda x, y: x.tanh() * y,
    lambda x, y: x.sigmoid() + y.sin(),
    lambda x, y: x.softmax() * y,
)


def program(
    steps: tuple[Step, ...], seed: int, given: tuple[Tensor, Tensor], cut: Callable[[int], bool]
) -> Tensor:
    """Return a chain of random steps on the last few values, stored in between where asked for."""
    rng = np.random.default_rng(seed)
    made = list(given)
    for i in range(10):
        step = steps[rng.integers(len(steps))]
        x, y = (made[-1 - rng.integers(min(4, len(made)))] for _ in range(2))
        result = step(x, y).clip(-900, 900)
        made.append(result.contiguous() if cut(i) else result)
    return made[-1] + made[-2] + given[0] * given[1]


CUTS: tuple[Callable[[int], bool], ...] = (
    lambda _: False,
    lambda _: True,
    lambda i: i % 2 == 0,
    lambda i: i % 3 == 1,
)


def bfloat16(value: Array) -> Array:
    return (value.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


QUICK = ("float16-5",)
CUT = [*(f"float16-{seed}" for seed in range(6)), *(f"bfloat16-{seed}" for seed in range(3))]


@pytest.mark.parametrize("case", quick_cases(CUT, *QUICK))
def test_values_do_not_depend_on_where_kernels_are_cut(case: str) -> None:
    kind, digit = case.split("-")
    seed, brain = int(digit), kind == "bfloat16"
    steps = STEPS if seed % 2 and not brain else FUNCTIONS
    data = [values(s, 264).reshape(33, 8) for s in (seed, seed + 9)]
    outputs: dict[str, Tensor] = {}
    given: dict[str, Array] = {}
    for k, cut in enumerate(CUTS):
        names = [f"{n}{k}" for n in "xy"]
        given |= {n: bfloat16(v) if brain else v for n, v in zip(names, data, strict=True)}
        x, y = (Tensor.input(n, (33, 8), dt.uint16 if brain else dt.float16) for n in names)
        ends = (BFLOAT16.decode(x), BFLOAT16.decode(y)) if brain else (x, y)
        result = program(steps, seed, ends, cut)
        outputs[f"out{k}"] = BFLOAT16.encode(result) if brain else result
    wide, exact = (cuts_agree(outputs, given, halves) for halves in HALVES)
    assert brain or (wide != exact).any()
    if steps is STEPS:
        np.testing.assert_array_equal(exact, outputs["out0"].interp(given))


def cuts_agree(outputs: dict[str, Tensor], given: dict[str, Array], halves: str) -> Array:
    with load(outputs, context=context_for(halves=halves)) as loaded:
        found = {n: v.copy() for n, v in loaded.run(given).items()}
    for name, value in found.items():
        np.testing.assert_array_equal(value, found["out0"], err_msg=name)
    return found["out0"]


def test_each_operation_rounds_and_a_sum_once() -> None:
    x = Tensor.input("x", (3,), dt.float16)
    third = np.array([1, 2, 3], np.float16) / np.float16(3)  # numpy rounds it to half
    sixth = (third.astype(np.float32) * np.float32(np.float16(0.7))).astype(np.float16)
    got = ((x / 3) * 0.7).interp({"x": np.array([1, 2, 3], np.float16)})
    np.testing.assert_array_equal(got, sixth)
    ones = Tensor.input("x", (4096,), dt.float16)  # 2048 + 1 is 2048 in halves
    assert ones.sum().interp({"x": np.ones(4096, np.float16)}) == 4096
    assert compute(ones.sum(), x=np.ones(4096, np.float16)) == 4096


def test_no_node_computes_in_halves_after_the_pass() -> None:
    x = Tensor.input("x", (8, 8), dt.float16)
    y = (x @ x + x.softmax()).gelu().mean(1) + (x * x).sum(1)
    (made,) = run_passes([y.node], EXACTLY)
    assert not [n for n in toposort([made]) if n.dtype is dt.float16 and rounds(n)]
    data = {"x": values(0, 64).reshape(8, 8)}
    (explicit,) = evaluate([Tensor.of(exact_halves([y.node])[y.node])], data)
    np.testing.assert_array_equal(explicit, y.interp(data))


FUNCTIONS_OF_HALVES: tuple[Callable[[Tensor], Tensor], ...] = (
    *(Tensor.softmax, Tensor.gelu, Tensor.layernorm, Tensor.silu),
    *(lambda x: x @ x.transpose(), lambda x: x.var(1), lambda x: x % 0.3, lambda x: x**3),
)


@pytest.mark.parametrize("function", FUNCTIONS_OF_HALVES)
def test_functions_of_halves_are_rounded_once(function: Callable[[Tensor], Tensor]) -> None:
    data = {"x": values(7, 64).reshape(8, 8)}
    x = Tensor.input("x", (8, 8), dt.float16)
    got, exact = function(x), function(x.float())
    assert got.dtype is dt.float16
    np.testing.assert_array_equal(got.interp(data), exact.interp(data).astype(np.float16))


def test_the_mean_of_many_halves() -> None:
    def column() -> Tensor:
        return Tensor(np.array([[0.0], [0.5], [2.0]], np.float16)).broadcast_to((3, 70_001))

    ones = np.ones(3_000_000, np.float16)
    mean, variance = Tensor(ones).mean(), Tensor(ones).var()
    total, means = column().sum(1), column().mean(1)
    mean.realize(variance, total, means)
    assert (mean.item(), variance.item()) == (1, 0)
    assert total.tolist() == np.array([0, 35_000.5, np.inf], np.float16).tolist()
    assert means.tolist() == [0, 0.5, 2]


def test_a_weight_of_halves_stays_one() -> None:
    weight = Tensor.weight(values(8, 4096).reshape(64, 64))
    product = Tensor.input("x", (4, 64), dt.float16) @ (weight.transpose() + 0)
    stored = [n for n in toposort(run_passes([product.node], EXACTLY)) if is_weight(n)]
    assert [(n.dtype, n.shape) for n in stored] == [(dt.float16, (64, 64))]


def test_doubles_become_the_nearest_halves() -> None:
    tie = 1 + 2.0**-11  # halfway between two halves; what is a little above it is a float no more
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-40, 65519.999999, 65520.0])
    x = np.concatenate([x, [0.0, -0.0, 1e-60, np.inf, -np.inf, np.nan, 1e300, 3 * 2.0**-26]])
    x = np.resize(x, 42)
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    found = compute(Tensor.input("x", x.shape, dt.float64).half(), x=x)
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(np.signbit(found[:12]), np.signbit(want[:12]))


@pytest.mark.opencl
@pytest.mark.parametrize("meaning", HALVES)
def test_bits_of_all_halves_and_back(meaning: str) -> None:
    """Denormal ones, infinities and zeros of both signs; every NaN becomes one of them."""
    bits = np.arange(LONG, dtype=np.uint16)
    given = {"x": bits.view(np.float16), "b": bits}
    x, b = Tensor.input("x", (LONG,), dt.float16), Tensor.input("b", (LONG,), dt.uint16)
    outputs = {
        "bits": x.bitcast(dt.uint16),
        "signed": x.relu().bitcast(dt.int16),
        "halves": b.bitcast(dt.float16),
        "again": b.bitcast(dt.float16).bitcast(dt.uint16),
        "doubled": (x + x).bitcast(dt.uint16),
    }
    with load(outputs, context=context_for(halves=meaning)) as program:
        found = program.run(given)
    is_number = ~np.isnan(given["x"])
    np.testing.assert_array_equal(found["bits"][is_number], bits[is_number])
    np.testing.assert_array_equal(found["again"][is_number], bits[is_number])
    np.testing.assert_array_equal(found["halves"], given["x"])
    np.testing.assert_array_equal(np.signbit(found["halves"]), np.signbit(given["x"]))
    positive = is_number & ~np.signbit(given["x"])
    np.testing.assert_array_equal(found["signed"][positive], bits[positive].view(np.int16))
    assert (found["signed"][is_number & ~positive] & 0x7FFF == 0).all()
    # What is beyond the largest half is an infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        doubled = (given["x"] + given["x"]).view(np.uint16)
    np.testing.assert_array_equal(found["doubled"][is_number], doubled[is_number])
    assert set(found["bits"][~is_number]) == {0x7E00, 0xFE00}
