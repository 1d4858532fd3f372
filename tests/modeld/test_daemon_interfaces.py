"""The loop obeys the interface of its model, whatever the generation; torn and wrong frames."""

import functools
import logging
import math
from dataclasses import replace

import numpy as np
import pytest

from modeld.model.driving_model import check_interface
from modeld.vehicle.desire import FadingLaneChange, TimedLaneChange
from modeld.vehicle.inputs import CarParameters
from runtime.format.interfaces import ImageRule, Interface
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.revisions import load_revisions
from tests.modeld.bench import Bench, Log, Patch
from tests.modeld.fake_program import SPLIT_ACTION, FakeProgram, make_interface

REVISIONS = load_revisions()


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
        # Whole when the run begins.
        monkeypatch.setattr(bench.road, "is_intact", lambda: True)
        bench.program.on_run = functools.partial(
            monkeypatch.setattr, bench.road, "is_intact", lambda torn=torn: not torn
        )
        valid.append(bench.step(frame_id).valid)
        assert bench.valid == [valid[-1]] * 3
        reasons = () if valid[-1] else ("frames overwritten while they were used",)
        assert bench.daemon.state.reasons == reasons
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
    """ADR 0020: what is published while they fill is valid; only the log tells."""
    caplog.set_level(logging.INFO, "modeld.daemon")
    full, left = [], []
    for frame_id in range(220):
        bench.calibrate()
        bench.program.vision[0, 0] = np.nan if reset and frame_id == 50 else 0.0
        assert bench.step(frame_id).valid is not (reset and frame_id == 50)
        left.append(bench.daemon.state.warm_up_left)
        if "model history filled (100 frames)" in caplog.text:
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
    # 5 s of all revisions but one.
    assert bench.daemon.model.history_runs == (132 if name == "supercombo-2026-08" else 100)
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
    # The speed of the plan stays what it is, and its acceleration is 1/8 or 1/4, too.
    longitudinal = {"plan": -planned, "action": 0.125, "none": 0.0}[action.longitudinal]
    for found, value, filter_s in (
        (model.action.desiredCurvature, lateral, action.lat_smooth_s),
        (model.action.desiredAcceleration, longitudinal, action.long_smooth_s),
    ):
        share = 1.0 if filter_s == 0 else 1 - math.exp(-0.05 / filter_s)
        assert found == pytest.approx(value * share, rel=1e-5)
    assert (model.big, bench.brief.big) == (interface.big, interface.big)
    machine = {"A": FadingLaneChange, "B": TimedLaneChange}[interface.lane_change]
    assert isinstance(bench.daemon.lane_change, machine)
    # After a gap G1 to G3 publish nothing, G4 and G5 run.
    skips = interface.drop_policy == "skip"
    assert bench.step(2).published is not skips
    assert (bench.said == {}) is skips
    assert program.calls[-1][0] == ("prepare" if skips else "run")
