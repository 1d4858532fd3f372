"""The alert rules and the dashboard name metrics that there are, in PromQL that can be read."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # no stubs for one file

from modeld.health.metrics import metrics_text
from modeld.health.snapshot import ServiceFacts
from modeld.service.realtime import Effect
from modeld.state.loop_state import LoopState, Phase
from tests.modeld.test_metrics import parse, snapshot

PLACE = Path(__file__).parents[2] / "docs/monitoring"
# Of Prometheus; a name that is neither one of these nor a label is a metric.
FUNCTIONS = {"time", "rate", "increase", "resets", "histogram_quantile"}
AGGREGATIONS, WORDS = {"sum", "max"}, {"by", "on", "and"}
TOKEN = re.compile(
    r"\s*(?:(?P<word>[a-z_]\w*)|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"[^\"]*\")"
    r"|(?P<range>\[\d+[smh]\])|(?P<sign>==|!=|=~|!~|[-+*/<>(){},=]))"
)


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PLACE / "alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((PLACE / "dashboard.json").read_bytes())["panels"]
    return found


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in alerts()] + shown


def said() -> tuple[dict[str, set[str]], dict[tuple[str, str], set[str]]]:
    """Return the labels of each metric, and the values of each label."""
    facts = ServiceFacts("driving", realtime=(Effect("priority", "5", effective=True),))
    state = LoopState(phase=Phase.RUNNING)
    state.published_ns = 1
    samples, _ = parse(metrics_text(snapshot(state, facts), 0.0))
    labels: dict[str, set[str]] = {"modeld_self_test_passed": {"daemon"}}
    values: dict[tuple[str, str], set[str]] = {}
    for name, pairs in samples:
        labels.setdefault(name, set()).update(label for label, _ in pairs)
        for label, value in pairs:
            values.setdefault((name, label), set()).add(value)
    return labels, values


def tokens(text: str) -> list[tuple[str, str]]:
    """Split PromQL; fails where something is no part of it, or a bracket has no other."""
    found, at, brackets = [], 0, []
    while at < len(text.rstrip()):
        match = TOKEN.match(text, at)
        assert match, f"{text}: not read from {text[at : at + 20]!r} on"
        kind, it, at = str(match.lastgroup), match[match.lastgroup or 0], match.end()
        found.append((kind, it))
        if it in ("(", "{"):
            brackets.append({"(": ")", "{": "}"}[it])
        elif it in (")", "}"):
            assert brackets.pop() == it, text
    assert not brackets, text
    return found


def check(text: str) -> None:
    labels, values = said()
    found = tokens(text)
    inside, metric, listed = False, "", False
    for at, (kind, it) in enumerate(found):
        after = found[at + 1][1] if at + 1 < len(found) else ""
        inside = (inside or it == "{") and it != "}"
        listed = (listed or (it == "(" and found[at - 1][1] in ("by", "on"))) and it != ")"
        if kind != "word":
            continue
        if inside:
            assert it in labels[metric] | {"instance"}, f"{text}: {metric} has no {it}"
            if after == "=":
                assert found[at + 2][1].strip('"') in values[metric, it], text
        elif listed:
            assert it in {"instance", "le"} | set().union(*labels.values()), text
        elif it in labels:
            metric = it
        else:
            assert it in FUNCTIONS | AGGREGATIONS | WORDS, f"{text}: no metric {it}"
            assert it == "and" or after == "(" or (it in AGGREGATIONS and after == "by"), text


@pytest.mark.parametrize("text", expressions())
def test_what_is_asked_for_is_what_the_daemon_says(text: str) -> None:
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        "modeld_none > 1",
        "rate(modeld_frames_total[5m]",
        'modeld_phase{phase="runing"} == 1',
        'modeld_phase{fase="running"} == 1',
        "sum by (modell) (modeld_threads)",
        "rates(modeld_frames_total[5m])",
        "modeld_threads ? 1",
    ],
)
def test_what_nobody_says_is_found(text: str) -> None:
    with pytest.raises(AssertionError):
        check(text)


def test_rules_and_panels_have_what_people_need() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names) >= 10
    for rule in alerts():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
    assert len({panel["id"] for panel in panels()}) == len(panels())
    assert any("modeld_written_timestamp_seconds" in rule["expr"] for rule in alerts())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", PLACE / "alerts.yml"], check=True)  # noqa: S607
