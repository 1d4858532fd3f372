"""Programs of the conformance tables (issue 3): how a row is written, scheduled, run and compared.

A row is a small program written with Tensor, the same written with numpy, and a limit: compute
kernels, elements moved or bytes of memory. A row that stands for several programs has one entry
each, named "t64-square" and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler import dtype as dt
from scheduler.emit import emit
from scheduler.schedule import Schedule, schedule
from scheduler.tensor import Tensor

Array = NDArray[Any]
Shape = tuple[int, ...]
Tensors = Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Row:
    """One program of a table.

    Attributes:
        name: id of the row, with "-variant" where a row stands for several programs.
        limit: the most it may take; the test that uses the row says of what.
        inputs: shapes of float32 inputs with random values in [-1, 1), or the values themselves.
        ours: the program on Tensors; gives one output or several.
        expected: the same in numpy, on float64 where an input is float32.
        tolerance: relative and absolute, for floating-point outputs.
        large: shapes the limit holds for, where they are too large to run: values are compared on
            `inputs`.
    """

    name: str
    limit: int
    inputs: Sequence[Shape | Array]
    ours: Callable[..., Tensors]
    expected: Callable[..., Any]
    tolerance: float = 2e-5
    large: Sequence[Shape] = field(default=())

    @property
    def row(self) -> str:
        """Id of the row without the variant."""
        return self.name.partition("-")[0]


def values_of(row: Row) -> list[Array]:
    """Return the values of the inputs a row is run on; the same in every run."""
    rng = np.random.default_rng(7)
    return [
        s if isinstance(s, np.ndarray) else rng.uniform(-1, 1, s).astype(np.float32)
        for s in row.inputs
    ]


def build(row: Row, inputs: Sequence[tuple[Shape, dt.DType]]) -> dict[str, Tensor]:
    """Return the outputs of a row by name, reading inputs in0, in1, ..."""
    given = [Tensor.input(f"in{i}", shape, dtype) for i, (shape, dtype) in enumerate(inputs)]
    made = row.ours(*given)
    return {f"out{i}": t for i, t in enumerate([made] if isinstance(made, Tensor) else made)}


def plan_of(row: Row, *, measured: bool) -> Schedule:
    """Return the schedule of a row: the one to measure, or the one small enough to run."""
    if measured and row.large:
        inputs = [(shape, dt.float32) for shape in row.large]
    else:
        inputs = [(v.shape, dt.from_numpy(v.dtype)) for v in values_of(row)]
    return schedule({name: t.node for name, t in build(row, inputs).items()})


def check_values(row: Row, plan: Schedule) -> None:
    """Run a schedule on the device and compare every output with numpy."""
    given = values_of(row)
    made = emit({"run": plan}, name=row.name, kind="plain")
    device = choose_device(None)
    names = {buffer.name for buffer in plan.inputs}
    fed = {f"in{i}": v for i, v in enumerate(given) if f"in{i}" in names}
    fed |= {b.name: np.ascontiguousarray(b.data) for b in plan.inputs if b.data is not None}
    with Program(from_memory(made.manifest, made.data), device, shared_cache(device)) as program:
        got = {name: value.copy() for name, value in program.run(fed).items()}
    exact = [v.astype(np.float64) if v.dtype == np.float32 else v for v in given]
    want = row.expected(*exact)
    wanted = list(want) if isinstance(want, list | tuple) else [want]
    assert len(got) == len(wanted)
    for i, value in enumerate(wanted):
        compare(got[f"out{i}"], np.asarray(value), row.tolerance, f"{row.name}, output {i}")


def compare(got: Array, want: Array, tolerance: float, where: str) -> None:
    """Compare shapes exactly and values to a tolerance; integers and bools exactly."""
    assert got.shape == want.shape, f"{where}: shape {got.shape}, numpy gives {want.shape}"
    limit = tolerance if want.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit, err_msg=where)


def memory_of(plan: Schedule) -> int:
    """Return the bytes a schedule allocates besides its inputs: arena and outputs."""
    made = emit({"run": plan}, name="memory", kind="plain")
    outputs = sum(n.dtype.itemsize * prod(n.shape) for n in plan.outputs.values())
    return int(made.manifest["arena_size"]) + outputs


def check_limit(row: Row, ours: int, above: Mapping[str, tuple[int, int]], what: str) -> None:
    """Compare a measured number with the limit of a row, or with what is known to miss it."""
    if row.name not in above:
        assert ours <= row.limit, f"{row.name}: {ours} {what}, at most {row.limit} wanted"
        return
    known, target = above[row.name]
    assert target == row.limit, f"{row.name}: the target is {row.limit}, listed as {target}"
    assert known > target, f"{row.name}: at its target of {target}: remove it from ABOVE_TARGET"
    assert ours == known, f"{row.name}: {ours} {what}, listed as {known}: update ABOVE_TARGET"


def check_coverage(rows: Iterable[Row], not_yet: Mapping[str, str], table: Sequence[str]) -> None:
    """Assert that the rows of a table are either implemented or listed with a reason."""
    names = [row.name for row in rows]
    assert len(names) == len(set(names)), "a row is written twice"
    done = {name.partition("-")[0] for name in names}
    assert not done & set(not_yet), f"both implemented and not yet: {sorted(done & set(not_yet))}"
    assert sorted(done | set(not_yet)) == sorted(table)
    assert all(not_yet.values()), "a reason is empty"


def np_relu(x: Array) -> Array:
    return np.maximum(x, 0)


def np_elu(x: Array) -> Array:
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)


def np_softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def np_layernorm(x: Array, eps: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps))


def np_conv(x: Array, w: Array, padding: int = 0) -> Array:
    """Convolve (N, C, H, W) with (O, C, kh, kw), stride 1."""
    p = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(p, w.shape[2:], axis=(2, 3))
    return np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def np_batchnorm(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    s, b, m, v = (a.reshape(1, -1, 1, 1) for a in (scale, bias, mean, variance))
    return np.asarray((x - m) / np.sqrt(v + 1e-5) * s + b)


def np_average_pool(x: Array, kernel: tuple[int, int], padding: int) -> Array:
    """Average windows of (H, W) that do not overlap; padding counts as zeros."""
    p = np.pad(x, padding)
    seen = np.lib.stride_tricks.sliding_window_view(p, kernel)
    return np.asarray(seen[:: kernel[0], :: kernel[1]].mean((2, 3)))


def np_attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    return np.asarray(np_softmax(scores) @ v)
