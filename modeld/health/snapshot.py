"""The daemon's health at one moment, from which its health message and metrics are made.

A snapshot combines the loop's state, the facts of its model, the process's resource usage from
/proc, and the machine's temperatures from /sys.
"""

import os
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from modeld.service.realtime import Effect
from modeld.state.episodes import NS_PER_S
from modeld.state.loop_state import BOUNDS_MS, NS_PER_MS, Fault, LoopState

# --- The process and the machine --------------------------------------------------------------

_STATUS: Final = "/proc/self/status"
_DESCRIPTORS: Final = "/proc/self/fd"
# Maximum number of bytes read of the status file. It is about 1.5 KB long, more with many CPUs or
# groups.
_STATUS_BYTES: Final = 16 << 10
_KIB: Final = 1024
# Values outside this range are not temperatures: a sensor that is off reports 0 K or its maximum.
_COLDEST_C: Final = -100.0
_HOTTEST_C: Final = 250.0
# Maximum number of temperatures to report. Phones have ninety sensors, and every reported one is
# logged.
MOST_TEMPERATURES: Final = 16


@dataclass(frozen=True, slots=True)
class Figures:
    """The resource usage of a process; 0 means unknown."""

    memory_bytes: int = 0  # resident memory
    memory_peak_bytes: int = 0  # peak of the resident memory
    threads: int = 0
    open_files: int = 0  # open file descriptors
    cpu_s: float = 0.0  # processor time of all threads, user and system
    major_faults: int = 0  # pages that had to be read from disk


class FigureReader:
    """Reads the resource usage of this process repeatedly.

    The status file stays open, so reading works even if the process runs out of descriptors.
    """

    def __init__(self) -> None:
        self._last = Figures()
        try:
            self._status = os.open(_STATUS, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._status = -1

    def read(self) -> Figures:
        """Return the resource usage; values that cannot be read stay as in the last call."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._last = replace(
            self._last, cpu_s=usage.ru_utime + usage.ru_stime, major_faults=usage.ru_majflt
        )
        try:
            self._last = replace(self._last, open_files=_count_descriptors())
            # Not ru_maxrss: it includes the program that this process ran before exec.
            status = os.pread(self._status, _STATUS_BYTES, 0)
            self._last = replace(
                self._last,
                memory_bytes=_number(status, b"\nVmRSS:") * _KIB,
                memory_peak_bytes=_number(status, b"\nVmHWM:") * _KIB,
                threads=_number(status, b"\nThreads:"),
            )
        except (OSError, ValueError, IndexError):
            return self._last
        return self._last

    def close(self) -> None:
        """Close the file."""
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def _count_descriptors() -> int:
    # Linux 6.2 and later give the number as the folder's size. Listing the folder needs a
    # descriptor, which may not be available.
    counted = os.stat(_DESCRIPTORS).st_size  # noqa: PTH116 -- a third of the time of Path.stat
    return counted or len(os.listdir(_DESCRIPTORS)) - 1  # noqa: PTH208 -- likewise


def _number(status: bytes, key: bytes) -> int:
    return int(status[status.index(key) + len(key) :].split(maxsplit=1)[0])


@dataclass(frozen=True, slots=True)
class Temperature:
    """One reading of a temperature sensor."""

    name: str
    degrees_c: float


@dataclass(frozen=True, slots=True)
class Sensor:
    """A temperature sensor: a file with a number in thousandths of a degree Celsius."""

    name: str
    path: Path


def find_sensors(root: Path = Path("/sys/class")) -> tuple[Sensor, ...]:
    """Return the sensors of thermal zones and of hardware monitors below `root`."""
    found = [
        Sensor(_text(zone / "type") or zone.name, zone / "temp")
        for zone in _numbered(root / "thermal", "thermal_zone*")
        if (zone / "temp").exists()
    ]
    for monitor in _numbered(root / "hwmon", "hwmon*"):
        # The kernel also lists each thermal zone as a monitor.
        if "thermal_zone" in str((monitor / "device").resolve()):
            continue
        name = _text(monitor / "name") or monitor.name
        for path in _numbered(monitor, "temp*_input"):
            label = _text(monitor / path.name.replace("_input", "_label"))
            found.append(Sensor(f"{name} {label or path.name.removesuffix('_input')}", path))
    return tuple(found)


def read_temperatures(sensors: Sequence[Sensor]) -> tuple[Temperature, ...]:
    """Return the readings of the sensors; if there are too many, the hottest `MOST_TEMPERATURES`.

    Reading a sensor on a slow bus takes time, so call this in a thread without deadlines.
    """
    found = []
    for sensor in sensors:
        try:
            degrees_c = int(_text(sensor.path)) / 1000
        except ValueError:
            continue
        if _COLDEST_C <= degrees_c <= _HOTTEST_C:
            found.append(Temperature(sensor.name, degrees_c))
    hottest = sorted(range(len(found)), key=lambda number: -found[number].degrees_c)
    return tuple(found[number] for number in sorted(hottest[:MOST_TEMPERATURES]))


def _numbered(folder: Path, pattern: str) -> list[Path]:
    """Return the matching paths in numeric order, hwmon2 before hwmon10."""
    return sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


# --- The snapshot -----------------------------------------------------------------------------


class TestResult(StrEnum):
    """The result of the artifact's self-test; names as in health.capnp."""

    __test__ = False  # tells pytest that this is not a test class

    NOT_DONE = "notDone"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SelfTestFacts:
    """The self-test of the model in use."""

    result: TestResult = TestResult.NOT_DONE
    duration_ms: float = 0.0
    detail: str = ""  # why it failed or was not done


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """Facts that do not change while a model is in use. Digests are hexadecimal."""

    kind: str  # kind of artifact, "driving" or "monitoring"
    model: str = ""  # path of the model in use; if empty, `LoopState.model` is used
    sha256: str = ""  # digest of the artifact
    program_sha256: str = ""  # digest of its program
    # Lineage (origin of the model) as stored in the artifact.
    lineage: Mapping[str, str] = field(default_factory=dict)
    # Name of each model's checkpoint, by role.
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    device: str = ""  # name of the OpenCL device
    driver: str = ""  # name and version of its driver
    self_test: SelfTestFacts = SelfTestFacts()
    realtime: tuple[Effect, ...] = ()  # requested real-time settings and their effect
    start_problems: tuple[str, ...] = ()  # reasons why models could not be loaded
    versions: Mapping[str, str] = field(default_factory=dict)  # by name; that of modeld first
    started_ns: int = 0  # start of the process, on the clock of `LoopState`; 0: unknown


@dataclass(frozen=True, slots=True)
class FaultCount:
    """The number of faults of one kind."""

    name: str
    count: int  # since the start
    recent: int  # since the earlier moment, `HealthSnapshot.recent_s` ago


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Histogram of the durations of one stage of the loop since the start."""

    name: str
    counts: tuple[int, ...]  # one per bound of `loop_state.BOUNDS_MS`, and one beyond the last
    sum_ms: float  # total duration


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The daemon's health. Fields are as in health.capnp."""

    facts: ServiceFacts
    uptime_s: float
    phase: str
    model: str
    fallback: str
    warm_up_left: int
    frames: int
    published: int
    valid: int
    dropped: int
    frame_id: int
    publication_age_s: float | None  # time since the last messages; None if none was sent yet
    frame_wait_s: float  # time for which a frame has waited for its messages; 0 if none waits
    run_time_s: float  # duration of the current model run so far; 0 if the model is not running
    reasons: tuple[str, ...]  # why frames are refused, and why messages are invalid
    faults: tuple[FaultCount, ...]
    recent_s: float
    recent_published: int
    stages: tuple[StageCounts, ...]
    figures: Figures
    temperatures: tuple[Temperature, ...]
    bounds_ms: tuple[float, ...] = BOUNDS_MS


@dataclass(frozen=True, slots=True)
class Earlier:
    """Counts at an earlier moment, to compute recent changes."""

    now_ns: int
    published: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)


def take_snapshot(
    facts: ServiceFacts,
    state: LoopState,
    now_ns: int,
    earlier: Earlier,
    others: Mapping[Fault, int],
    measured: tuple[Figures, tuple[Temperature, ...]],
) -> HealthSnapshot:
    """Return the daemon's health at `now_ns`, on the clock of the stamps in `state`.

    Each field of `state` is read only once, because the loop keeps writing. Recent values are
    counted from `earlier`. The faults in `others`, which the loop does not count, are added.
    `measured` is the resource usage of the process and the temperatures.
    """
    published_ns, awaiting_ns, running_ns = state.published_ns, state.awaiting_ns, state.running_ns
    published = state.published
    refusal = state.refusal(now_ns)
    counts = {kind: count + others.get(kind, 0) for kind, count in state.faults.copy().items()}
    return HealthSnapshot(
        facts=facts,
        uptime_s=_since_s(facts.started_ns, now_ns),
        phase=str(state.phase),
        model=facts.model or state.model,
        fallback=state.fallback,
        warm_up_left=state.warm_up_left,
        frames=state.frames,
        published=published,
        valid=state.valid,
        dropped=state.dropped,
        frame_id=state.frame_id,
        publication_age_s=_since_s(published_ns, now_ns) if published_ns else None,
        frame_wait_s=_since_s(awaiting_ns, now_ns),
        run_time_s=_since_s(running_ns, now_ns),
        reasons=((refusal,) if refusal else ()) + state.reasons,
        faults=tuple(
            FaultCount(str(kind), count, max(0, count - earlier.faults.get(kind, 0)))
            for kind, count in counts.items()
        ),
        recent_s=_since_s(earlier.now_ns, now_ns),
        recent_published=max(0, published - earlier.published),
        stages=tuple(
            StageCounts(name, tuple(one.counts), one.total_ns / NS_PER_MS)
            for name, one in state.stages.histograms.items()
        ),
        figures=measured[0],
        temperatures=measured[1],
    )


def _since_s(stamp_ns: int, now_ns: int) -> float:
    """Return the seconds since a stamp; 0 if it is 0 (none) or newer than `now_ns`."""
    return max(0, now_ns - stamp_ns) / NS_PER_S if stamp_ns else 0.0
