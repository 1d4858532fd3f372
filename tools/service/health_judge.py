"""Judges a daemon's health by its message, and computes quantiles of its histograms."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from threading import Event
from time import monotonic
from typing import Any

from cereal.errors import MessageError
from cereal.schema import content, member_name, read_event
from cereal.transport import Transport
from cereal.transport.base import Subscriber
from modeld.health.reporter import HEALTH_SERVICES
from modeld.state.loop_state import REFUSED, Fault, Phase
from tools.messages.message_values import to_plain

Health = Mapping[str, Any]
"""A ModeldHealth as nested plain values, by the names of health.capnp."""

# A daemon that runs publishes every 50 ms; after so long without, whoever listens has given up.
SILENT_S = 1.0
WAITING = frozenset({Phase.WAITING_CAMERA, Phase.WAITING_CAR})
# What is no fault while there is no camera.
WITHOUT_CAMERA = frozenset({Fault.NO_FRAME, Fault.CAMERA_LOST})


def problems_of(health: Health) -> list[str]:
    """Return the problems of a daemon, one line each; empty: it is healthy.

    Healthy is one that publishes valid messages, or waits for cameras or for the car; that uses its
    own model, and has seen no fault lately.
    """
    found = []
    phase = health["phase"]
    if health["isFallback"]:
        found.append(f"fallback model in use: {health['fallbackReason']}")
    found += list(health["startProblems"])
    if health["selfTest"]["result"] == "failed":
        found.append(f"self-test failed: {health['selfTest']['detail']}")
    if phase == Phase.RUNNING:
        found += _problems_of_running(health)
    elif phase not in WAITING:
        found.append(phase)
    ignored = WITHOUT_CAMERA if phase == Phase.WAITING_CAMERA else frozenset()
    recent = [
        f"{fault['name']} {fault['recent']}"
        for fault in health["faults"]
        if fault["recent"] and fault["name"] not in ignored
    ]
    if recent:
        found.append(f"faults in the last {health['recentTime']:.0f} s: {', '.join(recent)}")
    return found


def _problems_of_running(health: Health) -> list[str]:
    age_s = health["publicationAge"]
    refusals = [one for one in health["invalidReasons"] if one.startswith(REFUSED)]
    if age_s < 0:
        return ["nothing published yet", *refusals]
    if age_s > SILENT_S:
        waits = "a frame waits" if health["frameWait"] else "no frame came"
        return [f"nothing published for {age_s:.1f} s: {'; '.join(refusals) or waits}"]
    return [f"not valid: {reason}" for reason in health["invalidReasons"]]


def quantile_ms(bounds_ms: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Return an estimate of a quantile: within its bucket durations count as spread evenly.

    `bounds_ms` are upper bounds of all but the last bucket; `share` of the durations, 0 to 1, are
    smaller. Without durations it is None, beyond the largest bound that bound.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below, lower = share * total, 0, 0.0
    for bound, count in zip(bounds_ms, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return lower


def stages_since(health: Health, earlier: Health | None) -> list[dict[str, Any]]:
    """Return name, counts and sum of each stage, less those of `earlier`, of the same process."""
    if earlier is None or earlier["processId"] != health["processId"]:
        return [dict(stage) for stage in health["stages"]]
    old = {stage["name"]: stage for stage in earlier["stages"]}
    found = []
    for stage in health["stages"]:
        before = old.get(stage["name"])
        if before is None or len(before["counts"]) != len(stage["counts"]):
            found.append(dict(stage))
            continue
        counts = [new - was for new, was in zip(stage["counts"], before["counts"], strict=True)]
        found.append({"name": stage["name"], "counts": counts, "sum": stage["sum"] - before["sum"]})
    return found


logger = logging.getLogger(__name__)

SERVICES = tuple(HEALTH_SERVICES.values())
# How soon a signal is noticed.
POLL_MS = 100
# Of two daemons the second speaks within a second of the first.
OTHER_S = 1.2


class HealthEar:
    """Listens to health messages; the caller closes the transport, `stop` ends it early."""

    def __init__(self, transport: Transport, stop: Event) -> None:
        self._transport = transport
        self._stop = stop
        self._subscribers: dict[str, Subscriber] = {
            name: transport.subscriber(name, conflate=True) for name in SERVICES
        }

    def listen(self, timeout_s: float, expected: Collection[str] = SERVICES) -> dict[str, Health]:
        """Return the next message of each daemon that speaks; empty: none did in time.

        `timeout_s` is the longest wait for the first one; all of `expected` are enough.
        """
        heard: dict[str, Health] = {}
        deadline = monotonic() + timeout_s
        while not heard.keys() >= set(expected) and not self._stop.is_set():
            left_s = deadline - monotonic()
            if left_s <= 0:
                break
            self._transport.wait(
                list(self._subscribers.values()), max(1, min(POLL_MS, int(1e3 * left_s)))
            )
            for name, subscriber in self._subscribers.items():
                data = subscriber.receive()
                health = None if data is None else _health_of(name, data)
                if health is not None:
                    deadline = min(deadline, monotonic() + OTHER_S) if not heard else deadline
                    heard[name] = health
        return {name: heard[name] for name in SERVICES if name in heard}


def _health_of(name: str, data: bytes) -> Health | None:
    try:
        event = read_event(data)
        if member_name(event) == name:
            return to_plain(content(event))
        logger.warning("%s: expected that message, found %s", name, member_name(event))
    except MessageError as error:
        logger.warning("%s: %s", name, error)
    return None
