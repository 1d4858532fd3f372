"""One row of the table of fusion: a program, and what it takes at most."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.context import CompileContext, context_for
from scheduler.debug.kernel_table import kernel_tables
from scheduler.debug.pretty import pretty_body
from scheduler.device.spec import DEFAULT, DeviceSpec
from scheduler.emit.schedule import Schedule
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.plain import instead_of_tensors
from tests.scheduler.support.programs import Made, artifact_of, plan_of

Array = NDArray[Any]
Shape = tuple[int, ...]
Tensors = Tensor | Sequence[Tensor]


@dataclass(frozen=True, slots=True)
class Drawn:
    """An input whose values are not those of a float32 in [-1, 1)."""

    shape: Shape
    draw: Callable[[np.random.Generator, Shape], Array]


def positive(*shape: int, scale: float = 1.0) -> Drawn:
    """Return values away from zero, for logarithms, roots and divisors."""
    return Drawn(shape, lambda rng, s: (scale * rng.uniform(0.5, 2.0, s)).astype(np.float32))


def below(limit: int, *shape: int) -> Drawn:
    return Drawn(shape, lambda rng, s: rng.integers(0, limit, s).astype(np.int32))


def halves(*shape: int) -> Drawn:
    """Return values in [-1, 1) of two bytes."""
    return Drawn(shape, lambda rng, s: rng.uniform(-1, 1, s).astype(np.float16))


def _shape(text: str) -> Shape | Drawn:
    """Return (4, 5) for "4x5", and what is drawn from positive values for "+4x5"."""
    shape = tuple(map(int, text.removeprefix("+").split("x")))
    return positive(*shape) if text.startswith("+") else shape


class Figures(NamedTuple):
    """What a schedule takes.

    Attributes:
        launches: kernels in running order; of a program those that compute something.
        moved: bytes that all launches read and write, each buffer once a launch.
        peak: bytes of the arena: what is stored between launches.
    """

    launches: int
    moved: int
    peak: int


Inputs = str | Sequence[Shape | Array | Drawn]
# A number stands for the bytes of one launch that stores nothing in between; 0 for no launch.
Bar = int | tuple[int, int, int]


def _figures(bar: Bar) -> Figures:
    return Figures(int(bar > 0), bar, 0) if isinstance(bar, int) else Figures(*bar)


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One program of the table.

    A program is scheduled twice: on realized buffers, as users write it, where a view of a buffer
    needs no kernel; and on the inputs of a program, where every output has storage of its own.

    Attributes:
        name: what the program is.
        bar: the most it may take on realized buffers.
        inputs: shapes of float32 inputs with random values in [-1, 1), as text or tuples, drawn
            ones, or the values; "4x5 +3" is a matrix, and a vector of positive values.
        ours: the program on Tensors; gives one output or several.
        expected: the same in numpy, on float64 where an input is float32; left out where arrays
            with the methods of Tensor say it.
        owned: the bar of a program, where outputs have storage of their own, if it differs.
        tolerance: relative and absolute, for floating-point outputs.
        large: shapes the figures hold for, where they are too large to run: values are compared on
            `inputs`.
        float_unsafe: whether floats may cancel as real numbers do.
        assigned: numbers of the inputs that the program writes to; in a program they are states.
        eager: whether it is about realized or pinned tensors, so that there is no such program.
        flops: the most operations of a program.
        stored: type and shape of what lies in the arena of a program.
        loops: reductions that are left in a program.
    """

    name: str
    bar: Bar
    inputs: Inputs
    ours: Callable[..., Tensors]
    expected: Callable[..., Any] | None = None
    tolerance: float = 2e-5
    large: str = ""
    float_unsafe: bool = False
    assigned: Sequence[int] = ()
    owned: Bar | None = None
    eager: bool = False
    flops: int | None = None
    stored: Sequence[tuple[str, Shape]] | None = None
    loops: int | None = None

    def _inputs(self) -> Iterable[Shape | Array | Drawn]:
        return map(_shape, self.inputs.split()) if isinstance(self.inputs, str) else self.inputs

    def values(self) -> list[Array]:
        """Return the values of the inputs it is run on; the same in every run."""
        rng = np.random.default_rng(7)
        found = []
        for given in self._inputs():
            if isinstance(given, Drawn):
                found.append(given.draw(rng, given.shape))
            elif isinstance(given, np.ndarray):
                found.append(given)
            else:
                found.append(rng.uniform(-1, 1, given).astype(np.float32))
        return found

    def build(self, given: Sequence[Tensor]) -> list[Tensor]:
        made = self.ours(*given)
        return [made] if isinstance(made, Tensor) else list(made)

    def built(self) -> list[Tensor]:
        return self.build([Tensor(v) for v in self.values()])

    def context(self, spec: DeviceSpec = DEFAULT) -> CompileContext:
        flags = replace(Flags.from_environment(), float_unsafe=self.float_unsafe)
        return context_for(spec, flags=flags)

    def figures(self, *, program: bool) -> Figures:
        return _figures(self.bar if self.owned is None or not program else self.owned)

    def compare(self, got: Sequence[Array]) -> None:
        """Compare shapes exactly and values to a tolerance; integers and bools exactly."""
        for i, (ours, value) in enumerate(zip(got, wanted(self), strict=True)):
            where = f"{self.name}, output {i}"
            assert ours.shape == value.shape, f"{where}: {ours.shape}, not {value.shape}"
            limit = self.tolerance if value.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(ours, value, rtol=limit, atol=limit, err_msg=where)


def row(name: str, bar: Bar, inputs: Inputs, **more: Any) -> partial[Row]:
    """Return what makes a row of a program: `row("sum", 120, "10 10")(lambda a, b: a + b)`."""
    return partial(Row, name, bar, inputs, **more)


@cache
def wanted(row: Row) -> list[Array]:
    wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in row.values()]
    with np.errstate(invalid="ignore"):  # some rows are about infinity times zero
        return instead_of_tensors(row.expected or row.ours, *wide)


def inputs_of(row: Row) -> list[Tensor]:
    """Return inputs in0, in1, ... of a program; states for those that are written to."""
    if row.large:
        given = [(tuple(map(int, text.split("x"))), dt.float32) for text in row.large.split()]
    else:
        given = [(v.shape, dt.from_numpy(v.dtype)) for v in row.values()]
    kinds = [Tensor.state if i in row.assigned else Tensor.input for i in range(len(given))]
    return [kind(f"in{i}", *g) for i, (kind, g) in enumerate(zip(kinds, given, strict=True))]


def realized_plan(row: Row) -> tuple[Schedule, list[Tensor]]:
    """Return what realizing the outputs of a row would run, and the outputs.

    The inputs are realized buffers; where they would be too large, inputs of a program.
    """
    made = row.build(inputs_of(row)) if row.large else row.built()
    return made[0].schedule(*made[1:], context=row.context()), made


@cache
def program_plan(row: Row) -> Schedule:
    """Return the program of a row; what is assigned stays in states and is no output."""
    made = row.build(inputs_of(row))
    outputs = {f"out{i}": t for i, t in enumerate(made) if t.node.op is not Op.ASSIGN}
    return plan_of(outputs, [t for t in made if t.node.op is Op.ASSIGN], row.context())


def check_bar(row: Row, plan: Schedule, *, program: bool) -> None:
    """Compare what a schedule takes with the bar of its row; if it is above, show the kernels."""
    launches = plan.kernels if program else plan.launches
    found = Figures(len(launches), plan.bytes_moved, plan.peak_bytes)
    bar = row.figures(program=program)
    if any(ours > most for ours, most in zip(found, bar, strict=True)):
        shown = "\n".join(pretty_body(body) for kernel in plan.launches for body in kernel.bodies)
        pytest.fail(f"{row.name}: {found}, at most {bar}\n{shown}", pytrace=False)


def check_inside(row: Row, plan: Schedule) -> None:
    """Compare operations, stored values and loops of a program with what the row says of them."""
    emitted = artifact_of(plan)
    (table,) = kernel_tables(emitted.manifest, {"run": plan})
    made = Made(plan, emitted.manifest, emitted.data, table)
    assert row.flops is None or table.totals.flops <= row.flops
    assert row.stored is None or made.stored == list(row.stored)
    assert row.loops is None or len(made.loops) == row.loops
