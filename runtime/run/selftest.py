"""The self-test of an artifact: checks that the device computes the model's values.

    states and inputs from a seed -> one run -> outputs and states, compared with the artifact

It detects miscompiling drivers, wrong binaries, and damaged memory or weights. The expected values
were computed without a device (`scheduler.check.vectors`).

`seeded_inputs` and `seeded_states` follow a rule that existing artifacts rely on:

    stream      splitmix64 seeded by seed, kind and name: 64-bit words, little endian
    uint8 int8  the stream's bytes
    bool        the lowest bit of each byte
    integers    of 16 bits and more: the lowest bit of each word; 0 and 1 are usually valid indices
    floats      the sum of the four 16-bit parts of a word, near N(0, 1) and within 3.5

To a program that reads camera frames, such noise would be meaningless. So these inputs have a rule
of their own:

    x_frame, x_geometry     a pair: an NV12 picture of at most 640x400 with a texture
    x_transform             3x3: maps the model's pixels to about the middle of the picture, sheared
    desire, ...             a single 1 among zeros

The rule uses only integer arithmetic and single roundings, and no library function, so the values
are the same on all machines. Changing it requires a new `SELF_TEST_RULE` in `runtime.format.parts`.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from runtime.errors import SelfTestError
from runtime.format.parts import SMALLEST_PEAK, ExpectedValues, TestVector, positions
from runtime.run.entry import TensorSpec, tensor_spec
from runtime.run.program import Program

Array = NDArray[Any]

_FRAME, _GEOMETRY, _TRANSFORM = "_frame", "_geometry", "_transform"
_ONE_OF_SEVERAL: Final = frozenset({"desire", "traffic_convention"})
# Luma size of the picture, halved until the frame fits the program's input.
_WIDTH, _HEIGHT = 640, 400
# The texture is a triangle wave. It is steep enough to distinguish rows and columns, yet so flat
# that rounding a position to 1/32 pixel changes a sample by at most 1, noise included.
_PEAK: Final = 224
_NOISE: Final = 15
# The mean of a sum of four uniform values in 0 .. 65535.
_MEAN: Final = 131070
# The factor that makes the standard deviation of that sum 1.
_UNIT: Final = np.float32(math.sqrt(3.0) / 65536)
# Splitmix64, from Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def seeded_inputs(ports: Sequence[TensorSpec], seed: int) -> dict[str, Array]:
    """Return an array for each input of an entry, for `Program.run`."""
    found = {port.name: port for port in ports}
    made = {}
    for port in ports:
        view = port.name.rpartition("_")[0]
        frame, geometry = found.get(view + _FRAME), found.get(view + _GEOMETRY)
        # The bytes can be interpreted as a picture only if both inputs exist.
        layout = None if frame is None or geometry is None else _layout(frame, geometry, seed)
        made[port.name] = _input(port, seed, layout)
    return made


def seeded_states(ports: Iterable[TensorSpec], seed: int) -> dict[str, Array]:
    """Return an array for each state."""
    return {port.name: _values(port, "state", seed) for port in ports}


def _words(kind: str, name: str, seed: int, count: int) -> NDArray[np.uint64]:
    key = hashlib.sha256(f"{seed}/{kind}/{name}".encode()).digest()[:8]
    words = np.arange(1, count + 1, dtype=np.uint64)
    words *= _STEP
    words += np.uint64(int.from_bytes(key, "little"))
    for shift, factor in _MIX:
        words ^= words >> np.uint64(shift)
        words *= np.uint64(factor)
    words ^= words >> np.uint64(31)
    return words


def _bytes(kind: str, name: str, seed: int, count: int) -> NDArray[np.uint8]:
    return _words(kind, name, seed, -(-count // 8)).astype("<u8").view(np.uint8)[:count]


def _values(port: TensorSpec, kind: str, seed: int) -> Array:
    size, dtype = math.prod(port.shape), port.dtype
    if dtype.kind == "b":
        made: Array = (_bytes(kind, port.name, seed, size) & 1).astype(dtype)
    elif dtype.itemsize == 1:
        made = _bytes(kind, port.name, seed, size).view(dtype)
    elif dtype.kind in "iu":
        made = (_words(kind, port.name, seed, size) & np.uint64(1)).astype(dtype)
    else:
        parts = _words(kind, port.name, seed, size).astype("<u8").view("<u2").reshape(size, 4)
        made = ((parts.sum(1, dtype=np.int32) - _MEAN) * _UNIT).astype(dtype)
    return np.asarray(made.reshape(port.shape), order="C")


class _Layout(NamedTuple):
    """A picture's layout in pixels and bytes. `scale` is its width relative to the usual one."""

    width: int
    height: int
    stride: int
    scale: float

    @property
    def size(self) -> int:
        """Size of both planes, bytes."""
        return self.stride * (self.height + self.height // 2)


def _layout(frame: TensorSpec, geometry: TensorSpec, seed: int) -> _Layout | None:
    """Return the layout of a frame's picture; None if the inputs do not describe a frame."""
    is_frame = frame.partial and frame.dtype == np.uint8 and len(frame.shape) == 1
    if not is_frame or (geometry.dtype, geometry.shape) != (np.dtype(np.int32), (4,)):
        return None
    width, height = _WIDTH, _HEIGHT
    while True:
        # Every second seed pads the rows.
        layout = _Layout(width, height, width + seed % 2 * 64, width / _WIDTH)
        if layout.size <= frame.shape[0]:
            return layout
        if height < 8:
            return None
        width, height = width // 2, height // 4 * 2


def _input(port: TensorSpec, seed: int, layout: _Layout | None) -> Array:
    name, dtype = port.name, port.dtype
    if name.endswith(_TRANSFORM) and port.shape == (3, 3) and dtype.kind == "f":
        return _transform(name, seed, 1.0 if layout is None else layout.scale).astype(dtype)
    if layout is not None and name.endswith(_GEOMETRY):
        width, height, stride, _ = layout
        return np.array([width, height, stride, stride * height], np.int32)
    if layout is not None and name.endswith(_FRAME):
        return _picture(name, seed, layout)
    if name in _ONE_OF_SEVERAL and dtype.kind == "f" and 0 not in port.shape:
        hot = np.zeros(port.shape, dtype)
        hot.reshape(-1)[int(_words("input", name, seed, 1)[0]) % hot.size] = 1
        return hot
    return _values(port, "input", seed)


def _picture(name: str, seed: int, layout: _Layout) -> Array:
    rows = layout.size // layout.stride
    column = np.arange(layout.stride, dtype=np.int32)[None, :] // 2
    row = np.arange(rows, dtype=np.int32)[:, None]
    wave = (3 * column + 5 * row + 64 * seed) % (2 * _PEAK)
    noise = _bytes("input", name, seed, layout.size).reshape(rows, layout.stride) & _NOISE
    picture: Array = (np.minimum(wave, 2 * _PEAK - wave) + noise).astype(np.uint8)
    return picture.reshape(-1)


def _transform(name: str, seed: int, scale: float) -> NDArray[np.float64]:
    """Return a matrix from model to camera pixels: scaled by 0.4, shifted and slightly sheared."""
    u = _words("input", name, seed, 8).astype("<u8").view("<u2")[::4] / 65536
    return np.array(
        [
            [scale * (0.40 + 0.04 * u[0]), 0.01 * (u[1] - 0.5), scale * (8 + 16 * u[2])],
            [0.01 * (u[3] - 0.5), scale * (0.40 + 0.04 * u[4]), scale * (4 + 8 * u[5])],
            [1e-5 * u[6], 1e-5 * u[7], 1.0],
        ]
    )


# --- The comparison ---------------------------------------------------------------------------

ADVICE: Final = (
    "the device computes something else than the model; do not drive with it: compile the model "
    "again here, or use another --device or driver"
)


@dataclass(frozen=True, slots=True)
class Deviation:
    """The largest deviation of one output or state from its expected values."""

    entry: str  # name of the entry
    seed: int  # seed of the test vector
    kind: str  # "output" or "state"
    name: str  # name of the output or state
    index: tuple[int, ...]  # index of the value in the array; () for an array without elements
    expected: float
    found: float
    peak: float  # the largest expected magnitude; 1 for integers
    deviation: float  # relative to `peak`; infinite if a value is not finite
    tolerance: float  # the largest acceptable deviation
    values: int  # number of compared values
    beyond: int  # number of values beyond the tolerance
    passed: bool  # whether the number beyond the tolerance is acceptable

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
    """The result of a self-test."""

    name: str  # name of the artifact
    device: str  # the device's name
    runs: int  # number of compared runs; 0 if the artifact has no self-test
    deviations: tuple[Deviation, ...]  # one for each array of each run, in order
    duration_ms: float

    @property
    def passed(self) -> bool:
        """Whether all deviations are acceptable. An artifact without a self-test passes."""
        return all(d.passed for d in self.deviations)

    @property
    def worst(self) -> Deviation | None:
        """The largest deviation relative to its tolerance, failures first; None without any."""
        return max(
            self.deviations,
            key=lambda d: (not d.passed, d.deviation / (d.tolerance or 1.0)),
            default=None,
        )

    def require(self) -> None:
        """Raise SelfTestError on failure, with the largest deviation and advice."""
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
        """Return the report as plain data. Numbers that are not finite become None."""
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
    """Run the self-test of a loaded program. It resets the program's states afterwards.

    Nothing else may run the program meanwhile. `limit` is the most runs to make. The report's
    `runs` is 0 if the artifact has no self-test.

    Raises:
        SelfTestError: an output or state deviates too much; the message names the worst.
        RuntimeFault: the device failed.
    """
    report = run_self_test(program, limit=limit)
    report.require()
    return report


def run_self_test(program: Program, *, limit: int | None = None) -> SelfTestReport:
    """Do the same as `self_test`, but report deviations without raising SelfTestError."""
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
    states = [tensor_spec(b) for b in program.manifest.buffers if b.kind == "state"]
    for name, value in seeded_states(states, vector.seed).items():
        program.set_state(name, value)
    inputs = seeded_inputs(program.entry_inputs(vector.entry), vector.seed)
    outputs = program.run(inputs, vector.entry)
    return [
        _compared(
            vector,
            expected,
            outputs[expected.name] if expected.kind == "output" else program.state(expected.name),
        )
        for expected in vector.expected
    ]


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
