"""Receives the daemons' health messages, finds problems in them and formats them as text.

`HealthEar` receives the messages, `problems_of` judges one, and `health_text` formats one as an
aligned text with quantiles of the stage times, in color on a terminal.
"""

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
from runtime.texts import size_text
from tools.lib.terminal import format_table, printable
from tools.messages.message_values import to_plain

logger = logging.getLogger(__name__)

Health = Mapping[str, Any]
"""A ModeldHealth message as nested plain values, with the names of health.capnp."""

# Time without publications after which a running daemon is unhealthy. It publishes every 50 ms, and
# its subscribers give up before this.
SILENT_S = 1.0
WAITING = frozenset({Phase.WAITING_CAMERA, Phase.WAITING_CAR})
# Faults that are normal while there is no camera.
WITHOUT_CAMERA = frozenset({Fault.NO_FRAME, Fault.CAMERA_LOST})

SERVICES = tuple(HEALTH_SERVICES.values())
# Longest delay until a signal is noticed.
POLL_MS = 100
# Longest wait for a second daemon after the first. Each sends its health once a second.
OTHER_S = 1.2

GREEN, YELLOW, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
_LABEL = 11
_SHA_DIGITS = 12


def problems_of(health: Health) -> list[str]:
    """Return the problems of a daemon, one line each; an empty list if it is healthy.

    A healthy daemon publishes valid messages or waits for cameras or the car, does not use its
    fallback model, and has had no recent faults.
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
    """Return an estimate of a quantile of a histogram, assuming uniform distribution in buckets.

    `bounds_ms` are the upper bounds of all buckets except the last. `share`, 0 to 1, is the share
    of durations below the quantile. Returns None without durations, and the largest bound for a
    quantile in the last bucket.
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
    """Return name, counts and sum of each stage since `earlier`.

    If `earlier` is None or from another process, they are counted since the start.
    """
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


class HealthEar:
    """Receives health messages. `stop` ends a wait early. The caller closes the transport."""

    def __init__(self, transport: Transport, stop: Event) -> None:
        self._transport = transport
        self._stop = stop
        self._subscribers: dict[str, Subscriber] = {
            name: transport.subscriber(name, conflate=True) for name in SERVICES
        }

    def listen(self, timeout_s: float, expected: Collection[str] = SERVICES) -> dict[str, Health]:
        """Return the next message of each daemon, by service; an empty dictionary after a timeout.

        `timeout_s` is the longest wait for the first message. The wait ends early when all services
        in `expected` have sent one.
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


class Painter:
    """Colors text if `is_coloured`, else returns it unchanged."""

    def __init__(self, *, is_coloured: bool) -> None:
        self._is_coloured = is_coloured

    def paint(self, text: str, *colours: str) -> str:
        """Return a text with the escape sequences of colors."""
        return f"{''.join(colours)}{text}{PLAIN}" if self._is_coloured and colours else text


def health_text(
    name: str,
    health: Health,
    problems: Sequence[str],
    earlier: Health | None,
    painter: Painter,
    models: str | None = None,
) -> str:
    """Return the health of one daemon as several lines of text.

    Stage times are counted since the message `earlier`, or since the daemon's start. `models` is
    the text of `running_models.comparison`, None if unknown.
    """
    state = painter.paint("healthy", BOLD, GREEN)
    if problems:
        state = painter.paint("NOT HEALTHY", BOLD, RED)
    lines = [f"{painter.paint(health['kind'] or name, BOLD)}: {state}"]
    lines += [painter.paint(f"  {printable(problem)}", RED) for problem in problems]
    lines += [
        _row("doing", f"{health['phase']}, up {duration_text(health['uptime'])}, process "
                      f"{health['processId']}"),
        _row("model", _model(health)),
        *([] if models is None else [_row("store", printable(models))]),
        *_lineage(health),
        _row("device", _joined(health["device"], health["driver"])),
        _row("self-test", _self_test(health)),
    ]  # fmt: skip
    if health["warmUpRunsLeft"]:
        lines.append(_row("histories", f"full after {health['warmUpRunsLeft']} more runs"))
    lines.append(_row("frames", _frames(health)))
    lines += _stages(health, earlier)
    seen = [fault for fault in health["faults"] if fault["count"]]
    faults = ", ".join(
        f"{fault['name']} {fault['count']}" + (f" ({fault['recent']} now)" * bool(fault["recent"]))
        for fault in seen
    )
    lines.append(_row("faults", painter.paint(faults, YELLOW) if seen else "none"))
    lines.append(_row("process", _process(health, earlier)))
    if health["temperatures"]:
        warm = [f"{one['name']} {one['degrees']:.0f}" for one in health["temperatures"]]
        lines.append(_row("deg C", ", ".join(warm)))
    lines += _realtime(health, painter)
    versions = ", ".join(f"{one['name']} {one['version']}" for one in health["versions"])
    lines.append(_row("versions", versions or "-"))
    return "\n".join(lines)


def duration_text(seconds: float) -> str:
    """Return a duration in up to two units, such as "3 h 05 min"."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole // 60 % 60:02d} min"


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _joined(*parts: str) -> str:
    return printable(", ".join(part for part in parts if part)) or "-"


def _model(health: Health) -> str:
    digest = health["modelSha256"][:_SHA_DIGITS]
    checkpoints = [f"{one['role']} {one['name']}" for one in health["checkpoints"]]
    fallback = "the FALLBACK" if health["isFallback"] else ""
    program = health["programSha256"][:_SHA_DIGITS]
    digests = (digest and f"sha256 {digest}", program and f"program {program}")
    return _joined(health["model"], fallback, *digests, *checkpoints)


def _lineage(health: Health) -> list[str]:
    notes = [f"{note['name']}={note['value']}" for note in health["lineage"]]
    return [_row("lineage", _joined(*notes))] if notes else []


def _self_test(health: Health) -> str:
    test = health["selfTest"]
    if test["result"] == "passed":
        return f"passed in {test['duration']:.1f} ms"
    result = "FAILED" if test["result"] == "failed" else "not done"
    return f"{result}: {printable(test['detail'])}" if test["detail"] else result


def _frames(health: Health) -> str:
    rate = health["recentPublished"] / health["recentTime"] if health["recentTime"] else 0.0
    age_s = health["publicationAge"]
    last = f", id {health['frameId']}, last {age_s:.2f} s ago" if age_s >= 0 else ""
    return (
        f"{rate:.1f}/s published; {health['frames']} used, {health['published']} published, "
        f"{health['publishedValid']} valid, {health['dropped']} dropped{last}"
    )


def _stages(health: Health, earlier: Health | None) -> list[str]:
    bounds = health["stageBounds"]
    rows = [
        (
            stage["name"],
            *(_ms(quantile_ms(bounds, stage["counts"], share), bounds) for share in (0.5, 0.99)),
            _ms(stage["sum"] / sum(stage["counts"]), ()),
            str(sum(stage["counts"])),
        )
        for stage in stages_since(health, earlier)
        if sum(stage["counts"])
    ]
    if not rows:
        return []
    since = "start" if earlier is None else f"{health['uptime'] - earlier['uptime']:.0f} s"
    header = ("stage", "p50 ms", "p99 ms", "mean ms", f"frames ({since})")
    return [" " * (2 + _LABEL) + line for line in format_table(header, rows).splitlines()]


def _ms(value: float | None, bounds: Sequence[float]) -> str:
    if value is None:
        return "-"
    return f"> {value:.0f}" if bounds and value >= bounds[-1] else f"{value:.1f}"


def _process(health: Health, earlier: Health | None) -> str:
    before = {"cpuTime": 0.0, "uptime": 0.0}
    if earlier is not None and earlier["uptime"] < health["uptime"]:
        before = {name: earlier[name] for name in before}
    time_s = health["uptime"] - before["uptime"]
    share = 100 * (health["cpuTime"] - before["cpuTime"]) / time_s if time_s > 0 else 0.0
    return (
        f"{size_text(health['memory'])} resident (peak {size_text(health['memoryPeak'])}), "
        f"{health['openFiles']} files, {health['threads']} threads, {share:.0f} % of a CPU, "
        f"{health['majorFaults']} pages read from disk"
    )


def _realtime(health: Health, painter: Painter) -> list[str]:
    settings = health["realtime"]
    done = [f"{one['name']} {one['wanted']}" for one in settings if one["effective"]]
    lines = [_row("real time", ", ".join(done))] if done else []
    for one in settings:
        if not one["effective"]:
            text = f"{one['name']} {one['wanted']} NOT in force: {one['reason']}"
            lines.append(_row("real time", painter.paint(printable(text), YELLOW)))
    return lines
