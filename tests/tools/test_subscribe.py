"""``modeld subscribe --json``: one line per message, and a last one that sums up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cereal.clock import MonotonicClock
from cereal.log_reader import read_log
from cereal.pubsub import PubMaster
from cereal.schema import new_event
from cereal.transport import ZmqTransport
from tools import subscribe
from tools.cli import main
from tools.lib.drive_log import OUTPUT_SERVICES


def _follow(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    messages: list[tuple[str, bytes]],
    *options: str,
) -> tuple[list[str], str]:
    """Run the command in this process on what arrives on a bus; return its lines and stderr."""
    monkeypatch.setattr(subscribe, "_receive", lambda *_args: iter(messages))
    assert main(["subscribe", *options]) == 0
    output = capsys.readouterr()
    return output.out.splitlines(), output.err


def _model(number: int) -> tuple[str, bytes]:
    event = new_event("modelV2", mono_time_ns=1000 + number, valid=True)
    event.modelV2.frameId = number
    event.modelV2.position.x = [0.0, float("inf")]
    event.modelV2.confidence = "yellow"
    return "modelV2", event.to_bytes()


def _car() -> tuple[str, bytes]:
    return "carState", new_event("carState", mono_time_ns=7).to_bytes()


def _broken() -> tuple[str, bytes]:
    """Return a model whose path's coordinates lie outside the message."""
    data = bytearray(_model(9)[1])
    for position in range(8, len(data), 8):
        word = int.from_bytes(data[position : position + 8], "little")
        if word & 3 == 1 and word >> 35 == 2:
            data[position : position + 4] = (0x0FFF_FFF0 << 2 | 1).to_bytes(4, "little")
            return "modelV2", bytes(data)
    raise AssertionError("no such list")


def test_each_message_is_a_line_and_the_last_one_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [_model(0), _car(), _model(1), _model(2)]
    options = ["modelV2", "--log-only", "carState", "--json", "--every", "2"]
    lines, errors = _follow(monkeypatch, capsys, messages, *options)
    assert errors == ""
    objects = [json.loads(line) for line in lines]
    assert [o["message"]["frameId"] for o in objects[:-1]] == [0, 2]
    assert objects[0]["service"] == "modelV2"
    assert (objects[0]["logMonoTime"], objects[0]["valid"]) == (1000, True)
    assert objects[0]["message"]["position"]["x"] == [0.0, None]
    assert objects[0]["message"]["confidence"] == "yellow"
    assert objects[-1] == {"messages": {"modelV2": 3, "carState": 1}, "damaged": 0, "log": None}


def test_chosen_fields(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["modelV2", "carState", "--json", "--field", "position.x", "--field", "vEgo"]
    lines, _ = _follow(monkeypatch, capsys, [_model(4), _car()], *options)
    assert [json.loads(line).get("fields") for line in lines] == [
        {"frameId": 4, "position.x": [0.0, None]},
        {"vEgo": 0.0},
        None,
    ]


def test_damaged_messages_are_counted_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [_model(0), _broken(), ("modelV2", b"no event"), _model(1)]
    lines, _ = _follow(monkeypatch, capsys, messages, "modelV2", "--json")
    assert [json.loads(line)["message"]["frameId"] for line in lines[:-1]] == [0, 1]
    assert json.loads(lines[-1])["messages"] == {"modelV2": 4}
    assert json.loads(lines[-1])["damaged"] == 2
    lines, errors = _follow(monkeypatch, capsys, messages, "modelV2")
    assert [line.split()[5] for line in lines] == ["0", "9", "1"]  # the path's t is not looked at
    assert "not printed, since damaged or newer than the schema: modelV2 1" in errors


def test_messages_without_a_path_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = [(name, new_event(name, mono_time_ns=1).to_bytes()) for name in OUTPUT_SERVICES]
    lines, errors = _follow(monkeypatch, capsys, empty)
    assert len(lines) == len(empty)
    assert "no path" in lines[0]
    assert errors == ""


def test_bad_fields_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscribe", "--field", "frameId"]) == 2
    assert "--field needs --json" in capsys.readouterr().err
    assert main(["subscribe", "carState", "--json", "--field", "speed"]) == 2
    assert "--field speed: expected a field of carState" in capsys.readouterr().err


@pytest.mark.alone
def test_lines_come_while_it_runs_and_the_sum_after_the_signal(tmp_path: Path) -> None:
    bus, log = f"ipc://{tmp_path}", tmp_path / "live.rlog"
    transport = ZmqTransport(bus)
    publisher = PubMaster(["modelV2"], transport, MonotonicClock())
    command = [sys.executable, "-m", "tools.subscribe", "modelV2", "--json", "--bus", bus]
    with subprocess.Popen(
        [*command, "--output", str(log)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        stop = threading.Event()

        def publish() -> None:
            while not stop.is_set():
                event = publisher.new("modelV2")
                publisher.send("modelV2", event)
                time.sleep(0.01)

        thread = threading.Thread(target=publish)
        thread.start()
        first: dict[str, Any] = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        stop.set()
        rest = process.stdout.read().splitlines()
        thread.join()
    publisher.close()
    transport.close()
    assert process.returncode == 0
    assert first["service"] == "modelV2"
    last = json.loads(rest[-1])
    count = sum(1 for _ in read_log(log))
    assert last == {"messages": {"modelV2": count}, "damaged": 0, "log": str(log)}
    assert len(rest) == count


def test_health_is_a_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    event = new_event("modeldHealth", mono_time_ns=2_000_000_000, valid=True)
    health = event.modeldHealth
    health.phase, health.frameId, health.published, health.dropped = "running", 7, 6, 1
    health.invalidReasons, health.isFallback = ["no calibration", "wide camera lost"], True
    messages = [("modeldHealth", event.to_bytes())]
    [line], _ = _follow(monkeypatch, capsys, messages, "modeldHealth")
    assert line.split(maxsplit=4)[4] == (
        "running  frame 7  6 published  1 dropped  not valid: no calibration; wide camera lost"
        "  FALLBACK"
    )
