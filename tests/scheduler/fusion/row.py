"""One row of the table of fusion: a program, what it takes at most, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.device import choose_device
from scheduler.context import CompileContext, context_for
from scheduler.debug.pretty import pretty_body
from scheduler.device.spec import DEFAULT, DeviceSpec
from scheduler.device.targets import spec_of_device
from scheduler.emit.schedule import Schedule
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.ops import Op
from scheduler.tensor.eager_plan import base_of
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.plain import plain, result
from tests.scheduler.support.programs import artifact_of, loaded, plan_of

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
    """Return indices."""
    return Drawn(shape, lambda rng, s: rng.integers(0, limit, s).astype(np.int32))


def halves(*shape: int) -> Drawn:
    """Return values in [-1, 1) of two bytes."""
    return Drawn(shape, lambda rng, s: rng.uniform(-1, 1, s).astype(np.float16))


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


def by_interpreter(*_: Array) -> Array:
    """Stand for the expected values of networks that are not written in numpy again."""
    raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Row:
    """One program of the table.

    A program is scheduled twice: on realized buffers, as users write it, where a view of a buffer
    needs no kernel; and on the inputs of a program, where every output has storage of its own.

    Attributes:
        name: what the program is.
        bar: the most it may take on realized buffers: launches, moved and peak of `Figures`.
        inputs: shapes of float32 inputs with random values in [-1, 1), drawn ones, or the values.
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
        open: launches within reach, and why more are taken; ends when it is solved.
    """

    name: str
    bar: tuple[int, int, int]
    inputs: Sequence[Shape | Array | Drawn]
    ours: Callable[..., Tensors]
    expected: Callable[..., Any] | None = None
    tolerance: float = 2e-5
    large: Sequence[Shape] = field(default=())
    float_unsafe: bool = False
    assigned: Sequence[int] = ()
    owned: tuple[int, int, int] | None = None
    eager: bool = False
    open: tuple[int, str] | None = None

    def values(self) -> list[Array]:
        """Return the values of the inputs it is run on; the same in every run."""
        rng = np.random.default_rng(7)
        found = []
        for given in self.inputs:
            if isinstance(given, Drawn):
                found.append(given.draw(rng, given.shape))
            elif isinstance(given, np.ndarray):
                found.append(given)
            else:
                found.append(rng.uniform(-1, 1, given).astype(np.float32))
        return found

    def build(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs."""
        made = self.ours(*given)
        return [made] if isinstance(made, Tensor) else list(made)

    def context(self, spec: DeviceSpec = DEFAULT) -> CompileContext:
        """Return what it is compiled for."""
        flags = replace(Flags.from_environment(), float_unsafe=self.float_unsafe)
        return context_for(spec, flags=flags)

    def interpreted(self) -> list[Array]:
        """Return what the interpreter makes of it."""
        return [t.interp() for t in self.build([Tensor(v) for v in self.values()])]

    def compare(self, got: Sequence[Array]) -> None:
        """Compare shapes exactly and values to a tolerance; integers and bools exactly."""
        wanted = self._wanted()
        assert len(got) == len(wanted)
        for i, (ours, value) in enumerate(zip(got, wanted, strict=True)):
            where = f"{self.name}, output {i}"
            assert ours.shape == value.shape, f"{where}: {ours.shape}, not {value.shape}"
            limit = self.tolerance if value.dtype.kind == "f" else 0.0
            np.testing.assert_allclose(ours, value, rtol=limit, atol=limit, err_msg=where)

    def _wanted(self) -> list[Array]:
        if self.expected is by_interpreter:
            return self.interpreted()
        wide = [v.astype(np.float64) if v.dtype == np.float32 else v for v in self.values()]
        with np.errstate(invalid="ignore"):  # some rows are about infinity times zero
            want = self.expected(*wide) if self.expected else self.ours(*map(plain, wide))
        return list(map(result, want if isinstance(want, list | tuple) else [want]))


def inputs_of(row: Row, *, measured: bool) -> list[Tensor]:
    """Return inputs in0, in1, ... of a program; states for those that are written to."""
    if measured and row.large:
        given = [(shape, dt.float32) for shape in row.large]
    else:
        given = [(v.shape, dt.from_numpy(v.dtype)) for v in row.values()]
    kinds = [Tensor.state if i in row.assigned else Tensor.input for i in range(len(given))]
    return [kind(f"in{i}", *g) for i, (kind, g) in enumerate(zip(kinds, given, strict=True))]


def realized_plan(row: Row) -> tuple[Schedule, list[Tensor]]:
    """Return what realizing the outputs of a row would run, and the outputs.

    The inputs are realized buffers; where they would be too large, inputs of a program.
    """
    given = inputs_of(row, measured=True) if row.large else [Tensor(v) for v in row.values()]
    made = row.build(given)
    return made[0].schedule(*made[1:], context=row.context()), made


def program_plan(row: Row, *, measured: bool) -> Schedule:
    """Return the program of a row: the one to measure, or the one small enough to run.

    What is assigned stays in states and is no output.
    """
    made = row.build(inputs_of(row, measured=measured))
    outputs = {f"out{i}": t for i, t in enumerate(made) if t.node.op is not Op.ASSIGN}
    return plan_of(outputs, [t for t in made if t.node.op is Op.ASSIGN], row.context())


def check_realized(row: Row) -> None:
    """Realize the outputs of a row together and compare them; each has a buffer after that."""
    made = row.build([Tensor(v) for v in row.values()])
    made[0].realize(*made[1:], context=row.context(spec_of_device(choose_device(None))))
    row.compare([t.numpy() for t in made])
    assert all(base_of(t.node).op in (Op.BUFFER, Op.CONST) for t in made)
    assert made[0].schedule(*made[1:], context=row.context()).launches == []


def check_program(row: Row, plan: Schedule) -> None:
    """Run the program of a row and compare its outputs."""
    assert not row.assigned, "the states of a program start as zeros, not as the values of the row"
    made = artifact_of(plan)
    names = {buffer.name for buffer in plan.inputs}
    fed = {f"in{i}": v for i, v in enumerate(row.values()) if f"in{i}" in names}
    fed |= {b.name: np.ascontiguousarray(b.data) for b in plan.inputs if b.data is not None}
    with loaded(made.manifest, made.data) as program:
        got = program.run(fed)
        row.compare([got[f"out{i}"].copy() for i in range(len(got))])


def figures_of(plan: Schedule, *, program: bool) -> Figures:
    """Return what a schedule takes."""
    launches = plan.kernels if program else plan.launches
    return Figures(len(launches), plan.bytes_moved, plan.peak_bytes)


def check_bar(row: Row, plan: Schedule, *, program: bool) -> Figures:
    """Compare what a schedule takes with the bar of its row; if it is above, show the kernels."""
    found = figures_of(plan, program=program)
    bar = Figures(*(row.owned if program and row.owned else row.bar))
    if any(ours > most for ours, most in zip(found, bar, strict=True)):
        pytest.fail(f"{row.name}: {found}, at most {bar}\n{kernels_as_text(plan)}", pytrace=False)
    return found


def kernels_as_text(plan: Schedule) -> str:
    """Return what each launch computes."""
    return "\n".join(
        f"launch {i}\n" + "\n".join(pretty_body(body) for body in kernel.bodies)
        for i, kernel in enumerate(plan.launches)
    )
