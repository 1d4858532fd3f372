"""Kind `passes`: graphs after all passes, by the interpreter: no device, so many more of them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from scheduler.passes.halves.precision import FP32
from scheduler.pipeline import run_passes
from scheduler.tensor.tensor import Tensor, evaluate
from tests.fuzz import graphs, narrow, onnx_kind
from tests.fuzz.batch import Outcome, context_of
from tests.fuzz.case import Case, Name
from tests.fuzz.compare import difference


def make(name: Name) -> Case:
    """Return a graph, a model with its numbers as they are, or what is in bytes or in halves."""
    return _WAYS[name.seed % len(_WAYS)](name)


_WAYS: Final[tuple[Callable[[Name], Case], ...]] = (
    *(graphs.make,) * 4,
    *(onnx_kind.model, narrow.of_bytes, narrow.of_halves),
)


def run(outcome: Outcome) -> None:
    """Compare a program's first run with what is right."""
    case = make(outcome.name)
    outcome.problem = case.problem or _compared(case, outcome)
    outcome.text = case.text() if outcome.problem else ""


def _compared(case: Case, outcome: Outcome) -> str:
    """Return the first difference in the first run."""
    tensors = [*case.outputs.values(), *case.writes]
    context = replace(context_of(case.name, case.variants[0]), precision=FP32)
    passed = [Tensor.of(n) for n in run_passes([t.node for t in tensors], context)]
    results, new = case.expected()[0]
    wanted = [*results.items(), *new.items()]
    found = evaluate(passed, case.runs[0])
    for (name, want), got in zip(wanted, found, strict=True):
        wrong = difference(got, want, outcome.counts, case.ranges.get(name))
        if wrong:
            return f"{name}: {wrong}"
    return ""
