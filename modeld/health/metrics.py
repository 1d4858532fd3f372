"""Writes the daemon's health to a metrics file in Prometheus' text format.

Source of the format: Prometheus, "Exposition formats", text format 0.0.4. Names follow its "Metric
and label naming": base units, and the suffix `_total` for counters. Each sample has the label
`daemon`, so the files of driving and driver monitoring can be in one directory.
"""

import logging
import math
import os
import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

from modeld.health.snapshot import HealthSnapshot, StageCounts
from modeld.state.loop_state import Phase

logger = logging.getLogger(__name__)

Labels = tuple[tuple[str, str], ...]
Samples = Iterable[tuple[Labels, float]]

_MODE: Final = 0o644
_MS_PER_S: Final = 1000
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricsFile:
    """A metrics file that is replaced atomically, so a reader never sees a partial file.

    `failures` counts failed writes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failures = 0
        # The temporary file is in the same directory, so it can be renamed. It is hidden, so no
        # collector reads it. Its name is fixed, so the next process overwrites a leftover.
        self._temporary = path.with_name(f".{path.name}.part")
        self._is_failing = False

    def write(self, snapshot: HealthSnapshot) -> None:
        """Write the file. Failed writes are counted; only the first in a row is logged."""
        try:
            # Use the wall clock, because a collector compares the time with its own clock.
            text = metrics_text(snapshot, time.time_ns() * 1e-9)
            self._replace(text.encode("utf-8", "replace"))
        except OSError as error:
            self.failures += 1
            if not self._is_failing:
                logger.warning(
                    "%s: metrics cannot be written: %s; retrying every second",
                    self.path,
                    error.strerror,
                )
            self._is_failing = True
            self._remove_temporary()
            return
        if self._is_failing:
            logger.warning("%s: metrics are written again (%d lost)", self.path, self.failures)
        self._is_failing = False

    def _replace(self, data: bytes) -> None:
        # No fsync: after a machine crash the old values are useless.
        with self._temporary.open("wb") as file:
            # A collector that runs as another user must be able to read it, whatever the umask.
            os.fchmod(file.fileno(), _MODE)
            file.write(data)
        self._temporary.replace(self.path)

    def _remove_temporary(self) -> None:
        """Remove the temporary file after a failed write; it can occupy the disk's last bytes."""
        try:
            self._temporary.unlink(missing_ok=True)
        except OSError:
            return


def metrics_text(snapshot: HealthSnapshot, written_s: float) -> str:
    """Return the metrics of a snapshot, one line per sample; `written_s` is Unix time."""
    daemon = (("daemon", snapshot.facts.kind),)
    name = "modeld_written_timestamp_seconds"
    lines = [
        f"# HELP {name} Time of writing; the file of a stopped daemon remains.",
        f"# TYPE {name} gauge",
        f"{name}{_labels(daemon)} {_number(written_s)}",
    ]
    for name, kind, meaning, samples in _families(snapshot):
        lines += (f"# HELP {name} {meaning}", f"# TYPE {name} {kind}")
        lines += [f"{name}{_labels(daemon + labels)} {_number(v)}" for labels, v in samples]
    lines += _histogram(daemon, snapshot)
    return "\n".join(lines) + "\n"


def _families(snapshot: HealthSnapshot) -> Iterator[tuple[str, str, str, Samples]]:
    """Yield name, type, help text and samples of each metric except the histogram."""
    facts = snapshot.facts
    info = (
        ("version", next(iter(facts.versions.values()), "")),
        ("model", snapshot.model),
        ("sha256", facts.sha256),
        ("program_sha256", facts.program_sha256),
        ("device", facts.device),
        ("driver", facts.driver),
    )
    yield (
        "modeld_info",
        "gauge",
        "Always 1; labels name the software and model in use.",
        [(info, 1)],
    )
    phases = [((("phase", phase),), float(snapshot.phase == phase)) for phase in Phase]
    yield "modeld_phase", "gauge", "1 for the current phase of the loop.", phases
    faults = [((("kind", fault.name),), fault.count) for fault in snapshot.faults]
    yield "modeld_faults_total", "counter", "Faults by kind.", faults
    settings = [((("setting", one.name),), float(one.effective)) for one in facts.realtime]
    yield (
        "modeld_realtime_effective",
        "gauge",
        "1 if the system applied the setting.",
        settings,
    )
    warmth = [((("sensor", one.name),), one.degrees_c) for one in snapshot.temperatures]
    yield (
        "modeld_temperature_celsius",
        "gauge",
        "Reading of a temperature sensor.",
        _unique(warmth),
    )
    for name, kind, meaning, value in _single(snapshot):
        yield name, kind, meaning, [] if value is None else [((), value)]


def _single(snapshot: HealthSnapshot) -> Iterator[tuple[str, str, str, float | None]]:
    """Yield name, type, help text and value of each metric with a single sample.

    A metric without a value, None, has no sample.
    """
    figures, facts = snapshot.figures, snapshot.facts
    gauge, counter = "gauge", "counter"
    yield "modeld_uptime_seconds", gauge, "Time since the start of the process.", snapshot.uptime_s
    yield (
        "modeld_fallback",
        gauge,
        "1 while the fallback model is in use.",
        float(bool(snapshot.fallback)),
    )
    yield (
        "modeld_start_problems",
        gauge,
        "Models that could not be loaded.",
        len(facts.start_problems),
    )
    passed = {"passed": 1.0, "failed": 0.0}.get(facts.self_test.result)
    yield "modeld_self_test_passed", gauge, "1 if the self-test passed.", passed
    duration_s = None if passed is None else facts.self_test.duration_ms / _MS_PER_S
    yield "modeld_self_test_seconds", gauge, "Duration of the self-test.", duration_s
    yield "modeld_frames_total", counter, "Frames used.", snapshot.frames
    yield "modeld_frames_published_total", counter, "Frames with messages.", snapshot.published
    yield "modeld_frames_valid_total", counter, "Frames with valid messages.", snapshot.valid
    yield (
        "modeld_frames_dropped_total",
        counter,
        "Frames missing between those used.",
        snapshot.dropped,
    )
    yield "modeld_frame_id", gauge, "Id of the last used frame.", snapshot.frame_id
    yield (
        "modeld_publication_age_seconds",
        gauge,
        "Time since the last messages were sent.",
        snapshot.publication_age_s,
    )
    wait = "Time for which a frame has waited for its messages."
    yield "modeld_frame_wait_seconds", gauge, wait, snapshot.frame_wait_s
    yield "modeld_run_seconds", gauge, "Duration of the current model run.", snapshot.run_time_s
    reasons = "Reasons why frames are not used, or the last messages not valid."
    yield "modeld_invalid_reasons", gauge, reasons, len(snapshot.reasons)
    yield "modeld_warm_up_runs_left", gauge, "Runs until histories are full.", snapshot.warm_up_left
    yield "modeld_memory_bytes", gauge, "Resident memory.", figures.memory_bytes
    yield "modeld_memory_peak_bytes", gauge, "Largest resident memory.", figures.memory_peak_bytes
    yield "modeld_open_files", gauge, "Open descriptors.", figures.open_files
    yield "modeld_threads", gauge, "Threads.", figures.threads
    yield "modeld_cpu_seconds_total", counter, "Processor time of all threads.", figures.cpu_s
    yield "modeld_major_faults_total", counter, "Pages read from disk.", figures.major_faults


def _histogram(daemon: Labels, snapshot: HealthSnapshot) -> Iterator[str]:
    name = "modeld_stage_seconds"
    yield f"# HELP {name} Durations of the stages of a frame."
    yield f"# TYPE {name} histogram"
    bounds = [*(_number(bound / _MS_PER_S) for bound in snapshot.bounds_ms), "+Inf"]
    for stage in snapshot.stages:
        yield from _stage(name, (*daemon, ("stage", stage.name)), bounds, stage)


def _stage(name: str, labels: Labels, bounds: list[str], stage: StageCounts) -> Iterator[str]:
    own = _labels(labels)
    # Buckets are cumulative in this format.
    below = list(accumulate(stage.counts))
    for bound, count in zip(bounds, below, strict=True):
        yield f'{name}_bucket{own[:-1]},le="{bound}"}} {count}'
    yield f"{name}_sum{own} {_number(stage.sum_ms / _MS_PER_S)}"
    yield f"{name}_count{own} {below[-1]}"


def _unique(samples: Samples) -> Samples:
    """Return one sample per set of labels, the largest, because a collector keeps only one."""
    found: dict[Labels, float] = {}
    for labels, value in samples:
        found[labels] = max(value, found.get(labels, -math.inf))
    return found.items()


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels) + "}"


def _number(value: float) -> str:
    """Return a number in the format's notation; integers have no decimal point."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
