"""Kernels written by hand: what is launched, and what is computed in their slot.

A row of the table says of which kinds the launches of a program are; the values of all programs
are compared with the interpreter at once.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from scheduler import CustomKernel, custom_kernel
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.render.device_check import Case, Given, all_of, check, closely
from tests.scheduler.support.programs import Array, Made, floats, program_of

F32 = dt.float32
ITEM = "int i = get_global_id(0); "
Shape = tuple[int, ...]


def by_hand(
    source: str,
    shape: Shape,
    reference: Callable[..., Array],
    *given: Tensor,
    kind: dt.DType = F32,
    items: int | None = None,
    lanes: int = 1,
    flops: int = 0,
) -> Tensor:
    """Return the output of a kernel of one work-item for each element, or of `items`."""
    count = items or int(np.prod(shape)) // lanes
    kernel = CustomKernel(
        "k", ITEM + source, [(shape, kind)], count, reference, lanes=lanes, flops=flops
    )
    return custom_kernel(kernel, *given)[0]


def scale(*shape: int, slot: bool = True, factor: float = 2.0) -> CustomKernel:
    """y = factor * x, one work-item per element."""
    store = "EPILOGUE(value, i);" if slot else "out0[i] = value;"
    source = f"{ITEM}const float value = {factor}f * in0[i];\n{store}"
    outputs, items = [(shape, F32)], int(np.prod(shape))
    return CustomKernel("scale", source, outputs, items, lambda v: v * np.float32(factor))


def scaled(t: Tensor, *, slot: bool = True) -> Tensor:
    return custom_kernel(scale(*t.shape, slot=slot), t)[0]


def pair(given: Tensor) -> tuple[Tensor, ...]:
    """2 x in the slot and x + 1 beside it, for 8 elements."""
    source = ITEM + "out1[i] = in0[i] + 1; EPILOGUE(in0[i] * 2, i);"
    outputs = [((8,), F32), ((8,), F32)]
    return custom_kernel(CustomKernel("pair", source, outputs, 8, lambda v: (v * 2, v + 1)), given)


SUMS = CustomKernel(
    "sums",
    "float s = 0; for (int i = 0; i < 4; i++) s += in0[i];\nout0[0] = s + 1; out1[0] = s * 2;",
    [((), F32), ((), F32)],
    1,
    lambda v: (v.sum() + 1, v.sum() * 2),
    flops=6,
)


def kinds(made: Made) -> str:
    return " ".join(launch.kind for launch in made.table.launches)


def every_operand(g: Given) -> Sequence[Tensor]:
    """A buffer of the shape, a row, a column of weights, a position, a constant."""
    column, position = Tensor.weight(floats(8, 1, seed=2)), Tensor.arange(4).cast(F32)
    y = scaled(g.floats(8, 4)) + g.floats(8, 4)
    return [(y * g.floats(4) + column + position).relu().exp() * 0.5]


def where_it_is(g: Given) -> Sequence[Tensor]:
    """Positions, and a part of it behind padding, with another operand behind padding."""
    y = by_hand("EPILOGUE(in0[i] * 3, i);", (4, 6), lambda v: v * 3, ints(g, 4, 6), kind=dt.int32)
    z = y + Tensor.arange(6) - Tensor.arange(4).unsqueeze(1)
    edge = z.pad([(1, 1), (0, 0)], 7)[1:5]
    return [edge + ints(g, 2, 6).pad([(2, 0), (0, 0)])]


def ints(g: Given, *shape: int) -> Tensor:
    return g(np.random.default_rng(3).integers(-9, 9, shape, np.int32))


def one_element(g: Given) -> Sequence[Tensor]:
    source = "float s = 0; for (int j = 0; j < 4; j++) s += in0[j]; EPILOGUE(s, 0);"
    return [(by_hand(source, (), np.sum, g.floats(4), items=1) * g.floats()).exp().reshape(1, 1)]


def squares(g: Given) -> tuple[Tensor, Tensor]:
    source = "i *= 4; const float4 a = vload4(0, in0 + i);\nEPILOGUE(m_fma(a, a, a), i);"
    given = g.floats(3, 8)
    return given, by_hand(source, (3, 8), lambda v: v * v + v, given, lanes=4)


def vectors(g: Given) -> Sequence[Tensor]:
    """A buffer of the shape, a row of weights, a column, a position, another type."""
    _, y = squares(g)
    y = y + g.floats(3, 8) * Tensor.weight(floats(8, seed=2)) + g.floats(3, 1)
    return [(y + Tensor.arange(8).cast(F32)).relu() > 1.5]


def short_rows(g: Given) -> Sequence[Tensor]:
    """Of 6: vectors of 4 would reach into the next one."""
    _, y = squares(g)
    return [y, y.reshape(4, 6).exp()]


def row_major(g: Given) -> Sequence[Tensor]:
    """The producer and the consumer would both like another order of axes."""
    source = "int r = i / 48, c = i % 48; out0[r * 48 + c] = in0[c * 16 + r];"
    transposed = (g.floats(16, 48) * 2.0).T.contiguous()
    return [by_hand(source, (16, 48), lambda v: v.T, transposed).T + 1.0]


def known_inputs(g: Given) -> Sequence[Tensor]:
    """They are made on the host."""
    given = (g.floats(8, 4), Tensor.weight(floats(4, 8)).T, Tensor(3.0), Tensor.full((8, 4), 1.0))
    source = "out0[i] = in0[i] + in1[i] * in2[0] + in3[i];"
    return [by_hand(source, (8, 4), lambda a, b, c, d: a + b * c + d, *given)]


def one_buffer_twice(g: Given) -> Sequence[Tensor]:
    given, source = g.floats(8), "EPILOGUE(in0[i] - 3 * in1[i], i);"
    reshaped = given.reshape(2, 4)
    y = by_hand(source, (8,), lambda a, b: a - 3 * b.reshape(8), given, reshaped)
    return [y * given + g.floats(8)]


def halves_and_bools(g: Given) -> Sequence[Tensor]:
    source = ITEM + "vstore_half(in0[i], i, out0); out1[i] = in0[i] > 0;"
    outputs = [((16,), dt.float16), ((16,), dt.bool_)]
    kernel = CustomKernel("k", source, outputs, 16, lambda v: (v.astype(np.float16), v > 0))
    given = g.floats(16)
    half, positive = custom_kernel(kernel, given)
    return [half.cast(F32) * 2.0, positive.where(given, 0.0)]


def matrix_product(g: Given) -> Sequence[Tensor]:
    """The case it is for: a kernel of the vendor's, and what comes after it in one launch."""
    source = """
    /* one row per work-item } */
    for (int column = 0; column < 12; column++) {
      float acc = 0.0f;
      for (int k = 0; k < 16; k++)
        acc += in0[i * 16 + k] * in1[k * 12 + column];  // in7 is not read
      if (column >= 0)
        EPILOGUE(acc, i * 12 + column);
    }
    """
    weight = Tensor.weight(floats(16, 12, seed=1))
    y = by_hand(source, (8, 12), np.matmul, g.floats(8, 16), weight, items=8, flops=3072)
    return [(y + g.floats(12)).relu() + g.floats(8, 12)]


def of_type(kind: dt.DType) -> Case:
    """A bool in a register is 0 or 1, a half is a float."""

    def made(g: Given) -> Sequence[Tensor]:
        values = floats(3, 5) > 0 if kind is dt.bool_ else np.abs(floats(3, 5) * 9)
        y, value = g(values.astype(kind.np)), "in0[i]"
        if kind is dt.float16:
            value = "vload_half(i, in0)"
        for _ in range(2):  # of the first one no consumer but another launch
            y = by_hand(f"EPILOGUE({value}, i);", (3, 5), lambda v: v, y, kind=kind)
        return [y.cast(F32) * 2.0 + 1.0]

    return made


def unread_output(g: Given) -> Sequence[Tensor]:
    given = g.floats(4)
    return [custom_kernel(SUMS, given)[1].reshape(1) + given]


def waiting(g: Given) -> Sequence[Tensor]:
    """No epilogue waits for its own launch."""
    first, second = pair(g.floats(8))
    return [first + second.max(0).contiguous()]


def beside(g: Given) -> Sequence[Tensor]:
    first, second = pair(g.floats(8))
    return [first.relu(), second * 3.0]


def both(g: Given) -> Sequence[Tensor]:
    """What reads two outputs of one launch."""
    first, second = pair(g.floats(8))
    return [first * second]


def consumer(use: Callable[[Tensor, Given], Sequence[Tensor]]) -> Case:
    return lambda g: use(scaled(g.floats(8, 4)), g)


ROWS8 = np.arange(8, dtype=np.int32)[::-1] * 2
# Kinds of launches, the program; of those in STORES what is stored between launches, too.
PROGRAMS: dict[str, tuple[str, Case]] = {
    "every operand": ("custom", every_operand),
    "where it is": ("custom", where_it_is),
    "one element": ("custom", one_element),
    "vectors": ("custom", vectors),
    "vectors and short rows": ("custom map", short_rows),
    "no consumer": ("custom", lambda g: [scaled(g.floats(8))]),
    "another type and shape": (
        "custom custom",
        lambda g: [
            (scaled(g.floats(8, 4)) > 1.0).reshape(4, 8),
            scaled(g.floats(6)).cast(dt.int32) + 1,
        ],
    ),
    "an output beside the epilogue": ("custom map", beside),
    "two outputs in one": ("custom map", both),
    "reduced": ("custom reduce", consumer(lambda y, _: [y.sum(1)])),
    "read twice": ("custom reduce", consumer(lambda y, _: [y.relu(), y.exp().sum(0)])),
    "also an output": ("custom map", consumer(lambda y, _: [y, y.relu()])),
    "transposed": ("custom map", consumer(lambda y, g: [y.T + g.floats(4, 8)])),
    "shifted": ("custom map", consumer(lambda y, _: [y.pad([(1, 0), (0, 0)]).exp()])),
    "masked": ("custom map", consumer(lambda y, _: [y[:7].pad([(0, 1), (0, 0)]).exp()])),
    "gathered": ("custom map", consumer(lambda y, g: [y + g.floats(16, 4).gather(g(ROWS8), 0)])),
    "flipped": ("custom map", consumer(lambda y, _: [y.flip(0) + y])),
    "repeated": (
        "custom map",
        consumer(lambda y, g: [y.unsqueeze(0).broadcast_to((3, 8, 4)).exp() + g.floats(3, 8, 4)]),
    ),
    "a boundary": ("custom map", consumer(lambda y, _: [y.contiguous().exp()])),
    "no slot, and a boundary": (
        "custom map",
        lambda g: [scaled(g.floats(8, 4), slot=False).contiguous().exp()],
    ),
    "waiting for its own launch": ("custom reduce map", waiting),
    "a chain": (
        "custom custom reduce",
        lambda g: [scaled(scaled(g.floats(8, 4)).relu() + 1.0).exp().sum(1)],
    ),
    "an operand that runs first": (
        "reduce custom",
        lambda g: [scaled(g.floats(8)) + g.floats(64).reshape(8, 8).sum(1).contiguous()],
    ),
    "a matrix product": ("custom", matrix_product),
    "a computed input": ("map custom", lambda g: [scaled(g.floats(8, 4) + 1.0)]),
    "two halves of a concat": (
        "custom custom reduce",
        lambda g: [Tensor.cat([scaled(g.floats(4, 8)), scaled(g.floats(4, 8))], 0).sum(0)],
    ),
    "row-major": ("map custom map", row_major),
    "an unread output": ("custom map", unread_output),
    "known inputs": ("custom", known_inputs),
    "one buffer twice": ("custom", one_buffer_twice),
    "a part of a result": (
        "custom reduce",
        lambda g: [scaled(g.floats(64, 8))[2:40].exp()[1:3].sum(1)],
    ),
    "halves and bools": ("custom map", halves_and_bools),
    "beside small kernels": (
        "map custom",
        lambda g: [g.floats(8).exp(), scaled(g.floats(8)), g.floats(8).cos()],
    ),
    **{f"slot of {kind}": ("custom custom", of_type(kind)) for kind in dt.ALL},
}
STORED = {"every operand": 0, "another type and shape": 0, "an unread output": 2}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_launched(name: str) -> None:
    wanted, case = PROGRAMS[name]
    made = program_of(*case(Given()))
    assert kinds(made) == wanted
    assert len(made.stored) == STORED.get(name, len(made.stored))


@pytest.mark.opencl
def test_values_are_those_of_the_interpreter() -> None:
    given = Given()
    check(all_of({name: case for name, (_, case) in PROGRAMS.items()}, given), given, closely)
