"""Programs of the conformance tables (issue 3): how a row is written, scheduled, run and compared.

A row is a small program written with Tensor, the same written with numpy, and a limit: kernels,
elements moved or bytes of memory. A row that stands for several programs has one entry each, named
"t64-square" and so on.

Each is scheduled twice: on realized buffers, as users write it, where a view of a buffer needs no
kernel; and on the inputs of a program, where every output has storage of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.artifact import from_memory
from runtime.device import choose_device
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler import flags
from scheduler.debug.pretty import pretty_body
from scheduler.emit.artifact import emit
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.pipeline import Schedule, schedule
from scheduler.tensor.tensor import Tensor

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
        float_unsafe: whether floats may cancel as real numbers do.
        assigned: numbers of the inputs that the program writes to; in a program they are states.
        owned: what the limit is where outputs have storage of their own, if it is another one.
    """

    name: str
    limit: int
    inputs: Sequence[Shape | Array]
    ours: Callable[..., Tensors]
    expected: Callable[..., Any]
    tolerance: float = 2e-5
    large: Sequence[Shape] = field(default=())
    float_unsafe: bool = False
    assigned: Sequence[int] = ()
    owned: int | None = None

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


def build(row: Row, given: Sequence[Tensor]) -> list[Tensor]:
    """Return the outputs of a row."""
    made = row.ours(*given)
    return [made] if isinstance(made, Tensor) else list(made)


def inputs_of(row: Row, *, measured: bool) -> list[Tensor]:
    """Return inputs in0, in1, ... of a program; states for those that are written to."""
    if measured and row.large:
        given = [(shape, dt.float32) for shape in row.large]
    else:
        given = [(v.shape, dt.from_numpy(v.dtype)) for v in values_of(row)]
    kinds = [Tensor.state if i in row.assigned else Tensor.input for i in range(len(given))]
    return [kind(f"in{i}", *g) for i, (kind, g) in enumerate(zip(kinds, given, strict=True))]


def plan_of(row: Row) -> Schedule:
    """Return what realizing the outputs of a row would run.

    The inputs are realized buffers; where they would be too large, inputs of a program.
    """
    with flags.options(float_unsafe=row.float_unsafe):
        given = inputs_of(row, measured=True) if row.large else [Tensor(v) for v in values_of(row)]
        made = build(row, given)
        return made[0].schedule(*made[1:])


def program_of(row: Row, *, measured: bool) -> Schedule:
    """Return the program of a row: the one to measure, or the one small enough to run.

    What is assigned stays in states and is no output.
    """
    with flags.options(float_unsafe=row.float_unsafe):
        made = build(row, inputs_of(row, measured=measured))
        outputs = {f"out{i}": t.node for i, t in enumerate(made) if t.node.op is not Op.ASSIGN}
        return schedule(outputs, [t.node for t in made if t.node.op is Op.ASSIGN])


def check_realized(row: Row) -> None:
    """Realize the outputs of a row together and compare them with numpy."""
    with flags.options(float_unsafe=row.float_unsafe):
        made = build(row, [Tensor(v) for v in values_of(row)])
        made[0].realize(*made[1:])
        compare(row, [t.numpy() for t in made])


def check_program(row: Row, plan: Schedule) -> None:
    """Run the program of a row and compare its outputs with numpy."""
    assert not row.assigned, "the states of a program start as zeros, not as the values of the row"
    made = emit({"run": plan}, name=row.name, kind="plain")
    device = choose_device(None)
    names = {buffer.name for buffer in plan.inputs}
    fed = {f"in{i}": v for i, v in enumerate(values_of(row)) if f"in{i}" in names}
    fed |= {b.name: np.ascontiguousarray(b.data) for b in plan.inputs if b.data is not None}
    with Program(from_memory(made.manifest, made.data), device, shared_cache(device)) as program:
        got = program.run(fed)
        compare(row, [got[f"out{i}"].copy() for i in range(len(got))])


def compare(row: Row, got: Sequence[Array]) -> None:
    """Compare shapes exactly and values to a tolerance; integers and bools exactly."""
    given = [v.astype(np.float64) if v.dtype == np.float32 else v for v in values_of(row)]
    want = row.expected(*given)
    wanted = list(want) if isinstance(want, list | tuple) else [want]
    assert len(got) == len(wanted)
    for i, (ours, value) in enumerate(zip(got, map(np.asarray, wanted), strict=True)):
        where = f"{row.name}, output {i}"
        assert ours.shape == value.shape, f"{where}: {ours.shape}, numpy gives {value.shape}"
        limit = row.tolerance if value.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(ours, value, rtol=limit, atol=limit, err_msg=where)


def memory_of(plan: Schedule) -> int:
    """Return the bytes a schedule allocates besides its inputs: arena and outputs."""
    made = emit({"run": plan}, name="memory", kind="plain")
    outputs = sum(n.dtype.itemsize * prod(n.shape) for n in plan.outputs.values())
    return int(made.manifest["arena_size"]) + outputs


def kernels_as_text(plan: Schedule) -> str:
    """Return what each launch computes."""
    return "\n".join(
        f"launch {i}\n" + "\n".join(pretty_body(body) for body in kernel.bodies)
        for i, kernel in enumerate(plan.launches)
    )


def check_limit(row: Row, plan: Schedule, ours: int, what: str, limit: int | None = None) -> None:
    """Compare a measured number with the limit of a row; if it is above, show the kernels."""
    wanted = row.limit if limit is None else limit
    assert ours <= wanted, (
        f"{row.name}: {ours} {what}, at most {wanted} wanted\n{kernels_as_text(plan)}"
    )


def check_coverage(rows: Iterable[Row], elsewhere: Mapping[str, str], table: Sequence[str]) -> None:
    """Assert that each row of a table is written here, or has a test in another module.

    Args:
        rows: those written here.
        elsewhere: id of a row -> the module of tests/scheduler that covers it: it has a function
            test_<id>_..., or an entry named after the row in its table ROWS.
        table: ids of all rows.
    """
    names = [row.name for row in rows]
    assert len(names) == len(set(names)), "a row is written twice"
    done = {name.partition("-")[0] for name in names}
    assert not done & set(elsewhere), f"written twice: {sorted(done & set(elsewhere))}"
    assert sorted(done | set(elsewhere)) == sorted(table)
    for row, name in elsewhere.items():
        module = import_module(f"tests.scheduler.{name}")
        rows_there = getattr(module, "ROWS", None)
        entries = rows_there if isinstance(rows_there, dict) else {}
        found = {entry.partition("-")[0] for entry in entries}
        found |= {known.split("_")[1] for known in vars(module) if known.startswith("test_")}
        assert row in found, f"{row}: {name} has no test of that name"


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
