"""Elements moved and memory held per program: at most what the peer with loop fusion reached.

Elements are bytes read and written by all kernels, each buffer once per kernel, over four.
"""

from __future__ import annotations

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.pipeline import Schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.kernelize.conformance import (
    Array,
    Row,
    check_coverage,
    check_limit,
    check_program,
    check_realized,
    memory_of,
    np_layernorm,
    np_softmax,
    plan_of,
    program_of,
)
from tests.scheduler.kernelize.conformance_training import TRAINING_MOVES

N, M, CUBE = (10,), (10, 10), (10, 10, 10)
LARGE = (4, 2048, 4096)
X = 4 * 2048 * 4096
INDICES = np.array([3, 1, 9, 9, 0, 2, 5, 7, 6, 4], np.int32)


def thrice_scaled(a: Tensor) -> Tensor:
    for _ in range(3):
        a = a * a.sum(1, keepdim=True)
    return a


def np_thrice_scaled(a: Array) -> Array:
    for _ in range(3):
        a = a * a.sum(1, keepdims=True)
    return a


def scaled_and_largest(h: Tensor, scale: Tensor) -> list[Tensor]:
    return [(h * scale).sigmoid(), h.abs().max(keepdim=True)]


def np_scaled_and_largest(h: Array, scale: Array) -> list[Array]:
    return [1 / (1 + np.exp(-h * scale)), np.abs(h).max(keepdims=True)]


def product_and_sum(a: Tensor) -> Tensor:
    c = a.cos()
    return c @ c + c.sum(1)


def two_products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a @ c).sum(-1) + (b @ c).sum(-1)


MOVES = [
    Row("i02", 30, [N, N], lambda a, b: a + b, lambda a, b: a + b),
    Row("i04", 20, [N], lambda x: x + x, lambda x: x + x),
    Row(
        "i06",
        50,
        [N, N, N],
        lambda a, b, c: [a.cos(), b.sin() + c.sin()],
        lambda a, b, c: [np.cos(a), np.sin(b) + np.sin(c)],
    ),
    Row("i08", 110, [M], lambda a: a.sum(0), lambda a: a.sum(0)),
    Row("i10", 300, [M, M], lambda a, b: a @ b, lambda a, b: a @ b),
    Row("i12", 600, [M], lambda x: x.cos() @ x.sin(), lambda x: np.cos(x) @ np.sin(x)),
    Row(
        "i14",
        40,
        [N, N],
        lambda a, b: Tensor.cat([a, b]),
        lambda a, b: np.concatenate([a, b]),
    ),
    Row(
        "i16",
        30,
        [N],
        lambda a: Tensor.cat([a.cos(), a.sin()]),
        lambda a: np.concatenate([np.cos(a), np.sin(a)]),
    ),
    Row(
        "i18",
        600,
        [M, M, M],
        lambda a, b, c: Tensor.cat([a + 1.0, b + 2.0, c + 3.0]) + 10.0,
        lambda a, b, c: np.concatenate([a + 1, b + 2, c + 3]) + 10,
    ),
    Row(
        "i20",
        2600,
        [CUBE, CUBE],
        lambda a, b: Tensor.cat([a.sum(0), b.sum(0)]) + 10.0,
        lambda a, b: np.concatenate([a.sum(0), b.sum(0)]) + 10,
    ),
    Row("i22", 210, [M], lambda a: [a.sum(1), a.cos()], lambda a: [a.sum(1), np.cos(a)]),
    Row("i24", 120, [M, N], lambda a, b: a.sum(1) + b.cos(), lambda a, b: a.sum(1) + np.cos(b)),
    Row(
        "i26",
        210,
        [M, N],
        lambda a, b: a.sum(1, keepdim=True) * b.cos(),
        lambda a, b: a.sum(1, keepdims=True) * np.cos(b),
    ),
    Row("i28", 200, [M], thrice_scaled, np_thrice_scaled),
    Row(
        "i30",
        220,
        [M, N, N],
        lambda x, w, b: x.layernorm() * w + b,
        lambda x, w, b: np_layernorm(x) * w + b,
    ),
    Row(
        "i32",
        300,
        [M, M],
        lambda g, y: g * y - y * (g * y).sum(-1, keepdim=True),
        lambda g, y: g * y - y * (g * y).sum(-1, keepdims=True),
    ),
    Row(
        "i34",
        10,
        [],
        lambda: (Tensor.ones(10) + Tensor.ones(10, 10)).sum(-1),
        lambda: np.full(10, 20.0),
    ),
    Row(
        "i36",
        140,
        [M, INDICES],
        lambda a, b: a[b].cos().sum(1),
        lambda a, b: np.cos(a[b]).sum(1),
    ),
    Row(
        "i38",
        1 + 3 * X + 4 * 8192 + 1,
        [(2, 4, 64), (1,)],
        lambda x, s: scaled_and_largest(x.layernorm(), s),
        lambda x, s: np_scaled_and_largest(np_layernorm(x), s),
        large=[LARGE, (1,)],
    ),
    Row(
        "i40",
        1 + 3 * X + 2 * 432 + 1,
        [(2, 4, 64), (1,)],
        lambda x, s: scaled_and_largest(x * 1.1, s),
        lambda x, s: np_scaled_and_largest(x * 1.1, s),
        large=[LARGE, (1,)],
    ),
    Row(
        "i42",
        620,
        [M],
        product_and_sum,
        lambda a: np.cos(a) @ np.cos(a) + np.cos(a).sum(1),
    ),
    Row("i44", 300, [M, M], lambda a, b: a + b.T, lambda a, b: a + b.T),
    Row("i44-first", 300, [M, M], lambda a, b: a.T + b, lambda a, b: a.T + b),
    # What the peer cannot fuse stands for a reader of the buffer: here, any operation.
    Row("i54-slice", 20, [N], lambda a: Tensor.cat([a[:0], a, a[10:]]).sin(), np.sin),
    Row("i54-convert", 20, [N], lambda a: a.cast(dt.float32).sin(), np.sin),
    Row("i56-one", 20, [N], lambda a: Tensor.cat([a]).sin(), np.sin),
    Row("i56-twice", 20, [N], lambda a: Tensor.cat([Tensor.cat([a])]), lambda a: a),
    Row("i60", 200, [M], lambda a: a.softmax(0), lambda a: np_softmax(a, 0)),
    Row(
        "i62",
        170,
        [(10, 1, 8), (1, 10, 8)],
        lambda a, b: (a - b).square().sum(-1).max(1),
        lambda a, b: ((a - b) ** 2).sum(-1).max(1),
    ),
]

MOVES += TRAINING_MOVES

# Bytes of outputs and intermediates.
MEMORY = [
    Row(
        "m02",
        2 * 32768 * 32768 * 4 - 1,
        [(64, 16), (64, 16), (16, 64)],
        two_products,
        lambda a, b, c: (a @ c).sum(-1) + (b @ c).sum(-1),
        large=[(32768, 16), (32768, 16), (16, 32768)],
    ),
    # float16 stands for bfloat16, which there is no type for; both are two bytes.
    Row(
        "m04",
        32 * 32 * 2,
        [(32, 32)],
        lambda x: x.half().half().half().half(),
        lambda x: x.astype(np.float16),
    ),
]

TABLE = [*(f"i{n:02d}" for n in range(2, 64, 2)), "m02", "m04"]

ELSEWHERE = {"i58": "test_tensor_assign"}


def moved(plan: Schedule) -> int:
    """Return the elements that all launches read and write."""
    count, rest = divmod(plan.bytes_moved, 4)
    assert rest == 0
    return count


@pytest.mark.opencl
@pytest.mark.parametrize("row", MOVES, ids=[r.name for r in MOVES])
def test_elements_moved(row: Row) -> None:
    plan = plan_of(row)
    check_limit(row, plan, moved(plan), "elements moved")
    check_realized(row)


@pytest.mark.opencl
@pytest.mark.parametrize("row", MOVES, ids=[r.name for r in MOVES])
def test_elements_moved_by_a_program(row: Row) -> None:
    plan = program_of(row, measured=True)
    check_limit(row, plan, moved(plan), "elements moved", row.owned)
    check_program(row, program_of(row, measured=False) if row.large else plan)


@pytest.mark.opencl
@pytest.mark.parametrize("row", MEMORY, ids=[r.name for r in MEMORY])
def test_memory(row: Row) -> None:
    plan = program_of(row, measured=True)
    check_limit(row, plan, memory_of(plan), "bytes")
    check_program(row, program_of(row, measured=False) if row.large else plan)
    check_realized(row)


def test_every_row_of_the_tables_is_here() -> None:
    check_coverage([*MOVES, *MEMORY], ELSEWHERE, TABLE)
