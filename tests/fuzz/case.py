"""What a generator makes: programs to schedule, what they are given, what must come of them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.context import FAST
from scheduler.debug.pretty import pretty
from scheduler.device.tuned_table import EMPTY, TunedTable
from scheduler.tensor.tensor import Tensor
from tests.fuzz.judge import Judge
from tests.fuzz.rounding import Known

Array = NDArray[Any]
Setting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Name:
    """What finds a program again.

    Attributes:
        kind: of generator.
        row: of the device table.
        seed: of the generator.
        steps: of the program; 0 for as many as the seed says.
    """

    kind: str
    row: str
    seed: int
    steps: int = 0

    def __str__(self) -> str:
        return f"{self.kind}/{self.row}:{self.seed}" + (f"~{self.steps}" if self.steps else "")


@dataclass(frozen=True)
class Variant:
    """One way to compute the outputs of a program.

    Attributes:
        label: what is special about it.
        outputs, writes: its graph; the same names for every variant of a program.
        setting: context in which it is scheduled.
        precision, numerics, tuned: as for `CompileContext`.
        row: of the device table, where it is not the program's.
        buffers: of a kernel, at most; None for as many as the row says.
        dot4: for a processor that adds products of bytes in one instruction.
    """

    label: str
    outputs: Mapping[str, Tensor]
    writes: tuple[Tensor, ...] = ()
    setting: Setting = nullcontext
    precision: str = "fp32"
    numerics: str = FAST
    tuned: TunedTable = EMPTY
    row: str = ""
    buffers: int | None = None
    dot4: bool = False


@dataclass
class Case:
    """A program.

    Attributes:
        name: what finds it again.
        outputs: by name, what each means.
        writes: of states.
        variants: how it is computed, at least one.
        runs: inputs by name, of each run.
        ranges: smallest and largest value of integer outputs: also where rounding decides.
        problem: what was found wrong before anything was compiled.
        equal: whether all variants give the same bytes.
    """

    name: Name
    outputs: dict[str, Tensor]
    variants: list[Variant]
    runs: list[dict[str, Array]]
    writes: tuple[Tensor, ...] = ()
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    problem: str = ""
    equal: bool = False

    def text(self) -> str:
        inputs = [f"{n} = {_shown(v)}" for n, v in self.runs[0].items()]
        graph = pretty([t.node for t in (*self.outputs.values(), *self.writes)])
        names = ", ".join(self.outputs)
        return "\n".join([graph, f"outputs: {names}", *inputs])

    def expected(self) -> list[tuple[dict[str, Known], dict[str, Known]]]:
        """Return outputs and new states of each run."""
        states: dict[str, Known] = {}
        found = []
        for given in self.runs:
            judge = Judge({**given, **states})
            results = {n: judge.of(t.node) for n, t in self.outputs.items()}
            new = {t.node.src[0].arg.name: judge.of(t.node) for t in self.writes}
            states = {**states, **new}
            found.append((results, new))
        return found


def _shown(value: Array) -> str:
    text = np.array2string(value, threshold=40, edgeitems=2, max_line_width=100, floatmode="unique")
    return f"{value.dtype}{list(value.shape)} {text}"
