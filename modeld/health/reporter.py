"""Reports the daemon's health once a second, as a message on the bus and a metrics file.

The thread that supervises the loop calls the reporter; the loop itself never does. Slow work
(writing the metrics file, reading sensors) is done in a separate thread, so a disk that hangs does
not stop the supervision.
"""

import logging
import os
import threading
from collections import deque
from typing import Any, Final

from cereal.clock import Clock
from cereal.pubsub import PubMaster
from cereal.transport import Transport
from modeld.health.metrics import MetricsFile
from modeld.health.snapshot import (
    Earlier,
    FigureReader,
    HealthSnapshot,
    ServiceFacts,
    Temperature,
    find_sensors,
    read_temperatures,
    take_snapshot,
)
from modeld.state.loop_state import Fault, LoopState

logger = logging.getLogger(__name__)

HEALTH_SERVICES: Final = {"driving": "modeldHealth", "monitoring": "dmonitoringmodeldHealth"}
"""Kind of the artifact -> the service on which its daemon publishes its health."""

# Number of reports that count as "recent", and their duration: ten seconds.
_RECENT_REPORTS: Final = 10
_RECENT_NS: Final = 10_000_000_000
# Sensors are read once per this many reports: temperatures change in tens of seconds.
_SENSOR_REPORTS: Final = 10
_JOIN_S: Final = 1.0


class HealthReporter:
    """Publishes a daemon's health. Set `facts` after a model change, `state` for a new loop."""

    def __init__(
        self,
        facts: ServiceFacts,
        state: LoopState,
        transport: Transport,
        clock: Clock,
        service: str,
        metrics: MetricsFile | None = None,
    ) -> None:
        """Open `service`, one of `HEALTH_SERVICES`. Use the reporter in the calling thread only.

        Reports are also written to the file `metrics`, if any. Raises TransportError if the service
        has another publisher.
        """
        self.facts = facts
        self.state = state
        self._service = service
        self._publications = PubMaster((service,), transport, clock)
        self._figures = FigureReader()
        self._metrics = metrics
        self._aside = _Aside(metrics)
        self._earlier: deque[Earlier] = deque(maxlen=_RECENT_REPORTS)

    def report(self, now_ns: int, log_lost: int = 0) -> HealthSnapshot:
        """Publish the daemon's health and return it. Never blocks; failed readings do not raise.

        `now_ns` is from `time.monotonic_ns`, like the stamps of the state. `log_lost` is the number
        of lost log records that the loop did not count.
        """
        snapshot = self._snapshot(now_ns, log_lost)
        event = self._publications.new(self._service)
        event.valid = True
        _fill_health(getattr(event, self._service), snapshot)
        self._publications.send(self._service, event)
        self._aside.offer(snapshot)
        return snapshot

    def close(self) -> None:
        """Wait until the last metrics are written, then close the publisher."""
        self._aside.close()
        self._figures.close()
        self._publications.close()

    def _snapshot(self, now_ns: int, log_lost: int) -> HealthSnapshot:
        if not self._earlier:
            # In the first report, "recent" includes start-up, up to ten seconds.
            self._earlier.append(Earlier(max(self.facts.started_ns, now_ns - _RECENT_NS)))
        snapshot = take_snapshot(
            self.facts,
            self.state,
            now_ns,
            self._earlier[0],
            {Fault.LOG_LOST: log_lost, Fault.METRICS_LOST: self._aside.lost},
            (self._figures.read(), self._aside.temperatures),
        )
        counts = {fault.name: fault.count for fault in snapshot.faults}
        self._earlier.append(Earlier(now_ns, snapshot.published, counts))
        return snapshot


class _Aside:
    """A thread for slow work on the newest snapshot; it skips snapshots if it is late.

    `temperatures` are the last readings of the sensors.
    """

    def __init__(self, metrics: MetricsFile | None) -> None:
        self.temperatures: tuple[Temperature, ...] = ()
        self._metrics = metrics
        self._late = 0
        # Holds the newest snapshot only. A deque, because its operations need no lock.
        self._offered: deque[HealthSnapshot] = deque(maxlen=1)
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = threading.Thread(
            target=self._run, name="modeld-files", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as error:
            logger.warning("neither metrics nor temperatures: %s", error)
            self._thread = None

    @property
    def lost(self) -> int:
        """The number of snapshots that were not written to the metrics file."""
        return self._late + (self._metrics.failures if self._metrics is not None else 0)

    def offer(self, snapshot: HealthSnapshot) -> None:
        """Pass a snapshot to the thread; it replaces one that the thread has not yet taken."""
        if self._offered and self._metrics is not None:
            if self._late == 0:
                logger.warning("%s: the file before is still being written", self._metrics.path)
            self._late += 1
        self._offered.append(snapshot)
        self._wake.set()

    def close(self) -> None:
        """End the thread after its last snapshot; do not wait long for a thread that hangs."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            sensors = find_sensors()
        except OSError:
            sensors = ()
        if not sensors and self._metrics is None:
            return
        reports = 0
        stopping = False
        while not stopping:
            self._wake.wait()
            self._wake.clear()
            # Read the flag before the snapshot: no snapshot is offered after it is set.
            stopping = self._stopping
            if not self._offered:
                continue
            snapshot = self._offered.popleft()
            if self._metrics is not None:
                self._metrics.write(snapshot)
            if reports % _SENSOR_REPORTS == 0:
                self.temperatures = read_temperatures(sensors)
            reports += 1


# --- The health message: modeldHealth or dmonitoringmodeldHealth ------------------------------

# Longer texts are truncated, so a reason or a path cannot make the message large.
_MOST_CHARACTERS: Final = 500
_UINT32: Final = (1 << 32) - 1


def _fill_health(health: Any, snapshot: HealthSnapshot) -> None:
    """Fill a ModeldHealth from a snapshot."""
    _fill_model(health, snapshot)
    _fill_frames(health, snapshot)
    _fill_process(health, snapshot)


def _fill_model(health: Any, snapshot: HealthSnapshot) -> None:
    facts = snapshot.facts
    health.kind = facts.kind
    for item, (name, version) in _pairs(health, "versions", facts.versions.items()):
        item.name, item.version = name, version
    health.processId = os.getpid()
    health.uptime = snapshot.uptime_s
    health.phase = snapshot.phase
    health.model = _short(snapshot.model)
    health.modelSha256 = facts.sha256
    health.programSha256 = facts.program_sha256
    for item, (name, value) in _pairs(health, "lineage", facts.lineage.items()):
        item.name, item.value = name, value
    for item, (role, name) in _pairs(health, "checkpoints", facts.checkpoints.items()):
        item.role, item.name = role, _short(name)
    health.isFallback = bool(snapshot.fallback)
    health.fallbackReason = _short(snapshot.fallback)
    health.device = _short(facts.device)
    health.driver = _short(facts.driver)
    health.selfTest.result = facts.self_test.result.value
    health.selfTest.duration = facts.self_test.duration_ms
    health.selfTest.detail = _short(facts.self_test.detail)
    health.warmUpRunsLeft = snapshot.warm_up_left
    health.startProblems = [_short(problem) for problem in facts.start_problems]


def _fill_frames(health: Any, snapshot: HealthSnapshot) -> None:
    health.frames = snapshot.frames
    health.published = snapshot.published
    health.publishedValid = snapshot.valid
    health.dropped = snapshot.dropped
    health.frameId = snapshot.frame_id & _UINT32
    age_s = snapshot.publication_age_s
    health.publicationAge = -1.0 if age_s is None else age_s
    health.frameWait = snapshot.frame_wait_s
    health.runTime = snapshot.run_time_s
    health.invalidReasons = [_short(reason) for reason in snapshot.reasons]
    for item, fault in _pairs(health, "faults", snapshot.faults):
        item.name = fault.name
        item.count = fault.count
        item.recent = min(fault.recent, _UINT32)
    health.recentTime = snapshot.recent_s
    health.recentPublished = min(snapshot.recent_published, _UINT32)
    health.stageBounds = snapshot.bounds_ms
    for item, stage in _pairs(health, "stages", snapshot.stages):
        item.name = stage.name
        item.counts = stage.counts
        item.sum = stage.sum_ms


def _fill_process(health: Any, snapshot: HealthSnapshot) -> None:
    figures = snapshot.figures
    health.memory = figures.memory_bytes
    health.memoryPeak = figures.memory_peak_bytes
    health.openFiles = figures.open_files
    health.threads = figures.threads
    health.cpuTime = figures.cpu_s
    health.majorFaults = figures.major_faults
    for item, sensor in _pairs(health, "temperatures", snapshot.temperatures):
        item.name = _short(sensor.name)
        item.degrees = sensor.degrees_c
    for item, effect in _pairs(health, "realtime", snapshot.facts.realtime):
        item.name = effect.name
        item.wanted = effect.wanted
        item.effective = effect.effective
        item.reason = _short(effect.reason)


def _pairs(health: Any, name: str, values: Any) -> Any:
    """Create the list `name` in the message; return its elements paired with the values."""
    return zip(health.init(name, len(values)), values, strict=True)


def _short(text: str) -> str:
    """Return a text truncated and valid in UTF-8; a path can contain lone surrogates."""
    return text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode()
