"""``modeld subscribe``: a line for each message, and with --json a last one that sums up."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cereal.log_reader import read_log
from cereal.schema import new_event
from tests.tools.conftest import Modeld, Said
from tests.tools.messages import damaged, event_of, repeating
from tools.commands import subscribe
from tools.messages.drive_log import OUTPUT_SERVICES

Follow = Callable[..., Said]


@pytest.fixture
def follow(modeld: Modeld, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Run the command in this process on messages that arrive on a bus."""

    def run(messages: list[tuple[str, bytes]], *options: str) -> Said:
        monkeypatch.setattr(subscribe, "_receive", lambda *_args: iter(messages))
        return modeld(0, "subscribe", *options)

    return run


def _model(number: int) -> tuple[str, bytes]:
    event = new_event("modelV2", mono_time_ns=1000 + number, valid=True)
    event.modelV2.frameId = number
    event.modelV2.position.x = [0.0, float("inf")]
    event.modelV2.confidence = "yellow"
    return "modelV2", event.to_bytes()


CAR = ("carState", event_of("carState"))


def test_each_message_is_a_line_and_the_last_one_counts(follow: Follow) -> None:
    messages = [_model(0), CAR, _model(1), _model(2)]
    said = follow(messages, "modelV2", "--log-only", "carState", "--json", "--every", "2")
    assert said.err == ""
    objects = said.objects
    assert [o["message"]["frameId"] for o in objects[:-1]] == [0, 2]
    assert objects[0]["service"] == "modelV2"
    assert (objects[0]["logMonoTime"], objects[0]["valid"]) == (1000, True)
    assert objects[0]["message"]["position"]["x"] == [0.0, None]
    assert objects[0]["message"]["confidence"] == "yellow"
    assert objects[-1] == {"messages": {"modelV2": 3, "carState": 1}, "damaged": 0, "log": None}


def test_chosen_fields(follow: Follow) -> None:
    options = ["modelV2", "carState", "--json", "--field", "position.x", "--field", "vEgo"]
    assert [line.get("fields") for line in follow([_model(4), CAR], *options).objects] == [
        {"frameId": 4, "position.x": [0.0, None]},
        {"vEgo": 0.0},
        None,
    ]


def test_damaged_messages_are_counted_and_the_rest_goes_on(follow: Follow) -> None:
    broken = ("modelV2", damaged(_model(9)[1], 2))
    messages = [_model(0), broken, ("modelV2", b"no event"), _model(1)]
    *lines, last = follow(messages, "modelV2", "--json").objects
    assert [line["message"]["frameId"] for line in lines] == [0, 1]
    assert last == {"messages": {"modelV2": 4}, "damaged": 2, "log": None}
    said = follow(messages, "modelV2")
    # The path's t is not looked at.
    assert [line.split()[5] for line in said.out.splitlines()] == ["0", "9", "1"]
    assert "not printed, since damaged or newer than the schema: modelV2 1" in said.err


def test_a_log_without_messages_is_refused_and_not_written(
    tmp_path: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscribe, "_receive", lambda *_args: iter([]))
    log = tmp_path / "live.rlog"
    words = ("subscribe", "modelV2", "--bus", f"ipc://{tmp_path}")
    modeld.refused(1, "modeld status shows the daemons", *words, "--output", log)
    assert not log.exists()
    log.write_bytes(b"an older log")
    modeld.refused(1, f"messages of modelV2 for {log}, found none", *words, "--output", log)
    assert log.read_bytes() == b"an older log"
    # Whoever only looks has nothing that could be taken for a result.
    modeld(0, *words)


def test_messages_without_a_path_are_printed(follow: Follow) -> None:
    said = follow([(name, event_of(name)) for name in OUTPUT_SERVICES])
    lines = said.out.splitlines()
    assert len(lines) == len(OUTPUT_SERVICES)
    assert "no path" in lines[0]
    assert said.err == ""


def test_health_is_a_line_too(follow: Follow) -> None:
    event = event_of(
        "modeldHealth",
        phase="running",
        frameId=7,
        published=6,
        dropped=1,
        isFallback=True,
        invalidReasons=["no calibration", "wide camera lost"],
    )
    line = follow([("modeldHealth", event)], "modeldHealth").out
    assert line.split(maxsplit=4)[4] == (
        "running  frame 7  6 published  1 dropped  not valid: no calibration; wide camera lost"
        "  FALLBACK\n"
    )


def test_what_arrives_is_logged_and_each_second_one_is_printed(
    tmp_path: Path, modeld: Modeld
) -> None:
    log, name = tmp_path / "live.rlog.zst", "drivingModelData"
    options = ("--count", "5", "--every", "2", "--output", log)
    with repeating(f"ipc://{tmp_path}", (name, event_of(name, 7))):
        said = modeld(0, "subscribe", name, "--bus", f"ipc://{tmp_path}", *options)
    assert said.err == ""
    lines = said.out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{name} 0.000 s valid ") for line in lines)
    assert [event.logMonoTime for event in read_log(log)] == [7] * 5


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_lines_come_while_it_runs_and_the_sum_after_the_signal(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    bus, log = f"ipc://{tmp_path}", tmp_path / "live.rlog"
    command = [sys.executable, "-m", "tools.commands.subscribe", "modelV2", "--json", "--bus", bus]
    with (
        repeating(bus, ("modelV2", event_of("modelV2"))),
        subprocess.Popen(
            [*command, "--output", str(log)], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        process.send_signal(number)
        rest = process.stdout.read().splitlines()
    assert process.returncode == code
    assert first["service"] == "modelV2"
    count = sum(1 for _ in read_log(log))
    assert json.loads(rest[-1]) == {"messages": {"modelV2": count}, "damaged": 0, "log": str(log)}
    assert len(rest) == count
