"""The loop obeys the interface of its model, whatever the generation."""

import logging
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from cereal.frames import Frame, FrameFormat
from modeld.config import Config
from modeld.desire import TimedLaneChange
from modeld.inputs import CarParameters
from runtime.driving_interface import ImageRule
from tests.modeld.fake_program import SPLIT_ACTION, FakeProgram, make_interface, with_heads
from tests.modeld.test_daemon import CAMERAS, Bench, FrameOf


@pytest.fixture
def bench(small_program: FakeProgram, frame_of: FrameOf) -> Bench:
    return Bench(small_program, frame_of, Config(cameras=CAMERAS))


def test_frames_that_do_not_fit_are_waited_out(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.calibrate()
    assert bench.step(0) is not None
    bench.messages()

    receive = bench.road.receive

    def cut(timeout_ms: int) -> Frame | None:
        frame = receive(timeout_ms)
        # 64x32 padded: chroma from 4096 on, 16 rows of 128 bytes.
        return frame and replace(frame, data=frame.data[:6143])

    monkeypatch.setattr(bench.road, "receive", cut)
    with caplog.at_level(logging.ERROR):
        assert [bench.step(frame_id) for frame_id in (1, 2, 3)] == [None] * 3
    assert bench.messages() is None
    # One line for all of them, with camera, frame and bytes.
    (record,) = caplog.records
    assert "road camera, frame 1: expected at least 6144 bytes" in record.getMessage()
    assert len(bench.program.calls) == 1
    # When they fit again, the gap is a drop like any other.
    monkeypatch.setattr(bench.road, "receive", receive)
    back = bench.step(4)
    assert back is not None
    assert (back.dropped, back.published) == (3, False)
    after = bench.step(5)
    assert after is not None
    assert after.valid


def test_a_desire_that_rises_on_a_dropped_frame_is_not_lost(bench: Bench) -> None:
    bench.program.policy[0, 990 + 3] = 10.0
    bench.send("carControl", latActive=True)
    driver = {"vEgo": 20.0, "steeringPressed": True, "steeringTorque": 1.0}
    for frame_id in range(3):
        bench.send("carState", leftBlinker=frame_id >= 1, **driver)
        bench.step(frame_id)
    # The machine has begun at frame 2, so the pulse is due with the next one, which follows a gap.
    bench.step(4)
    entry, inputs = bench.program.calls[-1]
    assert (entry, np.flatnonzero(inputs["desire"]).tolist()) == ("prepare", [3])
    bench.step(5)
    assert not bench.inputs()["desire"].any()


@pytest.mark.parametrize(("gap", "seen"), [(1, 1), (4, 4), (0, 4)])
def test_a_torn_frame_is_invalid_as_long_as_its_image_is_seen(
    small_format: FrameFormat,
    frame_of: FrameOf,
    monkeypatch: pytest.MonkeyPatch,
    gap: int,
    seen: int,
) -> None:
    program = FakeProgram(make_interface(image=ImageRule("nearest", gap)), small_format.size)
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.calibrate()
    valid = []
    for frame_id in range(20):
        # Torn at 3 and, before its image has left the queue, at 4; and once more.
        torn = frame_id in (3, 4, 12)
        monkeypatch.setattr(bench.road, "is_intact", lambda torn=torn: not torn)
        result = bench.step(frame_id)
        assert result is not None
        messages = bench.messages()
        assert messages is not None
        assert {event.valid for event in messages.values()} == {result.valid}
        valid.append(result.valid)
    expected = [True] * 20
    expected[3 : 4 + seen + 1] = [False] * (seen + 2)
    expected[12 : 12 + seen + 1] = [False] * (seen + 1)
    assert valid == expected


def test_a_torn_frame_after_a_drop_is_invalid_in_the_runs_that_see_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench.calibrate()
    bench.step(0)
    monkeypatch.setattr(bench.road, "is_intact", lambda: False)
    torn = bench.step(2)
    assert torn is not None
    assert not torn.published
    assert bench.program.calls[-1][0] == "prepare"
    assert "frame 2 or 2 was overwritten" in caplog.text
    monkeypatch.undo()
    # The small program's images are 4 frames apart; a frame that is only queued moves them too.
    results = [bench.step(frame_id) for frame_id in (3, 4, 6, 7, 8)]
    valid = [result is not None and result.valid for result in results]
    assert valid == [False, False, False, False, True]
    assert [entry for entry, _ in bench.program.calls[2:]] == [
        "run",
        "run",
        "prepare",
        "run",
        "run",
    ]


@pytest.mark.parametrize("length", [0, 2, 4, 100_000])
def test_a_calibration_of_another_length_is_refused_by_it(
    bench: Bench, caplog: pytest.LogCaptureFixture, length: int
) -> None:
    bench.send("liveCalibration", rpyCalib=[0.25] * length)
    result = bench.step(0)
    assert result is not None
    assert not result.valid
    (text,) = [text for text in caplog.messages if "calibration not used" in text]
    assert f"expected 3 finite angles, got {length} values" in text


@pytest.mark.parametrize("reset", [False, True])
def test_full_histories_are_logged_once(
    bench: Bench, caplog: pytest.LogCaptureFixture, reset: bool
) -> None:
    """ADR 0080: what is published while they fill is valid; only the log tells."""
    full = []
    with caplog.at_level(logging.INFO, "modeld.daemon"):
        for frame_id in range(220):
            bench.calibrate()
            bench.program.vision[0, 0] = np.nan if reset and frame_id == 50 else 0.0
            result = bench.step(frame_id)
            assert result is not None
            assert result.valid is not (reset and frame_id == 50)
            if "histories full after 100 runs" in caplog.text:
                full.append(frame_id)
                caplog.clear()
    # 25 samples, 4 frames apart: with the 100th run, counted anew from frame 51 after a reset.
    assert full == [150 if reset else 99]


def test_what_the_model_is_told_of_speed_and_delays(
    small_format: FrameFormat, frame_of: FrameOf
) -> None:
    # April 2025: delay of the car + .2 + filters of .3 s; no clipping of the speed, to see it.
    rule = replace(
        SPLIT_ACTION,
        lateral_delay="steerActuatorDelay",
        lateral_delay_extra_s=0.2,
        lat_smooth_s=0.3,
        clip_speed=False,
    )
    names = ("traffic_convention", "lateral_control_params", "action_t")
    interface = make_interface(action=rule, host_inputs=names)
    bench = Bench(FakeProgram(interface, small_format.size), frame_of, Config(cameras=CAMERAS))
    bench.daemon.car = CarParameters(0.5, "x", steer_actuator_delay_s=0.12)
    bench.send("carState", vEgo=-2.5)
    bench.send("liveDelay", lateralDelay=9.0)  # not asked for
    bench.step(0)
    assert bench.inputs()["lateral_control_params"][0] == pytest.approx([-2.5, 0.62])
    assert bench.inputs()["action_t"][0] == pytest.approx([0.67, 0.85])


def test_the_configuration_sets_time_constants(
    small_program: FakeProgram, frame_of: FrameOf
) -> None:
    config = Config(cameras=CAMERAS, lat_smooth_s=0.0)
    bench = Bench(small_program, frame_of, config)
    times = np.arange(33) ** 2 / 1024 * 10
    plan = np.zeros((33, 15), np.float32)
    plan[:, 11], plan[:, 14] = 0.2 * times, 0.2
    bench.program.policy[0, :495] = plan.reshape(-1)
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    messages = bench.messages()
    assert messages is not None
    assert messages["modelV2"].modelV2.action.desiredCurvature == pytest.approx(0.02)


def test_a_model_of_2026_with_an_action_of_its_own(
    small_format: FrameFormat, frame_of: FrameOf
) -> None:
    rule = replace(
        SPLIT_ACTION,
        lateral="action",
        longitudinal="action",
        lat_smooth_s=0.0,
        frame_delay_s=0.075,
        stop="speed",
    )
    interface = with_heads(make_interface(action=rule, lane_change="B", big=True), action=4)
    program = FakeProgram(interface, small_format.size)
    # 2 m/s^2 to the right at 10 m/s; -1 m/s^2 through a filter of 0.3 s: 1 - exp(-1/6).
    program.raw["extra"][0, :2] = 2.0, -1.0
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    messages = bench.messages()
    assert messages is not None
    model, data = messages["modelV2"].modelV2, messages["drivingModelData"].drivingModelData
    assert model.action.desiredCurvature == pytest.approx(0.02)
    assert model.action.desiredAcceleration == pytest.approx(-0.15351828)
    assert (model.big, data.big) == (True, True)
    assert isinstance(bench.daemon.lane_change, TimedLaneChange)


def test_a_model_of_2024_leaves_acceleration_empty(
    small_format: FrameFormat, frame_of: FrameOf
) -> None:
    rule = replace(SPLIT_ACTION, lateral="desired_curvature", longitudinal="none", lat_smooth_s=0.0)
    interface = with_heads(make_interface(action=rule), desired_curvature=2, sim_pose=12)
    program = FakeProgram(interface, small_format.size)
    program.raw["extra"][0, :8] = -0.125, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0
    bench = Bench(program, frame_of, Config(cameras=CAMERAS))
    bench.send("carState", vEgo=10.0)
    bench.step(0)
    messages = bench.messages()
    assert messages is not None
    model = messages["modelV2"].modelV2
    assert model.action.desiredCurvature == -0.125
    assert (model.action.desiredAcceleration, model.action.shouldStop) == (0.0, False)
    assert (list(model.temporalPose.trans), list(model.temporalPose.rot)) == ([1, 2, 3], [4, 5, 6])
    assert not model.big


def test_the_frame_path_keeps_no_memory_and_logs_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def frames(first: int, last: int) -> None:
        for frame_id in range(first, last):
            bench.calibrate()
            bench.step(frame_id)
            bench.messages()
            bench.program.calls.clear()

    frames(0, 200)
    in_modeld = [tracemalloc.Filter(inclusive=True, filename_pattern="*/modeld/*")]
    tracemalloc.start()
    try:
        frames(200, 220)  # what is kept from frame to frame is now known to the tracer
        before = tracemalloc.take_snapshot().filter_traces(in_modeld)
        with caplog.at_level(logging.DEBUG):
            frames(220, 320)
        after = tracemalloc.take_snapshot().filter_traces(in_modeld)
    finally:
        tracemalloc.stop()
    grown = sum(found.size_diff for found in after.compare_to(before, "filename"))
    # One object more in each of the 100 frames would be 4 KB or more.
    assert grown < 2000
    assert caplog.records == []
