"""Runs the self-test of an artifact: does the device compute what the model means?

    states and inputs of a seed -> one run -> outputs and states, beside those of the artifact

It finds a driver that miscompiles, a binary of another program, memory and weights that are not
what they were. The expected values were computed without a device (`scheduler.check.vectors`).
"""

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.errors import SelfTestError
from runtime.manifest import BufferSpec
from runtime.program import Program
from runtime.selftest_inputs import Port, seeded_inputs, seeded_states
from runtime.selftest_spec import SMALLEST_PEAK, ExpectedValues, TestVector, positions

ADVICE: Final = (
    "the device computes something else than the model; do not drive with it: compile the model "
    "again here, or use another --device or driver"
)


@dataclass(frozen=True, slots=True)
class Deviation:
    """One output or state beside what is expected, where it is furthest off.

    Attributes:
        entry, seed: of the run.
        kind: "output" or "state".
        name: of the array.
        index: of the value in it; () for an array without elements.
        expected, found: the value.
        peak: the largest expected value, 1 for integers.
        deviation: the difference, as a share of `peak`; infinite if no finite number was found.
        tolerance: what it may be.
        values: so many were compared.
        beyond: so many of them were further off than the tolerance.
        passed: whether that is allowed.
    """

    entry: str
    seed: int
    kind: str
    name: str
    index: tuple[int, ...]
    expected: float
    found: float
    peak: float
    deviation: float
    tolerance: float
    values: int
    beyond: int
    passed: bool

    def __str__(self) -> str:
        of_peak = "" if self.peak == 1.0 else f" of the largest value {self.peak:.3g}"
        return (
            f"entry {self.entry!r}, seed {self.seed}: {self.kind} {self.name!r} at "
            f"{list(self.index)}: expected {self.expected:.7g}, found {self.found:.7g}, "
            f"{self.deviation:.1e}{of_peak} off, tolerance {self.tolerance:.0e}; {self.beyond} of "
            f"{self.values} values are off"
        )


@dataclass(frozen=True, slots=True)
class SelfTestReport:
    """What a self-test found.

    Attributes:
        name: of the artifact.
        device: that ran it.
        runs: how many runs were compared; 0 if the artifact has no self-test.
        deviations: one for each array of each run, in order.
        duration_ms: of all of it.
    """

    name: str
    device: str
    runs: int
    deviations: tuple[Deviation, ...]
    duration_ms: float

    @property
    def passed(self) -> bool:
        """Whether nothing was too far off; an artifact without a self-test passes."""
        return all(d.passed for d in self.deviations)

    @property
    def worst(self) -> Deviation | None:
        """What is furthest off in units of its tolerance, failures first; None without any."""
        return max(
            self.deviations,
            key=lambda d: (not d.passed, d.deviation / (d.tolerance or 1.0)),
            default=None,
        )

    def require(self) -> None:
        """Do nothing if all is well.

        Raises:
            SelfTestError: says what is furthest off and what to do next.
        """
        worst = self.worst
        if worst is not None and not worst.passed:
            raise SelfTestError(f"{self.name}: self-test on {self.device}: {worst}; {ADVICE}")

    def __str__(self) -> str:
        if not self.runs:
            return "no self-test"
        values = sum(d.values for d in self.deviations)
        verdict = "passed" if self.passed else "failed"
        return f"self-test {verdict}: {self.runs} runs, {values} values, {self.duration_ms:.0f} ms"

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data; numbers that are not finite are None."""
        rows = [asdict(d) for d in self.deviations]
        for row in rows:
            for key, value in row.items():
                if isinstance(value, float) and not np.isfinite(value):
                    row[key] = None
        return {
            "name": self.name,
            "device": self.device,
            "runs": self.runs,
            "passed": self.passed,
            "duration_ms": self.duration_ms,
            "deviations": rows,
        }


def self_test(program: Program, *, limit: int | None = None) -> SelfTestReport:
    """Run the self-test of a loaded program; its states are at their reset values afterwards.

    Args:
        program: that nobody else runs meanwhile.
        limit: at most so many runs; None for all that the artifact has.

    Returns:
        What was compared; `runs` is 0 if the artifact has no self-test.

    Raises:
        SelfTestError: an output or state is too far off; the message names the worst.
        RuntimeFault: the device failed.
    """
    report = run_self_test(program, limit=limit)
    report.require()
    return report


def run_self_test(program: Program, *, limit: int | None = None) -> SelfTestReport:
    """Do what `self_test` does, and return the report of a failure, too.

    Raises:
        RuntimeFault: the device failed.
    """
    started_ns = time.perf_counter_ns()
    vectors = program.manifest.self_test[:limit]
    deviations: list[Deviation] = []
    try:
        for vector in vectors:
            deviations += _run(program, vector)
    finally:
        if vectors:
            program.reset()
    return SelfTestReport(
        name=program.manifest.name,
        device=program.stats.device,
        runs=len(vectors),
        deviations=tuple(deviations),
        duration_ms=(time.perf_counter_ns() - started_ns) / 1e6,
    )


def _run(program: Program, vector: TestVector) -> list[Deviation]:
    states = [_port(b) for b in program.manifest.buffers if b.kind == "state"]
    for name, value in seeded_states(states, vector.seed).items():
        program.set_state(name, value)
    specs = program.entry_inputs(vector.entry)
    ports = [Port(s.name, s.shape, s.dtype, s.partial) for s in specs]
    outputs = program.run(seeded_inputs(ports, vector.seed), vector.entry)
    return [
        _compared(
            vector,
            expected,
            outputs[expected.name] if expected.kind == "output" else program.state(expected.name),
        )
        for expected in vector.expected
    ]


def _port(spec: BufferSpec) -> Port:
    return Port(spec.name, spec.shape, np.dtype(spec.dtype), spec.partial)


def _compared(vector: TestVector, wanted: ExpectedValues, array: NDArray[Any]) -> Deviation:
    at = positions(array.size)
    expected, found = wanted.values.astype(np.float64), array.reshape(-1)[at].astype(np.float64)
    is_float = wanted.values.dtype.kind == "f"
    peak = max(float(np.abs(expected).max(initial=0.0)), SMALLEST_PEAK) if is_float else 1.0
    with np.errstate(all="ignore"):
        off = np.abs(found - expected) / peak
    off[np.isnan(off)] = np.inf
    beyond = int((off > wanted.tolerance).sum())
    worst = int(off.argmax()) if off.size else 0
    index = np.unravel_index(int(at[worst]), array.shape) if off.size else ()
    return Deviation(
        entry=vector.entry,
        seed=vector.seed,
        kind=wanted.kind,
        name=wanted.name,
        index=tuple(int(i) for i in index),
        expected=float(expected[worst]) if off.size else 0.0,
        found=float(found[worst]) if off.size else 0.0,
        peak=peak,
        deviation=float(off[worst]) if off.size else 0.0,
        tolerance=wanted.tolerance,
        values=len(off),
        beyond=beyond,
        passed=beyond <= wanted.share * len(off),
    )
