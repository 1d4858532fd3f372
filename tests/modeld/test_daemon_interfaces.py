"""The loop obeys the interface of its model, whatever the generation; torn and wrong frames."""

import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from cereal.frames import Frame
from modeld.desire import TimedLaneChange
from modeld.driving_model import check_interface
from modeld.inputs import CarParameters
from runtime.driving_interface import ImageRule, Interface
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.revisions import load_revisions
from tests.modeld.bench import Bench, Log, Patch
from tests.modeld.fake_program import SPLIT_ACTION, FakeProgram, make_interface, with_heads

REVISIONS = load_revisions()


def test_frames_that_do_not_fit_are_waited_out(
    bench: Bench, caplog: Log, monkeypatch: Patch
) -> None:
    bench.calibrate()
    bench.step(0)
    receive = bench.road.receive

    def cut(timeout_ms: int) -> Frame | None:
        frame = receive(timeout_ms)
        # 64x32 padded: chroma from 4096 on, 16 rows of 128 bytes.
        return frame and replace(frame, data=frame.data[:6143])

    monkeypatch.setattr(bench.road, "receive", cut)
    for frame_id in (1, 2, 3):
        frame = bench.frame_of(frame_id)
        assert bench.offer(frame, frame) is None
        assert bench.said == {}
    # One line for all of them, with camera, frame and bytes.
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "road camera, frame 1: expected at least 6144 bytes" in record.getMessage()
    assert len(bench.program.calls) == 1
    # When they fit again, the gap is a drop like any other.
    monkeypatch.setattr(bench.road, "receive", receive)
    back = bench.step(4)
    assert (back.dropped, back.published) == (3, False)
    assert bench.step(5).valid


@pytest.mark.parametrize(("gap", "seen"), [(1, 1), (4, 4), (0, 4)])
def test_a_torn_frame_is_invalid_as_long_as_its_image_is_seen(
    monkeypatch: Patch, gap: int, seen: int
) -> None:
    bench = Bench(FakeProgram(make_interface(image=ImageRule("nearest", gap))))
    bench.calibrate()
    valid = []
    for frame_id in range(20):
        # Torn at 3 and, before its image has left the queue, at 4; and once more.
        torn = frame_id in (3, 4, 12)
        monkeypatch.setattr(bench.road, "is_intact", lambda torn=torn: not torn)
        valid.append(bench.step(frame_id).valid)
        assert bench.valid == [valid[-1]] * 3
    expected = [True] * 20
    expected[3 : 4 + seen + 1] = [False] * (seen + 2)
    expected[12 : 12 + seen + 1] = [False] * (seen + 1)
    assert valid == expected


def test_a_torn_frame_after_a_drop_is_invalid_in_the_runs_that_see_it(
    bench: Bench, monkeypatch: Patch, caplog: Log
) -> None:
    bench.calibrate()
    bench.step(0)
    monkeypatch.setattr(bench.road, "is_intact", lambda: False)
    assert not bench.step(2).published
    assert "frame 2 or 2 was overwritten" in caplog.text
    monkeypatch.undo()
    # The small program's images are 4 frames apart; a frame that is only queued moves them too.
    valid = [bench.step(frame_id).valid for frame_id in (3, 4, 6, 7, 8)]
    assert valid == [False, False, False, False, True]
    entries = [entry for entry, _ in bench.program.calls]
    assert entries == ["run", "prepare", "run", "run", "prepare", "run", "run"]


@pytest.mark.parametrize("reset", [False, True])
def test_full_histories_are_logged_once(bench: Bench, caplog: Log, reset: bool) -> None:
    """ADR 0080: what is published while they fill is valid; only the log tells."""
    caplog.set_level(logging.INFO, "modeld.daemon")
    full, left = [], []
    for frame_id in range(220):
        bench.calibrate()
        bench.program.vision[0, 0] = np.nan if reset and frame_id == 50 else 0.0
        assert bench.step(frame_id).valid is not (reset and frame_id == 50)
        left.append(bench.daemon.state.warm_up_left)
        if "histories full after 100 runs" in caplog.text:
            full.append(frame_id)
            caplog.clear()
    # 25 samples, 4 frames apart: with the 100th run, counted anew from frame 51 after a reset.
    assert full == [150 if reset else 99]
    begins = [*range(99, 49, -1), 100] if reset else []
    counted = [*begins, *range(99, -1, -1)]
    assert left == counted + [0] * (220 - len(counted))


def test_what_the_model_is_told_of_speed_and_delays() -> None:
    # April 2025: delay of the car + .2 + filters of .3 s; no clipping of the speed, to see it.
    rule = replace(
        SPLIT_ACTION,
        lateral_delay="steerActuatorDelay",
        lateral_delay_extra_s=0.2,
        lat_smooth_s=0.3,
        clip_speed=False,
    )
    names = ("traffic_convention", "lateral_control_params", "action_t")
    bench = Bench(FakeProgram(make_interface(action=rule, host_inputs=names)))
    bench.daemon.car = CarParameters(0.5, "x", steer_actuator_delay_s=0.12)
    bench.send("carState", vEgo=-2.5)
    bench.send("liveDelay", lateralDelay=9.0)  # not asked for
    bench.step(0)
    assert bench.inputs["lateral_control_params"][0] == pytest.approx([-2.5, 0.62])
    assert bench.inputs["action_t"][0] == pytest.approx([0.67, 0.85])


def test_a_model_of_2026_with_an_action_of_its_own() -> None:
    rule = replace(
        SPLIT_ACTION,
        lateral="action",
        longitudinal="action",
        lat_smooth_s=0.0,
        frame_delay_s=0.075,
        stop="speed",
    )
    program = FakeProgram(
        with_heads(make_interface(action=rule, lane_change="B", big=True), action=4)
    )
    # 2 m/s^2 to the right at 10 m/s; -1 m/s^2 through a filter of 0.3 s: 1 - exp(-1/6).
    program.raw["extra"][0, :2] = 2.0, -1.0
    bench = Bench(program)
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    assert bench.model.action.desiredCurvature == pytest.approx(0.02)
    assert bench.model.action.desiredAcceleration == pytest.approx(-0.15351828)
    assert (bench.model.big, bench.brief.big) == (True, True)
    assert isinstance(bench.daemon.lane_change, TimedLaneChange)


def test_a_model_of_2024_leaves_acceleration_empty() -> None:
    rule = replace(SPLIT_ACTION, lateral="desired_curvature", longitudinal="none", lat_smooth_s=0.0)
    interface = with_heads(make_interface(action=rule), desired_curvature=2, sim_pose=12)
    program = FakeProgram(interface)
    program.raw["extra"][0, :8] = -0.125, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
    bench = Bench(program)
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    model = bench.model
    assert model.action.desiredCurvature == -0.125
    assert (model.action.desiredAcceleration, model.action.shouldStop) == (0.0, False)
    assert (list(model.temporalPose.trans), list(model.temporalPose.rot)) == ([1, 2, 3], [4, 5, 6])
    assert not model.big


# --- every revision that the compiler knows, with its own empty fields ------------------------


def interface_of(name: str) -> Interface:
    revision = REVISIONS[name]
    states = [state for model in revision.models for state in model.states]
    return derive(name, "by name", example_parts(revision), states, revision.rules)


@pytest.mark.parametrize("name", REVISIONS)
def test_the_messages_of_a_revision(name: str) -> None:
    interface = interface_of(name)
    assert check_interface({"interface": interface.plain()}) == interface
    program = FakeProgram(interface)
    for vector in program.raw.values():
        vector[...] = 0.125
    bench = Bench(program)
    bench.daemon.model.warm_up()
    bench.daemon.car = CarParameters(0.5, "x", steer_actuator_delay_s=0.12)
    bench.calibrate()
    bench.send("carState", vEgo=10.0)
    assert bench.step(0).valid
    model = bench.model
    pedals = {48: 0, 53: 5, 55: 6}[interface.meta]
    disengage = model.meta.disengagePredictions
    assert [len(disengage.gasPressProbs), len(disengage.brakePressProbs)] == [pedals] * 2
    assert len(disengage.gasDisengageProbs) == 5
    assert len(model.temporalPose.trans) == (3 if "sim_pose" in interface.heads else 0)
    # All means are 1/8; where `planplus` is added they are 1/4.
    planned = 0.25 if "planplus" in interface.heads else 0.125
    assert model.velocity.x[0] == planned
    action = interface.action
    if action.lateral == "plan":
        measured = action.lateral_delay == "liveDelay"
        delay_s = 0.0 if measured else 0.12 + 0.2
        when = delay_s + action.lat_smooth_s + action.frame_delay_s
        lateral = 2 * planned / (10.0 * when) - planned / 10.0
    else:
        lateral = {"action": 0.125 / 10.0**2, "desired_curvature": 0.125}[action.lateral]
    smoothed = 1.0 if action.lat_smooth_s == 0 else 1 - math.exp(-0.05 / action.lat_smooth_s)
    assert model.action.desiredCurvature == pytest.approx(lateral * smoothed, rel=1e-5)
    if action.longitudinal == "none":
        assert model.action.desiredAcceleration == 0.0
    # After a gap G1 to G3 publish nothing, G4 and G5 run.
    skips = interface.drop_policy == "skip"
    assert bench.step(2).published is not skips
    assert (bench.said == {}) is skips
    assert program.calls[-1][0] == ("prepare" if skips else "run")


@pytest.mark.parametrize("name", ["split-2025-02", "split-2025", "supercombo-2026", "history-2026"])
def test_runs_until_the_histories_of_a_revision_are_full(name: str) -> None:
    # All frames of 5 s; 25 samples of features or desires 4 frames apart; histories inside.
    assert Bench(FakeProgram(interface_of(name))).daemon.model.history_runs == 100
