"""How the daemon is at one moment: what its health message and its metrics are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modeld.service.process_figures import Figures, Temperature
from modeld.service.realtime import Effect
from modeld.state.loop_state import Fault, LoopState
from modeld.state.stages import BOUNDS_MS, NS_PER_MS

_NS_PER_S = 1_000_000_000


class TestResult(StrEnum):
    """What came of the artifact's self-test; names as in health.capnp."""

    __test__ = False  # no test of pytest's

    NOT_DONE = "notDone"
    PASSED = "passed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SelfTestFacts:
    """The self-test of the model in use.

    Attributes:
        result: What came of it.
        duration_ms: How long it took.
        detail: Why it failed or was not done.
    """

    result: TestResult = TestResult.NOT_DONE
    duration_ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """What does not change while a model is in use.

    Attributes:
        kind: Of the artifact, "driving" or "monitoring".
        model: Path of the model in use; without one, the health message has the loop's name of it.
        sha256: Of the artifact, hexadecimal.
        program_sha256: Of its program, hexadecimal.
        lineage: Where the model came from, as the artifact tells it.
        checkpoints: Name of each model's checkpoint, by role.
        device: The OpenCL device.
        driver: Its driver, with version.
        self_test: Of the artifact.
        realtime: What was asked of the system.
        start_problems: Models that were to be used and cannot be.
        versions: By name; that of modeld first.
        started_ns: When the process was started, as `LoopState`'s stamps; 0: when its reporter was
            made.
    """

    kind: str
    model: str = ""
    sha256: str = ""
    program_sha256: str = ""
    lineage: Mapping[str, str] = field(default_factory=dict)
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    driver: str = ""
    self_test: SelfTestFacts = SelfTestFacts()
    realtime: tuple[Effect, ...] = ()
    start_problems: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    started_ns: int = 0


@dataclass(frozen=True, slots=True)
class FaultCount:
    """How often a kind of fault has been seen, since the start and lately."""

    name: str
    count: int
    recent: int


@dataclass(frozen=True, slots=True)
class StageCounts:
    """Durations of one stage since the start.

    Attributes:
        name: Of the stage.
        counts: One for each bound of `stages.BOUNDS_MS`, and one for what is beyond.
        sum_ms: Of the durations.
    """

    name: str
    counts: tuple[int, ...]
    sum_ms: float


@dataclass(frozen=True, slots=True)
class HealthSnapshot:
    """How the daemon is; fields as in health.capnp, times in seconds.

    Attributes:
        publication_age_s: Since the last messages went out; None: none has yet.
        frame_wait_s: For which a frame has waited for its messages; 0 if none has.
        run_time_s: For which the model's present run lasts; 0 if it is not running.
        reasons: Why frames are not used now, and why the last messages were not valid.
    """

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
    publication_age_s: float | None
    frame_wait_s: float
    run_time_s: float
    reasons: tuple[str, ...]
    faults: tuple[FaultCount, ...]
    recent_s: float
    recent_published: int
    stages: tuple[StageCounts, ...]
    figures: Figures
    temperatures: tuple[Temperature, ...]
    bounds_ms: tuple[float, ...] = BOUNDS_MS


@dataclass(frozen=True, slots=True)
class Earlier:
    """What is kept of a moment before, to tell what is recent.

    Attributes:
        now_ns: The moment.
        published: Frames published until then.
        faults: Faults until then.
    """

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
    """Return how the daemon is.

    Each field of `state` is read once: its loop goes on writing.

    Args:
        facts: What does not change.
        state: Of the loop.
        now_ns: The moment, as the stamps of `state`.
        earlier: What "recent" begins with.
        others: Faults that are not the loop's to count, which are added to its counts.
        measured: What the process takes, and how warm the machine is.
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
