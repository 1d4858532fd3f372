"""`modeld config`, and how `modeld run` takes its settings and says what it does."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from modeld.service.config import SETTINGS, Config
from modeld.service.config_sources import load_config, sample_config
from tests.support.selection import quick_cases
from tests.tools.conftest import Modeld

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [DIWE] [\w.]+: .+")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text('model = "a.pkl"\n[realtime]\npriority = 5\n', encoding="utf-8")
    return path


def test_every_setting_is_shown_with_its_source(
    file: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELD_CAMERA_SERVER", "cams")
    said = modeld(0, "config", "--config", file, "--bus", "ipc:///x", "-v")
    rows = [re.split(r"  +", line) for line in said.out.splitlines()]
    assert [row[0] for row in rows] == list(SETTINGS)
    shown = {key: (value, source) for key, value, source in rows}
    assert shown["model"] == (f'"{file.parent / "a.pkl"}"', f"file {file}")
    assert shown["realtime.priority"] == ("5", f"file {file}")
    assert shown["camera_server"] == ('"cams"', "variable MODELD_CAMERA_SERVER")
    assert shown["bus_address"] == ('"ipc:///x"', "option --bus")
    assert shown["log_level"] == ('"debug"', "option -v")
    assert shown["demo"] == ("false", "default")
    assert shown["device"] == ("-", "default")


def test_changed_settings_as_json(file: Path, modeld: Modeld) -> None:
    arguments = ["--set", "camera.road.width=960", "--set", "camera.road.height = 540"]
    arguments += ["--set", "camera.road.focal_px=800", "--lock-memory", "-q", "--log-level", "info"]
    assert modeld(0, "--json", "config", "--config", file, "--changed", *arguments).json == {
        "model": {"value": str(file.parent / "a.pkl"), "source": f"file {file}"},
        "log_level": {"value": "info", "source": "option --log-level"},
        "camera.road.width": {"value": 960, "source": "option --set camera.road.width"},
        "camera.road.height": {"value": 540, "source": "option --set camera.road.height"},
        "camera.road.focal_px": {"value": 800.0, "source": "option --set camera.road.focal_px"},
        "realtime.priority": {"value": 5, "source": f"file {file}"},
        "realtime.lock_memory": {"value": True, "source": "option --lock-memory"},
    }


def test_the_sample_is_printed_and_can_be_read(tmp_path: Path, modeld: Modeld) -> None:
    printed = modeld(0, "config", "--sample").out
    assert printed == sample_config()
    path = tmp_path / "sample.toml"
    path.write_text(printed, encoding="utf-8")
    assert load_config(path) == Config()


@pytest.mark.parametrize("command", ["config", "run"])
def test_wrong_settings_are_one_line_and_exit_code_2(
    command: str, file: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODELD_BUS", "ipc:///x")
    monkeypatch.setenv("MODELD_BUS_ADRESS", "ipc:///x")
    assert modeld(2, command, "--config", file, "--set", "realtime.prio=3").err == (
        "modeld: error: environment: "
        "unknown variable MODELD_BUS; did you mean MODELD_BUS_ADDRESS?; "
        "unknown variable MODELD_BUS_ADRESS; did you mean MODELD_BUS_ADDRESS?; "
        "options: unknown key realtime.prio; did you mean realtime.priority?\n"
    )
    # Other commands take any variable.
    assert "--sample" in modeld(0, "config", "--help").out


def run(arguments: list[str], until: str | None) -> Iterator[str]:
    """Yield the lines that a process says on stderr, and end it by SIGTERM after ``until``."""
    with subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "run", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as process:
        watchdog = threading.Timer(60.0, process.kill)
        watchdog.start()
        assert process.stderr is not None
        for line in process.stderr:
            yield line.rstrip("\n")
            if until is not None and until in line:
                process.terminate()
                until = None
        watchdog.cancel()
    yield f"exit code {process.returncode}"


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    (tmp_path / "bus").mkdir()
    return ["--bus", f"ipc://{tmp_path}/bus", "--camera-server", f"test_log_{os.getpid()}"]


@pytest.mark.opencl
def test_a_run_says_what_it_does_in_lines_with_times(
    tiny_model: Path, arguments: list[str]
) -> None:
    options = ["--model", str(tiny_model), "--demo", *arguments]
    *lines, ended = run(options, "waiting for camera streams")
    assert ended == "exit code 0"
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    messages = [line.partition(": ")[2] for line in lines]
    assert messages[0].startswith(f'settings: model = "{tiny_model}", demo = true, bus_address = ')
    assert f"loading {tiny_model}" in messages
    assert messages[-1] == "stopping"


@pytest.mark.slow
@pytest.mark.opencl
def test_a_run_that_logs_warnings_says_only_that_it_waits_for_long(
    tiny_model: Path, arguments: list[str]
) -> None:
    options = ["--model", str(tiny_model), "--demo", "--log-level", "warning", *arguments]
    *lines, ended = run(options, "waiting for camera streams")
    assert ended == "exit code 0"
    assert [line[25:26] for line in lines] == ["W"]


@pytest.mark.parametrize("json_lines", quick_cases([False, True], True))
def test_the_error_that_ends_a_run_is_a_record_in_its_format(
    tmp_path: Path, arguments: list[str], *, json_lines: bool
) -> None:
    model = tmp_path / "none.pkl"
    form = ["--log-format", "json"] if json_lines else []
    *lines, ended = run(["--model", str(model), "-q", *form, *arguments], None)
    assert ended == "exit code 4"
    (line,) = lines
    if json_lines:
        record = json.loads(line)
        assert (record["level"], record["logger"]) == ("error", "modeld")
        assert record["message"].startswith(f"{model}: ")
    else:
        assert LINE.fullmatch(line)
        assert f" E modeld: {model}: " in line
