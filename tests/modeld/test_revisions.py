"""The daemon runs every revision that the compiler knows, with its own empty fields."""

import math
from collections.abc import Callable

import pytest

from cereal.frames import Frame, FrameFormat
from modeld.config import Config
from modeld.driving_model import check_interface
from modeld.inputs import CarParameters
from runtime.driving_interface import Interface
from scheduler.driving.derive import derive, example_parts
from scheduler.driving.revisions import load_revisions
from tests.modeld.fake_program import FakeProgram
from tests.modeld.test_daemon import CAMERAS, Bench

REVISIONS = load_revisions()


def interface_of(name: str) -> Interface:
    revision = REVISIONS[name]
    states = [state for model in revision.models for state in model.states]
    return derive(name, "by name", example_parts(revision), states, revision.rules)


@pytest.mark.parametrize("name", REVISIONS)
def test_the_messages_of_a_revision(
    name: str, small_format: FrameFormat, frame_of: Callable[..., Frame]
) -> None:
    interface = interface_of(name)
    assert check_interface({"interface": interface.plain()}) == interface
    program = FakeProgram(interface, small_format.size)
    for vector in program.raw.values():
        vector[...] = 0.125
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.daemon.model.warm_up()
    bench.daemon.car = CarParameters(0.5, "x", steer_actuator_delay_s=0.12)
    bench.calibrate()
    bench.send("carState", vEgo=10.0)
    result = bench.step(0)
    assert result is not None
    assert result.valid
    messages = bench.messages()
    assert messages is not None
    model = messages["modelV2"].modelV2
    pedals = {48: 0, 53: 5, 55: 6}[interface.meta]
    assert len(model.meta.disengagePredictions.gasPressProbs) == pedals
    assert len(model.meta.disengagePredictions.brakePressProbs) == pedals
    assert len(model.meta.disengagePredictions.gasDisengageProbs) == 5
    assert len(model.temporalPose.trans) == (3 if "sim_pose" in interface.heads else 0)
    # All means are 1/8; where `planplus` is added they are 1/4.
    planned = 0.25 if "planplus" in interface.heads else 0.125
    assert model.velocity.x[0] == planned
    action = interface.action
    lateral = {
        "action": 0.125 / 10.0**2,
        "desired_curvature": 0.125,
        "plan": 0.0,  # see below
    }[action.lateral]
    if action.lateral == "plan":
        measured = action.lateral_delay == "liveDelay"
        delay_s = 0.0 if measured else 0.12 + 0.2
        when = delay_s + action.lat_smooth_s + action.frame_delay_s
        lateral = 2 * planned / (10.0 * when) - planned / 10.0
    smoothed = 1.0 if action.lat_smooth_s == 0 else 1 - math.exp(-0.05 / action.lat_smooth_s)
    assert model.action.desiredCurvature == pytest.approx(lateral * smoothed, rel=1e-5)
    if action.longitudinal == "none":
        assert model.action.desiredAcceleration == 0.0
    # After a gap G1 to G3 publish nothing, G4 and G5 run.
    bench.step(2)
    assert (bench.messages() is None) is (interface.drop_policy == "skip")
    assert program.calls[-1][0] == ("prepare" if interface.drop_policy == "skip" else "run")


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        # All frames of 5 s; 25 samples of features or desires 4 frames apart; histories inside.
        ("split-2025-02", 100),
        ("split-2025", 100),
        ("supercombo-2026", 100),
        ("history-2026", 100),
    ],
)
def test_runs_until_the_histories_of_a_revision_are_full(
    name: str, runs: int, small_format: FrameFormat, frame_of: Callable[..., Frame]
) -> None:
    program = FakeProgram(interface_of(name), small_format.size)
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    assert bench.daemon.model.history_runs == runs
