"""Elementwise consumers are computed in the slot of a hand-written kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scheduler import CustomKernel, custom_kernel
from scheduler.debug.kernel_table import source_of
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import compute, floats, program_of, x
from tests.scheduler.tensor.custom_programs import F32, check, kinds, scaled

pytestmark = pytest.mark.opencl


def test_an_elementwise_consumer_is_computed_in_the_slot() -> None:
    """Operands: a buffer of the shape, a row, a column of weights, a position, a constant."""
    column = Tensor.weight(floats(8, 1, seed=2))
    position = Tensor.arange(4).cast(F32)
    y = scaled(x(8, 4)) + x(8, 4, name="b")
    z = (y * x(4, name="row") + column + position).relu().exp() * 0.5
    made = program_of(z)
    assert kinds(made) == ["custom"]
    assert made.stored == []
    given = {"x": floats(8, 4), "b": floats(8, 4, seed=1), "row": floats(4, seed=3)}
    check(made, [z], **given)
    (launch,) = made.table.launches
    assert launch.origin[0] == "scale"
    assert launch.bytes_moved == 4 * (32 + 32 + 32 + 4 + 8 + 4)
    assert launch.flops > 0


@pytest.mark.parametrize("kind", dt.ALL, ids=str)
def test_the_slot_takes_every_type(kind: dt.DType) -> None:
    """A bool in a register is 0 or 1, a half is a float."""
    value = "vload_half(i, in0)" if kind is dt.float16 else "in0[i]"
    source = f"int i = get_global_id(0);\nEPILOGUE({value}, i);"
    kernel = CustomKernel("copy", source, [((3, 5), kind)], 15, lambda v: v)
    given = Tensor.input("x", (3, 5), kind)
    (y,) = custom_kernel(kernel, given)
    (again,) = custom_kernel(kernel, y)  # no consumer but another launch
    z = again.cast(F32) * 2.0 + 1.0
    made = program_of(z)
    assert kinds(made) == ["custom", "custom"]
    values = floats(3, 5) > 0 if kind is dt.bool_ else np.abs(floats(3, 5) * 9)
    check(made, [z], x=values.astype(kind.np))


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_half_in_the_slot_is_what_would_be_stored(lanes: int) -> None:
    read = "vload_half(i, in0)" if lanes == 1 else "vload_half4(i, in0)"
    source = f"int i = get_global_id(0);\nEPILOGUE({read} * 0.3f, i * {lanes});"
    outputs = [((3, 8), dt.float16)]
    kernel = CustomKernel(
        "third", source, outputs, 24 // lanes, lambda v: v * np.float32(0.3), lanes=lanes
    )
    (y,) = custom_kernel(kernel, Tensor.input("x", (3, 8), dt.float16))
    z = y.float() * 4096.0
    assert kinds(program_of(z)) == ["custom"]
    values = floats(3, 8).astype(np.float16)
    want = (values.astype(np.float32) * np.float32(0.3)).astype(np.float16)
    np.testing.assert_array_equal(compute(z, x=values), want.astype(np.float32) * 4096)


def test_the_epilogue_knows_where_it_is() -> None:
    kernel = CustomKernel(
        "ints",
        "int i = get_global_id(0); EPILOGUE(in0[i] * 3, i);",
        [((4, 6), dt.int32)],
        24,
        lambda v: v * 3,
    )
    (y,) = custom_kernel(kernel, Tensor.input("x", (4, 6), dt.int32))
    z = y + Tensor.arange(6) - Tensor.arange(4).unsqueeze(1)
    edge = z.pad([(1, 1), (0, 0)], 7)[1:5] + Tensor.input("b", (2, 6), dt.int32).pad(
        [(2, 0), (0, 0)]
    )
    made = program_of(edge)
    assert kinds(made) == ["custom"]
    rng = np.random.default_rng(3)
    given = {n: rng.integers(-9, 9, s, np.int32) for n, s in (("x", (4, 6)), ("b", (2, 6)))}
    check(made, [edge], **given)


def test_a_slot_of_one_element() -> None:
    total = CustomKernel(
        "total",
        "float s = 0; for (int i = 0; i < 4; i++) s += in0[i]; EPILOGUE(s, 0);",
        [((), F32)],
        1,
        np.sum,
    )
    (y,) = custom_kernel(total, x(4))
    z = (y * x(name="b")).exp().reshape(1, 1)
    made = program_of(z)
    assert kinds(made) == ["custom"]
    check(made, [z], x=floats(4), b=floats())


def test_without_a_consumer_the_slot_stores_the_value() -> None:
    y = scaled(x(8))
    made = program_of(y)
    assert kinds(made) == ["custom"]
    assert "epilogue_value" in source_of(made.manifest, made.table.launches[0].kernel)
    check(made, [y], x=floats(8))


def test_the_epilogue_may_change_type_and_shape() -> None:
    y = (scaled(x(8, 4)) > 1.0).reshape(4, 8)
    z = scaled(x(6, name="b")).cast(dt.int32) + 1
    made = program_of(y, z)
    assert kinds(made) == ["custom", "custom"]
    assert made.stored == []
    check(made, [y, z], x=floats(8, 4), b=floats(6, seed=1))


def test_other_outputs_are_stored_beside_the_epilogue() -> None:
    pair = CustomKernel(
        "pair",
        "int i = get_global_id(0); out1[i] = in0[i] + 1; EPILOGUE(in0[i] * 2, i);",
        [((8,), F32), ((8,), F32)],
        8,
        lambda v: (v * 2, v + 1),
    )
    first, second = custom_kernel(pair, x(8))
    apart = [first.relu(), second * 3.0]
    made = program_of(*apart)
    assert kinds(made) == ["custom", "map"]
    check(made, apart, x=floats(8))
    both = first * second  # reads two outputs of one launch
    made = program_of(both)
    assert kinds(made) == ["custom", "map"]
    check(made, [both], x=floats(8))


def test_a_slot_of_vectors() -> None:
    """Operands: a buffer of the shape, a row of weights, a column, a position, another type."""
    source = (
        "const int i = get_global_id(0) * 4;\nconst float4 a = vload4(0, in0 + i);\n"
        "EPILOGUE(m_fma(a, a, a), i);"
    )
    kernel = CustomKernel("square", source, [((3, 8), F32)], 6, lambda v: v * v + v, lanes=4)
    given = {"x": floats(3, 8), "b": floats(3, 8, seed=1), "column": floats(3, 1, seed=4)}
    row, column = Tensor.weight(floats(8, seed=2)), x(3, 1, name="column")
    (y,) = custom_kernel(kernel, x(3, 8))
    z = (y + x(3, 8, name="b") * row + column + Tensor.arange(8).cast(F32)).relu() > 1.5
    made = program_of(z)
    assert kinds(made) == ["custom"]
    check(made, [z], **given)
    (y,) = custom_kernel(kernel, x(3, 8))
    flat = y.reshape(4, 6).exp()  # rows of 6: vectors of 4 would reach into the next one
    made = program_of(y, flat)
    assert kinds(made) == ["custom", "map"]
    check(made, [y, flat], x=given["x"])


def test_vectors_divide_the_last_axis() -> None:
    with pytest.raises(ModelError, match="lanes out of"):
        CustomKernel("wide", "EPILOGUE((float4)(0), 0);", [((3, 6), F32)], 1, lanes=4)


def reduced(y: Tensor) -> list[Tensor]:
    return [y.sum(1)]


def read_twice(y: Tensor) -> list[Tensor]:
    return [y.relu(), y.exp().sum(0)]


def also_an_output(y: Tensor) -> list[Tensor]:
    return [y, y.relu()]


def transposed(y: Tensor) -> list[Tensor]:
    return [y.T + x(4, 8, name="b")]


def shifted(y: Tensor) -> list[Tensor]:
    return [y.pad([(1, 0), (0, 0)]).exp()]


def masked(y: Tensor) -> list[Tensor]:
    return [y[:7].pad([(0, 1), (0, 0)]).exp()]


def gathered(y: Tensor) -> list[Tensor]:
    rows = Tensor.input("i", (8,), dt.int32)
    return [y + x(16, 4, name="d").gather(rows, 0)]


def flipped(y: Tensor) -> list[Tensor]:
    return [y.flip(0) + y]


def repeated(y: Tensor) -> list[Tensor]:
    return [y.unsqueeze(0).broadcast_to((3, 8, 4)).exp() + x(3, 8, 4, name="c")]


def pinned(y: Tensor) -> list[Tensor]:
    return [y.contiguous().exp()]


@pytest.mark.parametrize(
    "use",
    [reduced, read_twice, also_an_output, transposed, shifted, masked, gathered, flipped, repeated],
    ids=lambda f: f.__name__,
)
def test_other_consumers_stay_apart(use: Any) -> None:
    outputs = use(scaled(x(8, 4)))
    made = program_of(*outputs)
    assert len(kinds(made)) > 1
    assert kinds(made).count("custom") == 1
    given = {"x": floats(8, 4), "b": floats(4, 8, seed=1), "c": floats(3, 8, 4, seed=2)}
    given |= {"d": floats(16, 4, seed=3), "i": np.arange(8, dtype=np.int32)[::-1] * 2}
    names = {b.name for b in made.plan.inputs}
    check(made, outputs, **{n: v for n, v in given.items() if n in names})


def test_nothing_is_fused_across_a_boundary_that_was_asked_for() -> None:
    (y,) = pinned(scaled(x(8, 4)))
    made = program_of(y)
    assert kinds(made) == ["custom", "map"]
    check(made, [y], x=floats(8, 4))
    (z,) = pinned(scaled(x(8, 4), slot=False))
    assert kinds(program_of(z)) == ["custom", "map"]


def test_no_epilogue_that_waits_for_its_own_launch() -> None:
    pair = CustomKernel(
        "pair",
        "int i = get_global_id(0); out1[i] = in0[i] + 1; EPILOGUE(in0[i] * 2, i);",
        [((8,), F32), ((8,), F32)],
        8,
        lambda v: (v * 2, v + 1),
    )
    first, second = custom_kernel(pair, x(8))
    y = first + second.max(0).contiguous()
    made = program_of(y)
    assert kinds(made) == ["custom", "reduce", "map"]
    check(made, [y], x=floats(8))


def test_custom_kernels_in_a_chain_each_have_their_epilogue() -> None:
    y = scaled(scaled(x(8, 4)).relu() + 1.0).exp()
    z = y.sum(1)
    made = program_of(z)
    assert kinds(made) == ["custom", "custom", "reduce"]
    check(made, [z], x=floats(8, 4))


def test_an_operand_of_the_epilogue_runs_first() -> None:
    table = x(64, name="w").reshape(8, 8).sum(1).contiguous()
    y = scaled(x(8)) + table
    made = program_of(y)
    assert kinds(made) == ["reduce", "custom"]
    check(made, [y], x=floats(8), w=floats(64, seed=1))


def test_a_matrix_product_by_hand_with_bias_and_activation() -> None:
    """The case it is for: a kernel of the vendor's, and what comes after it in one launch."""
    source = """
    /* one row per work-item } */
    const int row = get_global_id(0);
    for (int column = 0; column < 12; column++) {
      float acc = 0.0f;
      for (int k = 0; k < 16; k++)
        acc += in0[row * 16 + k] * in1[k * 12 + column];  // in7 is not read
      if (column >= 0)
        EPILOGUE(acc, row * 12 + column);
    }
    """
    product = CustomKernel("product", source, [((8, 12), F32)], 8, np.matmul, flops=2 * 8 * 12 * 16)
    weight = Tensor.weight(floats(16, 12, seed=1))
    (y,) = custom_kernel(product, x(8, 16), weight)
    z = (y + x(12, name="b")).relu() + x(8, 12, name="residual")
    made = program_of(z)
    assert kinds(made) == ["custom"]
    assert made.table.launches[0].flops > 2 * 8 * 12 * 16
    check(made, [z], x=floats(8, 16), b=floats(12, seed=2), residual=floats(8, 12, seed=3))
