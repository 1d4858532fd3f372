"""`modeld drive` as a user runs it: figures, gates, processes, and one line for what cannot be."""

import contextlib
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cereal.log_reader import read_log
from cereal.transport import ZmqTransport
from tests.tools.conftest import Modeld
from tests.tools.small_monitoring import write_small_monitoring
from tests.tools.tiny_driving import write_tiny_driving
from tools.behaviour.drive_result import numbers_of
from tools.behaviour.gates import parse_gates
from tools.errors import ToolError
from tools.lib.processes import ProcessError
from tools.messages.camera_process import make_rings
from tools.report.history import read_history
from tools.simulator.closed_loop import live
from tools.simulator.closed_loop.device import device_cameras, formats
from tools.simulator.closed_loop.faults import FAULTS
from tools.simulator.closed_loop.live import LiveOptions, Pace, live_facts, live_loop
from tools.simulator.closed_loop.report import write_drive_report
from tools.simulator.closed_loop.result import Drive, Outcome, figures_of, line_of
from tools.simulator.closed_loop.run import (
    DriveRequest,
    Selection,
    drive_in_processes,
    expert_drives,
    gate_names,
    judge_outcome,
    scenarios_named,
)
from tools.simulator.closed_loop.trial import SCENARIOS, STANDARD, make_trial

ROOT = Path(__file__).parents[3]
EXPERT = ["--expert", "--km", "0.1"]
JSON = ["--json", "-q"]


@pytest.mark.slow
def test_an_expert_drives_every_scenario(tmp_path: Path, modeld: Modeld) -> None:
    page = tmp_path / "drive.html"
    options = ["--expert", "--scenario", "all", "--km", "0.25", "--report", page]
    result = modeld(0, "drive", *options, *JSON).json
    assert [row["scenario"] for row in result["scenarios"]] == list(SCENARIOS)
    figures = set(figures_of([]).as_json())
    assert all(set(row) >= figures for row in (result, *result["scenarios"], *result["per_drive"]))
    assert (result["departures"], result["collisions"]) == (0, 0)
    assert result["recovered_share"] == 1.0
    assert result["offset_mean_m"] < 0.1
    text = page.read_text("utf-8")
    assert "<title>Closed loop</title>" in text
    assert text.count("The road from above") == 2 * len(SCENARIOS)
    assert "http" not in text
    assert "nan" not in text


def test_the_table_of_a_drive(modeld: Modeld) -> None:
    said = modeld(0, "drive", *EXPERT, "--seed", "2", "--drives", "2")
    header, row = said.out.splitlines()
    assert header.split()[:4] == ["scenario", "done", "km", "departures"]
    assert row.split()[:2] == ["lane-keeping", "2/2"]


@pytest.mark.opencl
@pytest.mark.slow
def test_a_blind_model_departs_and_its_drive_is_a_log(
    blind_model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    log = tmp_path / "drive.rlog.zst"
    options = ["--model", blind_model, "--km", "0.3", "--seed", "1", "--log", log]
    result = modeld(1, "drive", *options, *JSON).json
    assert result["departures"] > 0
    assert result["answered"] == result["frames"]
    assert result["live"] is False
    names = [str(event.which()) for event in read_log(log)]
    assert names.count("modelV2") == names.count("roadCameraState") == result["frames"]


@pytest.mark.alone
@pytest.mark.opencl
@pytest.mark.slow
def test_the_daemon_process_drives_by_the_clock(
    blind_model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    log = tmp_path / "live.rlog.zst"
    options = ["--model", blind_model, "--live", "--rate-hz", "10", "--km", "0.02", "--log", log]
    # Whether it departs in so short a way is a matter of the clock, so that a gate decides.
    result = modeld(0, "drive", *options, "--gate", "departures >= 0", *JSON).json
    assert result["live"] is True
    assert result["km"] == pytest.approx(0.02, abs=0.003)
    assert result["answered"] > 0.5 * result["frames"]
    assert result["latency_ms_p50"] > 0.0
    names = {str(event.which()) for event in read_log(log)}
    assert names >= {"modelV2", "cameraOdometry", "carState", "carParams", "roadCameraState"}


def drive_after(number: int, model: Path) -> None:
    """Drive with a daemon that gets a signal before."""
    trial = make_trial(STANDARD, 0, 500.0)
    with live_loop(LiveOptions(model, rate_hz=10.0, is_quiet=True)) as loop:
        loop.wait_for_answer(trial, 60.0)
        os.kill(loop.daemon.pid, number)
        try:
            loop.drive(trial)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(loop.daemon.pid, signal.SIGCONT)


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
    with pytest.raises(ProcessError, match=said):
        drive_after(number, blind_model)


@pytest.mark.opencl
def test_a_bus_and_frame_rings_in_use_are_told(
    blind_model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    bus, name = f"ipc://{tmp_path}", f"watched-{os.getpid()}"
    options = ["--model", blind_model, "--live", "--bus", bus, "--km", "0.1"]
    with contextlib.ExitStack() as stack:
        transport = stack.enter_context(contextlib.closing(ZmqTransport(bus)))
        stack.enter_context(contextlib.closing(transport.publisher("carState")))
        error = modeld.refused(1, "the simulated car cannot publish", "drive", *options).err
    assert "name another --bus" in error
    # Whoever has rings of that name keeps them; so it is that name that the drive asks for.
    with contextlib.ExitStack() as stack:
        for ring in make_rings(name, formats(device_cameras())).values():
            stack.enter_context(contextlib.closing(ring))
        words = ["drive", *options, "--camera-server", name]
        assert name in modeld.refused(1, "the simulated car cannot publish", *words).err


@pytest.mark.opencl
def test_what_is_no_model_for_it_is_told(tmp_path: Path, modeld: Modeld) -> None:
    monitoring = write_small_monitoring(tmp_path / "monitoring.pkl")
    small = write_tiny_driving(tmp_path / "small.pkl", (192, 128))
    for model, said in (
        (tmp_path / "missing.pkl", "missing.pkl"),
        (monitoring, "expected a driving artifact, found a monitoring one"),
        (small, "expected frames of at most"),
    ):
        modeld.refused(4, said, "drive", "--model", model)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "--model: expected an artifact or --expert, found neither"),
        ("--model x.pkl --expert", "found both"),
        ("--expert --drives 0", "--drives: expected a whole number from 1"),
        ("--expert --km 0", "--km: expected a number above 0"),
        ("--expert --scenario snow", "--scenario snow: expected one of lane-keeping"),
        ("--expert --live", "--live: expected no --expert"),
        ("--model x.pkl --live --fault yaw-off", "--live: expected no --fault"),
        ("--expert --fault yaw-off", "--fault: expected a model"),
        ("--expert --bus ipc:///x", "--bus: expected --live"),
        ("--expert --camera-server x", "--camera-server: expected --live"),
        ("--model x.pkl --live --rate-hz 99", "--rate-hz: expected a number from 0.5 up to 20"),
        ("--expert --log x.rlog", "--log: expected a model"),
        ("--expert --gate ofset_p99_m<1", "did you mean offset_p99_m"),
        ("--expert --gates none.gates", "expected a text file of gates"),
        ("--expert --workers 0", "--workers: expected a whole number from 1"),
        ("--model x.pkl --workers 2 --live", "--workers: expected no --live, found both"),
        ("--model x.pkl --workers 2 --log x.rlog", "--workers: expected no --log, found both"),
    ],
)
def test_options_that_cannot_work(
    modeld: Modeld, options: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.pkl").write_bytes(b"\x80\x05, as an artifact begins")
    modeld.refused(2, said, "drive", *options.split())


def test_page_and_command_name_all_scenarios_and_faults(modeld: Modeld) -> None:
    error = modeld(2, "drive", "--model", "x.pkl", "--fault", "gremlin").err
    assert all(name in error for name in FAULTS)
    page = (ROOT / "docs/closed-loop.md").read_text("utf-8")
    assert all(f"`{name}`" in page for name in SCENARIOS)
    assert all(f"| `{fault.name}` | {fault.what} |" in page for fault in FAULTS.values())


def test_gates_decide_in_the_place_of_clean_drives(tmp_path: Path, modeld: Modeld) -> None:
    page = tmp_path / "drive.html"
    options = ["--gate", "offset_p99_m < 0.3", "--gate", "recovered_share >= 0.95"]
    options += ["--history", str(tmp_path / "history")]
    said = modeld(0, "drive", *EXPERT, *options, "-q", "--report", page).out
    (run,), _ = read_history(tmp_path / "history")
    assert (run.command, run.subject) == (
        "drive",
        "lane-keeping, 1 drive from seed 0, 0.1 km, expert",
    )
    assert {"km", "offset_p99_m", "departures"} <= set(run.figures)
    # What nobody had to do is no figure.
    assert "recovered_share" not in run.figures
    head = page.read_text("utf-8").partition("By scenario")[0]
    assert "recovered" not in head
    assert "1 of 1 drive went well. The car stayed within 0.0" in head
    assert "holds  offset_p99_m < 0.3: 0.0" in said
    # A drive that does not begin off its lane has nothing to recover from.
    assert "holds  recovered_share >= 0.95: nothing to judge" in said
    assert "offset_p99_m &lt; 0.3" in page.read_text("utf-8")
    gate = "per_drive.*.speed_mean_mps < 1"
    (gate,) = modeld(1, "drive", *EXPERT, "--gate", gate, *JSON).json["gates"]
    assert gate["holds"] is False
    assert gate["name"] == "per_drive.lane-keeping-0.speed_mean_mps"


def test_every_number_of_a_result_but_times_can_be_gated() -> None:
    selection = Selection(scenarios_named(["recovery"]), seed=0, drives=1)
    drives = expert_drives(selection)
    outcome, names = Outcome("the expert", tuple(drives)), gate_names(selection)
    found = {name for name, _ in numbers_of(outcome.as_json())}
    measured = {name for name in found if name.endswith(("wall_s", "frames_per_s"))}
    assert found - set(names) == measured | {"per_drive.recovery-0.seed"}
    # What is not measured, and what is.
    gates = parse_gates(["time_gap_min_s > 9", "km > 9"], None, names)
    assert [one.holds for one in judge_outcome(outcome, gates)] == [True, False]
    # What is told of it.
    assert "recovery 0 with yaw-off: 0.1" in line_of(replace(drives[0], fault="yaw-off"))
    assert "done, recovered, departures 0, offset 0.0" in line_of(drives[0])


def test_a_run_whose_answers_come_late_fails_although_its_drives_are_clean(tmp_path: Path) -> None:
    selection = Selection(length_m=30.0)
    (drive,) = expert_drives(selection)
    assert drive.is_clean
    names = gate_names(selection)
    gates = parse_gates([], ROOT / "tests/regression/lane-keeping.gates", names)

    def failing(driven: Drive, latency_ms: float, rate_hz: float = 20.0) -> list[str]:
        pace = Pace([latency_ms] * driven.answered)
        facts = live_facts(LiveOptions(Path("x.pkl"), rate_hz=rate_hz), [driven], pace)
        assert set(facts) - {"live", "rate_hz"} <= set(names)
        outcome = Outcome("the daemon process", (driven,), facts)
        write_drive_report(tmp_path / "page.html", outcome)
        return [one.name for one in judge_outcome(outcome, gates) if not one.holds]

    assert failing(drive, 45.0) == []
    assert '<p class="lead good">1 of 1 drive' in (tmp_path / "page.html").read_text("utf-8")
    assert failing(drive, 55.0) == ["late_share"]
    page = (tmp_path / "page.html").read_text("utf-8")
    assert '<p class="lead bad">1 of 1 drive' in page
    assert "100% of the frames had no answer in time." in page
    # With slower cameras the next frame is due later.
    assert failing(drive, 55.0, rate_hz=15.0) == []
    assert failing(replace(drive, answered=drive.frames * 9 // 10), 45.0) == ["answered_share"]


@pytest.mark.parametrize("name", ["lane-keeping", "recovery", "stopping-lead"])
def test_the_gates_of_the_project_can_be_read(name: str) -> None:
    selection = Selection(scenarios_named([name]))
    assert parse_gates([], ROOT / f"tests/regression/{name}.gates", gate_names(selection))


def rows_of(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text("utf-8").splitlines()]


def test_each_drive_is_told_of_as_soon_as_it_is_over(tmp_path: Path, modeld: Modeld) -> None:
    lines = tmp_path / "drives.jsonl"
    told = modeld(0, "drive", *EXPERT, "--drives", "2", "--lines", lines).err
    assert [line.split(":")[0] for line in told.splitlines()] == ["1 of 2", "2 of 2"]
    rows = rows_of(lines)
    assert [(r["scenario"], r["seed"]) for r in rows] == [("lane-keeping", 0), ("lane-keeping", 1)]
    assert all(row["end"] == "done" and row["wall_s"] > 0.0 for row in rows)


@pytest.mark.opencl
@pytest.mark.slow
def test_figures_do_not_depend_on_how_many_processes_drive(
    blind_model: Path, modeld: Modeld
) -> None:
    options = ["--model", blind_model, "--scenario", "recovery", "--drives", "2", "--km", "0.01"]
    runs = [modeld(1, "drive", *options, "--workers", count, *JSON).json for count in (1, 2)]
    assert runs[0]["frames"] > 2 * 100
    for run in runs:
        del run["frames_per_s"]
        for row in (run, *run["per_drive"]):
            del row["wall_s"]
    assert runs[0] == runs[1]


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_planted_fault_changes_the_figures(
    random_model: Path, tmp_path: Path, modeld: Modeld, workers: int
) -> None:
    lines = tmp_path / "drives.jsonl"
    options = ["--model", random_model, "--km", "0.03", "--fault", "speed-in-miles"]
    words = [*options, "--workers", workers, "--lines", lines, *JSON]
    without, planted = modeld(0, "drive", *words).json["faults"]
    assert (without["fault"], planted["fault"]) == ("none", "speed-in-miles")
    # What a plan turns is steered by the speed.
    assert without["offset_mean_m"] != planted["offset_mean_m"]
    assert sorted(row.get("fault", "") for row in rows_of(lines)) == ["", "speed-in-miles"]


@pytest.mark.opencl
def test_a_process_that_cannot_drive_ends_the_run_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"missing\.pkl"):
        drive_in_processes([DriveRequest("recovery", 0)], tmp_path / "missing.pkl", None, 2)


@pytest.mark.opencl
@pytest.mark.slow
def test_a_process_that_is_gone_ends_the_run_with_a_line(blind_model: Path) -> None:
    requests = [DriveRequest("recovery", seed) for seed in range(4)]

    def kill(_: Drive) -> None:
        for child in multiprocessing.active_children():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(ToolError, match="found one dead; is there enough memory"):
        drive_in_processes(requests, blind_model, None, 2, kill)


def test_the_way_back_never_needs_all_that_the_tyres_give() -> None:
    for seed in range(60):
        trial = DriveRequest("recovery", seed).trial()
        road = trial.world.road
        until_m = trial.hand_over_m + SCENARIOS["recovery"].counts_from_m
        bends = abs(road.curvature_1pm[(road.s_m >= 0.0) & (road.s_m <= until_m)]).max()
        assert bends * trial.speed_mps**2 < 1.2 + 1e-9
