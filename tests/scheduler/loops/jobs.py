"""Tensors whose loops are looked at, and the jobs of a search that hold them."""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np
from hypothesis import strategies as st

from scheduler.context import DEFAULT_CONTEXT, CompileContext
from scheduler.device.spec import SPECS
from scheduler.device.tuned_table import Choice
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor, evaluate
from scheduler.tuning.variants import Job, jobs_of
from tests.scheduler.support.programs import Array, make_program, plan_of
from tests.scheduler.support.together import Together

# Rows of the device table whose results come in vectors, of different numbers of registers.
CPUS = ("cpu", "cpu-avx2", "cpu-sse", "cpu-neon")


def normal(*shape: int) -> Array:
    """Return values, always the same ones for a shape."""
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def weight(*shape: int) -> Tensor:
    return Tensor.weight(normal(*shape))


def jobs_for(outputs: dict[str, Tensor], context: CompileContext = DEFAULT_CONTEXT) -> list[Job]:
    return jobs_of([EntryGraph({name: t.node for name, t in outputs.items()})], context)


def job_of(tensor: Tensor, row: str = "cpu") -> Job:
    """Return the job of the last loop nest of a tensor, for a row of the device table."""
    return jobs_for({"y": tensor}, CompileContext(SPECS[row]))[-1]


def close(got: Array, expected: Array, name: str = "", tolerance: float = 1e-5) -> None:
    assert got.shape == expected.shape, name
    worst = np.abs(got - expected).max() / np.abs(expected).max()
    assert worst <= tolerance, (name, worst)


def check_numbers(
    outputs: Mapping[str, Tensor], context: CompileContext | None = None, mean: float = 0.0
) -> None:
    """Run tensors as one program on random inputs, and compare each with the interpreter."""
    with make_program(outputs, context=context).load() as program:
        inputs = {t.name: (normal(*t.shape) * 0.4 + mean).astype(t.dtype) for t in program.inputs}
        found = program.run(inputs)
        for name, want in zip(outputs, evaluate(list(outputs.values()), inputs), strict=True):
            close(found[name], want, name)


def check_apart(cases: Iterable[tuple[Tensor, CompileContext]]) -> None:
    """Run programs of one tensor each, which are built together, as `check_numbers` does."""
    found = {f"program {i}": case for i, case in enumerate(cases)}
    makers = {n: partial(plan_of, {"y": t}, context=made_for) for n, (t, made_for) in found.items()}
    with Together(makers) as built:
        for name, (tensor, _) in found.items():
            program, entry = built.entry(name)
            inputs = {t.name: normal(*t.shape) * 0.4 for t in program.entry_inputs(entry)}
            close(program.run(inputs, entry)["y"], tensor.interp(inputs), name)


def choices() -> st.SearchStrategy[Choice]:
    numbers = st.integers(1, 8)
    kept = st.fixed_dictionaries(
        {},
        optional={
            "vectors": st.integers(1, 4),
            "rows": numbers,
            "unroll": numbers,
            "items": st.integers(1, 300),
            "blocks": numbers,
            "lanes": st.sampled_from((1, 2, 4, 8, 16)),
            "group": st.integers(1, 1024),
            "local": st.integers(1, 4),
            "weights": st.just(1),
            "outside": st.just(1),
            "prefetch": st.integers(1, 2),
        },
    )
    return kept.map(lambda fields: Choice(**fields))
