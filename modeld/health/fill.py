"""Fills modeldHealth and dmonitoringmodeldHealth from a snapshot."""

import os
from typing import Any, Final

from modeld.health.snapshot import HealthSnapshot

# A reason or a path of any length must not make the message large.
_MOST_CHARACTERS: Final = 500
_UINT32: Final = (1 << 32) - 1


def fill_health(health: Any, snapshot: HealthSnapshot) -> None:
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
    """Return the elements of a new list of structures, each with its value."""
    return zip(health.init(name, len(values)), values, strict=True)


def _short(text: str) -> str:
    """Return a text that a message can hold; a path may hold half of a surrogate pair."""
    return text[:_MOST_CHARACTERS].encode("utf-8", "replace").decode()
