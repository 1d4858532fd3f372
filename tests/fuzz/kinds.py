"""The kinds of programs: who makes them, for which targets, and how large a share they have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.device.spec import SPECS
from tests.fuzz import choices, eager, graphs, metamorphic, narrow, onnx_kind, passes, strict
from tests.fuzz.batch import Outcome, run_batch
from tests.fuzz.case import Case, Name

CPU_ROWS: Final = tuple(name for name, spec in SPECS.items() if not spec.is_simt)
GPU_ROWS: Final = tuple(name for name, spec in SPECS.items() if spec.is_simt)


@dataclass(frozen=True)
class Kind:
    """A kind of programs.

    Attributes:
        run: runs the programs of these names, which have one target.
        rows: targets.
        batch: programs that are built together.
        share: of all programs, in parts of the sum.
        equal: whether results are the same bytes on all processors.
    """

    run: Callable[[Sequence[Name]], list[Outcome]]
    rows: tuple[str, ...]
    batch: int
    share: int
    equal: bool = False


def _together(make: Callable[[Name], Case]) -> Callable[[Sequence[Name]], list[Outcome]]:
    """Make programs and run them as one batch; one that cannot be made is wrong by itself."""

    def run(names: Sequence[Name]) -> list[Outcome]:
        cases, broken = [], []
        for name in names:
            try:
                cases.append(make(name))
            except Exception as error:  # noqa: BLE001  # of a generator or of what it calls: told
                broken.append(Outcome(name, f"cannot be made: {type(error).__name__}: {error}"))
        return broken + (run_batch(cases) if cases else [])

    return run


def _one_by_one(run: Callable[[Outcome], None]) -> Callable[[Sequence[Name]], list[Outcome]]:
    """Run programs by what notes the problem of each; what is raised is its problem, too."""

    def run_all(names: Sequence[Name]) -> list[Outcome]:
        outcomes = [Outcome(name) for name in names]
        for outcome in outcomes:
            try:
                run(outcome)
            except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
                outcome.problem = f"{type(error).__name__}: {error}"
        return outcomes

    return run_all


# CPU rows are named again so that they get most of the programs: GPU code is compiled kernel by
# kernel, four times as slowly.
_MOSTLY_CPU: Final = CPU_ROWS * 2 + GPU_ROWS
KINDS: Final[dict[str, Kind]] = {
    "graphs": Kind(_together(graphs.make), _MOSTLY_CPU, 50, 38),
    "onnx": Kind(_together(onnx_kind.make), _MOSTLY_CPU, 40, 24),
    "state": Kind(_together(graphs.with_states), _MOSTLY_CPU, 40, 12),
    "halves": Kind(_together(narrow.of_halves), _MOSTLY_CPU, 30, 12),
    "bytes": Kind(_together(narrow.of_bytes), _MOSTLY_CPU, 30, 12),
    "choices": Kind(_together(choices.make), CPU_ROWS + GPU_ROWS, 30, 10),
    "metamorphic": Kind(_together(metamorphic.make), _MOSTLY_CPU, 20, 12),
    "strict": Kind(_together(strict.make), ("cpu",), 25, 12, equal=True),
    "passes": Kind(_one_by_one(passes.run), CPU_ROWS + GPU_ROWS, 100, 20),
    "eager": Kind(_one_by_one(eager.run), ("cpu",), 4, 4),
}
