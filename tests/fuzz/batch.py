"""Many programs, scheduled one by one, built as one: what a driver's start costs is paid once.

Every variant of every program is an entry of one artifact. On a CPU all kernels are functions of
one replay program (ADR 0040), which is compiled at once; for other targets kernels share programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import ProgramCache
from runtime.run.executor import Program
from scheduler.context import HALVES, CompileContext
from scheduler.device.spec import SPECS, with_buffers
from scheduler.emit import artifact as emit
from scheduler.emit.schedule import Schedule
from scheduler.pipeline import schedule
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.compare import Counts, difference
from tests.fuzz.rounding import Known
from tests.scheduler.support.memory_check import memory_faults

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

Array = NDArray[Any]
Values = Mapping[str, Array]
# Code for GPUs is compiled kernel by kernel: without the driver's optimizer, in most batches, this
# takes a third of the time.
UNOPTIMIZED: Final = "-cl-opt-disable"
OPTIMIZED_EVERY: Final = 4
# Kernels of one OpenCL program: a compiler's start-up costs as much as a dozen of them.
KERNELS_PER_PROGRAM: Final = 64


@dataclass
class Outcome:
    """What became of a program.

    Attributes:
        name: what finds it again.
        problem: what is wrong, "" if nothing is.
        text: the program, where something is wrong.
        counts: elements that were compared.
        digest: of the bytes of all results, where every variant gives the same ones.
    """

    name: Name
    problem: str = ""
    text: str = ""
    counts: Counts = field(default_factory=Counts)
    digest: str = ""


def run_batch(cases: Sequence[Case]) -> list[Outcome]:
    """Schedule programs of one target, build them together, run and compare each.

    What is raised while one program is scheduled is that program's problem; what is raised
    while all are built or run passes through, for the caller to take them one by one.
    """
    outcomes = [Outcome(case.name, case.problem) for case in cases]
    plans: dict[str, Schedule] = {}
    for i, case in enumerate(cases):
        for j, variant in enumerate(case.variants):
            if not outcomes[i].problem:
                try:
                    plans[f"{i}.{j}"] = _scheduled(case.name, variant)
                except Exception as error:  # noqa: BLE001  # whatever it is, it is what is looked for
                    outcomes[i].problem = f"{variant.label}: {type(error).__name__}: {error}"
    plans = {key: plan for key, plan in plans.items() if not outcomes[_case_of(key)].problem}
    if plans:
        _run_all(cases, plans, outcomes)
    for case, outcome in zip(cases, outcomes, strict=True):
        outcome.text = case.text() if outcome.problem else ""
    return outcomes


def _case_of(key: str) -> int:
    return int(key.partition(".")[0])


def context_of(name: Name, variant: Variant) -> CompileContext:
    spec = with_buffers(SPECS[variant.row or name.row], variant.buffers)
    return CompileContext(
        replace(spec, dot4=variant.dot4),
        precision=variant.precision,
        halves=HALVES[name.seed % len(HALVES)],
        numerics=variant.numerics,
        tuned=variant.tuned,
    )


def _scheduled(name: Name, variant: Variant) -> Schedule:
    outputs, context = {n: t.node for n, t in variant.outputs.items()}, context_of(name, variant)
    with variant.setting():
        return schedule(outputs, [w.node for w in variant.writes], context=context)


def _run_all(cases: Sequence[Case], plans: Mapping[str, Schedule], outcomes: list[Outcome]) -> None:
    first = cases[0].name
    plain = SPECS[first.row].is_simt and first.seed % OPTIMIZED_EVERY != 0
    with mock.patch.object(emit, "KERNELS_PER_PROGRAM", KERNELS_PER_PROGRAM):
        made = emit.emit(plans, name="fuzz", kind="plain", options=UNOPTIMIZED if plain else "")
    for fault in memory_faults(made.manifest):
        outcomes[_case_of(fault)].problem = f"memory: {fault}"
    states = _rename_states(made.manifest)
    device = choose_device(None)
    with Program(from_memory(made.manifest, made.data), device, ProgramCache(device)) as program:
        expected = {i: cases[i].expected() for i in dict.fromkeys(map(_case_of, plans))}
        for key in plans:
            i, j = _case_of(key), int(key.partition(".")[2])
            bits, outcome = sha256(), outcomes[i]
            found = _run(program, key, cases[i], states, (expected[i], outcome.counts), bits)
            outcome.digest = outcome.digest or bits.hexdigest()
            if cases[i].equal and not found and outcome.digest != bits.hexdigest():
                found = f"gives other bytes than {cases[i].variants[0].label}"
            if found and not outcome.problem:
                outcome.problem = f"{cases[i].variants[j].label} {found}".strip()


def _rename_states(manifest: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Give states of different programs different names; return them by entry and old name."""
    found = {}
    buffers = manifest["buffers"]
    for i, buffer in enumerate(buffers):
        if buffer["kind"] == "state":
            found[i] = buffer["name"]
            buffer["name"] += f"@{i}"
    names = {}
    for entry, spec in manifest["entries"].items():
        touched = {a for k in spec["launches"] for a in manifest["kernels"][k]["args"]}
        for i in touched & set(found):
            names[entry, found[i]] = buffers[i]["name"]
    return names


Expected = list[tuple[dict[str, Known], dict[str, Known]]]


def _run(
    program: Program,
    entry: str,
    case: Case,
    states: Mapping[tuple[str, str], str],
    judged: tuple[Expected, Counts],
    bits: Hash,
) -> str:
    """Run an entry as often as its program wants; return the first difference.

    `bits` gets the bytes of all results.
    """
    program.reset()
    expected, counts = judged
    used = {spec.name for spec in program.entry_inputs(entry)}
    for turn, (given, (results, new)) in enumerate(zip(case.runs, expected, strict=True)):
        feed = {n: np.asarray(v, order="C") for n, v in given.items() if n in used}
        got = program.run(feed, entry)
        for name, want in results.items():
            bits.update(got[name].tobytes())
            wrong = difference(got[name], want, counts, case.ranges.get(name))
            if wrong:
                return f"run {turn}, output {name}: {wrong}"
        for name, want in new.items():
            if (entry, name) in states:
                state = program.state(states[entry, name])
                bits.update(state.tobytes())
                wrong = difference(state, want, counts)
                if wrong:
                    return f"run {turn}, state {name}: {wrong}"
    return ""
