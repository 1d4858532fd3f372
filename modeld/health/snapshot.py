"""The daemon's health at one moment, the source of its health message and its metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modeld.service.process_figures import Figures, Temperature
from modeld.service.realtime import Effect
from modeld.state.loop_state import Fault, LoopState
from modeld.state.stages import BOUNDS_MS, NS_PER_MS

_NS_PER_S = 1_000_000_000


class TestResult(StrEnum):
    """The result of the artifact's self-test; names as in health.capnp."""

    __test__ = False  # no test of pytest's

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

    kind: str  # of the artifact, "driving" or "monitoring"
    model: str = ""  # path of the model in use; "": the health message has the loop's name
    sha256: str = ""  # of the artifact
    program_sha256: str = ""  # of its program
    # Where the model came from, by its artifact.
    lineage: Mapping[str, str] = field(default_factory=dict)
    # Name of each model's checkpoint, by role.
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    device: str = ""  # the OpenCL device
    driver: str = ""  # of the device, with version
    self_test: SelfTestFacts = SelfTestFacts()
    realtime: tuple[Effect, ...] = ()  # requests to the system
    start_problems: tuple[str, ...] = ()  # unusable models
    versions: Mapping[str, str] = field(default_factory=dict)  # by name; that of modeld first
    started_ns: int = 0  # start of the process, as `LoopState`'s stamps; 0: of its reporter


@dataclass(frozen=True, slots=True)
class FaultCount:
    """How often a kind of fault has been seen, since the start and lately."""

    name: str
    count: int
    recent: int


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Durations of one stage since the start."""

    name: str
    counts: tuple[int, ...]  # one for each bound of `stages.BOUNDS_MS`, and one beyond
    sum_ms: float


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """The daemon's health; fields as in health.capnp, times in seconds."""

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
    publication_age_s: float | None  # since the last messages; None: none has gone out yet
    frame_wait_s: float  # how long a frame has waited for its messages; 0 if none has
    run_time_s: float  # of the model's present run so far; 0 if it is not running
    reasons: tuple[str, ...]  # for unused frames, and for invalid messages
    faults: tuple[FaultCount, ...]
    recent_s: float
    recent_published: int
    stages: tuple[StageCounts, ...]
    figures: Figures
    temperatures: tuple[Temperature, ...]
    bounds_ms: tuple[float, ...] = BOUNDS_MS


@dataclass(frozen=True, slots=True)
class Earlier:
    """Counts at an earlier moment, to find recent changes."""

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
    """Return the daemon's health at `now_ns`, by the clock of the stamps of `state`.

    Each field of `state` is read once: its loop goes on writing. Recent values count from
    `earlier`. `others` has faults that the loop does not count; they are added. `measured` has the
    figures of the process and the temperatures.
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
    """Return the seconds since a stamp, 0 if there is none; never negative: stamps go on."""
    return max(0, now_ns - stamp_ns) / _NS_PER_S if stamp_ns else 0.0
