"""`modeld drive` as a user runs it: figures, files, one clear line for what cannot be."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from cereal.log_reader import read_log
from cereal.transport import ZmqTransport
from tests.tools.closed_loop.conftest import DriveCommand
from tests.tools.small_monitoring import write_small_monitoring
from tests.tools.tiny_driving import write_tiny_driving
from tools.closed_loop import live
from tools.closed_loop.cameras import device_cameras, formats
from tools.closed_loop.faults import FAULTS
from tools.closed_loop.live import LiveOptions, live_loop
from tools.closed_loop.scenario import SCENARIOS, STANDARD
from tools.closed_loop.trial import make_trial
from tools.lib.camera_process import make_rings
from tools.lib.processes import ProcessError

FIGURES = {
    *("km", "departures", "offset_mean_m", "offset_p99_m", "collisions", "heading_mean_deg"),
    *("heading_p99_deg", "lateral_jerk_p99_mps3", "longitudinal_jerk_p99_mps3"),
    *("time_gap_min_s", "recoveries", "recovered_share"),
}


@pytest.mark.slow
def test_an_expert_drives_every_scenario(tmp_path: Path, command: DriveCommand) -> None:
    page = tmp_path / "drive.html"
    result = command.result("--expert", "--scenario", "all", "--km", "0.25", "--report", page)
    assert set(result) >= FIGURES
    assert [row["scenario"] for row in result["scenarios"]] == list(SCENARIOS)
    assert all(set(row) >= FIGURES for row in (*result["scenarios"], *result["per_drive"]))
    assert (result["departures"], result["collisions"]) == (0, 0)
    assert result["recovered_share"] == 1.0
    assert result["offset_mean_m"] < 0.1
    text = page.read_text("utf-8")
    assert "<title>Closed loop</title>" in text
    assert text.count("The road from above") == 2 * len(SCENARIOS)
    assert "http" not in text
    assert "nan" not in text


def test_the_table_of_a_drive(command: DriveCommand) -> None:
    out, _ = command.told("--expert", "--km", "0.1", "--seed", "2", "--drives", "2")
    header, row = out.splitlines()
    assert header.split()[:4] == ["scenario", "done", "km", "departures"]
    assert row.split()[:2] == ["lane-keeping", "2/2"]


@pytest.mark.opencl
@pytest.mark.slow
def test_a_blind_model_departs_and_its_drive_is_a_log(
    blind_model: Path, tmp_path: Path, command: DriveCommand
) -> None:
    log = tmp_path / "drive.rlog.zst"
    options = ["--model", blind_model, "--km", "0.3", "--seed", "1", "--log", log]
    result = command.result(*options, code=1)
    assert result["departures"] > 0
    assert result["answered"] == result["frames"]
    assert result["live"] is False
    names = [str(event.which()) for event in read_log(log)]
    assert names.count("modelV2") == names.count("roadCameraState") == result["frames"]


@pytest.mark.alone
@pytest.mark.opencl
def test_the_daemon_process_drives_by_the_clock(
    blind_model: Path, tmp_path: Path, command: DriveCommand
) -> None:
    log = tmp_path / "live.rlog.zst"
    options = ["--model", blind_model, "--live", "--rate-hz", "10", "--km", "0.02", "--log", log]
    # Whether it departs in so short a way is a matter of the clock.
    result = command.result(*options, code=(0, 1))
    assert result["live"] is True
    assert result["km"] == pytest.approx(0.02, abs=0.003)
    assert result["answered"] > 0.5 * result["frames"]
    assert result["latency_ms_p50"] > 0.0
    names = {str(event.which()) for event in read_log(log)}
    assert names >= {"modelV2", "cameraOdometry", "carState", "carParams", "roadCameraState"}


@pytest.mark.alone
@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGSTOP, "a modelV2 at least every 1 s, found none"),
        (signal.SIGKILL, "daemon: expected it to run, found it ended"),
    ],
)
def test_a_daemon_that_dies_or_falls_silent_is_told(
    blind_model: Path, monkeypatch: pytest.MonkeyPatch, number: int, said: str
) -> None:
    monkeypatch.setattr(live, "SILENCE_S", 1.0)
    trial = make_trial(STANDARD, 0, 500.0)
    with live_loop(LiveOptions(blind_model, rate_hz=10.0, is_quiet=True)) as loop:
        loop.wait_for_answer(trial, 60.0)
        os.kill(loop.daemon.pid, number)
        try:
            with pytest.raises(ProcessError, match=said):
                loop.drive(trial)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(loop.daemon.pid, signal.SIGCONT)


@pytest.mark.opencl
def test_a_bus_and_frame_rings_in_use_are_told(
    blind_model: Path, tmp_path: Path, command: DriveCommand
) -> None:
    bus, name = f"ipc://{tmp_path}", f"watched-{os.getpid()}"
    options = ["--model", blind_model, "--live", "--bus", bus, "--km", "0.1"]
    transport = ZmqTransport(bus)
    taken = transport.publisher("carState")
    try:
        error = command.refusal(*options, code=1)
    finally:
        taken.close()
        transport.close()
    assert "the car cannot speak" in error
    assert "name another --bus" in error
    # Whoever has rings of that name keeps them; so it is that name that the drive asks for.
    rings = make_rings(name, formats(device_cameras()))
    try:
        error = command.refusal(*options, "--camera-server", name, code=1)
    finally:
        for ring in rings.values():
            ring.close()
    assert "the car cannot speak" in error
    assert name in error


@pytest.mark.opencl
def test_what_is_no_model_for_it_is_told(tmp_path: Path, command: DriveCommand) -> None:
    monitoring = write_small_monitoring(tmp_path / "monitoring.pkl")
    small = write_tiny_driving(tmp_path / "small.pkl", (192, 128))
    for model, said in (
        (tmp_path / "missing.pkl", "missing.pkl"),
        (monitoring, "expected a driving artifact, found a monitoring one"),
        (small, "expected frames of at most"),
    ):
        assert said in command.refusal("--model", model, code=4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "--model: expected an artifact or --expert, found neither"),
        ("--model x.pkl --expert", "found both"),
        ("--expert --seed -1", "--seed: expected 0 or more, found -1"),
        ("--expert --drives 0", "--drives: expected at least 1"),
        ("--expert --km 0", "--km: expected more than 0"),
        ("--expert --km nan", "--km: expected more than 0"),
        ("--expert --scenario snow", "--scenario snow: expected one of lane-keeping"),
        ("--expert --live", "--live: expected no --expert"),
        ("--model x.pkl --live --fault yaw-off", "--live: expected no --fault"),
        ("--expert --fault yaw-off", "--fault: expected a model"),
        ("--expert --bus ipc:///x", "--bus: expected --live"),
        ("--expert --camera-server x", "--camera-server: expected --live"),
        ("--model x.pkl --live --rate-hz 99", "--rate-hz: expected 0.5 to 20"),
        ("--expert --log x.rlog", "--log: expected a model"),
        ("--expert --gate ofset_p99_m<1", "did you mean offset_p99_m"),
        ("--expert --gates none.gates", "expected a file of gates"),
        ("--expert --workers 0", "--workers: expected at least 1, found 0"),
        ("--model x.pkl --workers 2 --live", "--workers: expected no --live, found both"),
        ("--model x.pkl --workers 2 --log x.rlog", "--workers: expected no --log, found both"),
    ],
)
def test_options_that_cannot_work(command: DriveCommand, options: str, said: str) -> None:
    assert said in command.refusal(*options.split())


def test_page_and_command_name_all_scenarios_and_faults(command: DriveCommand) -> None:
    _, error = command.told("--model", "x.pkl", "--fault", "gremlin", code=2)
    assert all(name in error for name in FAULTS)
    page = (Path(__file__).parents[3] / "docs/closed-loop.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in SCENARIOS)
    assert all(f"| `{fault.name}` | {fault.what} |" in page for fault in FAULTS.values())
