"""The health of a daemon as text for a person: aligned, in colours where they can be seen."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.quantities import size_text
from tools.lib.terminal import format_table, printable
from tools.service.health_judge import Health, quantile_ms, stages_since

GREEN, YELLOW, RED, BOLD, PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[1m", "\x1b[0m"
_LABEL = 11
_SHA_DIGITS = 12


class Painter:
    """Colours text, or leaves it as it is."""

    def __init__(self, *, is_coloured: bool) -> None:
        self._is_coloured = is_coloured

    def paint(self, text: str, *colours: str) -> str:
        """Return a text in colours."""
        return f"{''.join(colours)}{text}{PLAIN}" if self._is_coloured and colours else text


def health_text(
    name: str,
    health: Health,
    problems: Sequence[str],
    earlier: Health | None,
    painter: Painter,
    models: str | None = None,
) -> str:
    """Return the state of one daemon, several lines.

    Times of stages count from `earlier`, without it from the daemon's start. `models` are the
    selected and the running ones, None if unknown.
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
    """Return a time in two units: "3 h 05 min"."""
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
