"""Which frames and messages the logs have: missing, extra, repeated, in another order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.schema import new_event, read_event
from tests.tools.compare.made_logs import SERVICES, drive, write_log
from tools.compare.align import Aligner, Pair
from tools.compare.compare import CompareOptions, compare_events, compare_logs
from tools.compare.findings import Comparison
from tools.errors import CompareError, UsageError

FRAMES = range(100, 160)


def kinds(comparison: Comparison) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (f.kind, f.service): (f.frames, f.first_frame)
        for f in comparison.findings
        if f.kind in ("missing", "extra", "repeated", "reordered")
    }


def frames_without(*gone: int) -> list[int]:
    return [frame_id for frame_id in FRAMES if frame_id not in gone]


def test_missing_frames_are_one_finding_of_each_service() -> None:
    comparison = compare_events(drive(FRAMES), drive(frames_without(120, 121, 140)))
    assert kinds(comparison) == {("missing", service): (3, 120) for service in SERVICES}
    assert len(comparison.findings) == 3  # all else is compared with its own frame
    assert comparison.frames == 57


def test_extra_frames() -> None:
    comparison = compare_events(drive(frames_without(130)), drive(FRAMES))
    assert kinds(comparison) == {("extra", service): (1, 130) for service in SERVICES}


def test_a_frame_that_comes_twice() -> None:
    twice = [*range(100, 130), 129, *range(130, 160)]
    comparison = compare_events(drive(FRAMES), drive(twice))
    assert kinds(comparison) == {("repeated", service): (1, 129) for service in SERVICES}
    assert compare_events(drive(twice), drive(twice)).passed


def test_a_delayed_frame_is_one_frame_in_another_order() -> None:
    delayed = [*range(100, 120), *range(121, 131), 120, *range(131, 160)]
    comparison = compare_events(drive(FRAMES), drive(delayed))
    assert {key: value[0] for key, value in kinds(comparison).items()} == {
        ("reordered", service): 1 for service in SERVICES
    }
    assert len(comparison.findings) == 3


def test_a_service_that_the_daemon_no_longer_publishes_is_a_finding() -> None:
    comparison = compare_events(drive(FRAMES), drive(FRAMES, services=SERVICES[:2]))
    assert kinds(comparison) == {("missing", "cameraOdometry"): (60, 100)}


def test_a_daemon_that_was_not_run_is_a_warning() -> None:
    both = drive(FRAMES, services=(*SERVICES, "driverStateV2"))
    for left, right, name in ((both, drive(FRAMES), "A"), (drive(FRAMES), both, "B")):
        comparison = compare_events(left, right, names=("A", "B"))
        assert comparison.passed
        assert comparison.warnings == [f"driverStateV2: 60 messages in {name} only, not compared"]
    options = CompareOptions(services=["modelV2", "driverStateV2"])
    assert not compare_events(both, drive(FRAMES), options).passed  # it was asked for


def test_the_order_of_services_is_free() -> None:
    """One log frame by frame, the other service by service, a minute of each."""
    minute = range(1200)
    by_service = [event for name in SERVICES for event in drive(minute, services=[name])]
    interleaved = drive(minute)
    for left, right in ((interleaved, by_service), (by_service, interleaved)):
        comparison = compare_events(left, right)
        assert comparison.passed
        assert comparison.messages == 3600


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 30), max_size=40),
    st.lists(st.integers(0, 30), max_size=40),
    st.randoms(use_true_random=False),
)
def test_every_message_comes_out_once(
    left: list[int], right: list[int], shuffle: random.Random
) -> None:
    logs = [drive(ids, services=SERVICES[:2]) for ids in (left, right)]
    for log in logs:
        shuffle.shuffle(log)
    aligner = Aligner(logs[0], logs[1], lambda _: True)
    seen: dict[str, list[bytes]] = {"left": [], "right": []}
    pairs = 0
    for item in aligner:
        if isinstance(item, Pair):
            pairs += 1
            assert (item.left.service, item.left.frame_id) == (
                item.right.service,
                item.right.frame_id,
            )
            seen["left"].append(item.left.data)
            seen["right"].append(item.right.data)
        else:
            seen[item.side].append(item.message.data)
    assert sorted(seen["left"]) == sorted(logs[0])
    assert sorted(seen["right"]) == sorted(logs[1])
    both = sum(min(left.count(frame), right.count(frame)) for frame in set(left))
    assert pairs == 2 * both


def test_what_waits_is_bounded() -> None:
    left, right = drive(range(500)), drive(range(1000, 1500))
    aligner = Aligner(left, right, lambda _: True, max_waiting_bytes=100_000)
    items = [item for item in aligner if not isinstance(item, Pair)]
    assert len(items) == 3000
    assert aligner.seen.evicted > 2500


def test_frames_before_the_calibration_are_not_compared() -> None:
    left = drive(FRAMES, valid_from=110)
    right = drive(range(105, 160), spoil)
    comparison = compare_events(left, right)
    assert comparison.passed
    assert (comparison.skipped, comparison.frames) == (5, 50)
    options = CompareOptions(uncalibrated=True)
    assert kinds(compare_events(left, right, options)) == {
        ("missing", service): (5, 100) for service in SERVICES
    }


def spoil(service: str, frame_id: int, event: Any) -> None:
    """Make what is not calibrated meaningless."""
    if frame_id < 110 and service == "modelV2":
        event.modelV2.position.x = [float("nan")] * 33


def test_a_right_log_that_is_never_valid_is_found() -> None:
    comparison = compare_events(drive(FRAMES), drive(FRAMES, valid_from=999))
    assert [(f.field, f.frames) for f in comparison.findings] == [(".valid", 60)] * 3


def test_nothing_to_compare_is_an_error() -> None:
    with pytest.raises(CompareError, match="--uncalibrated"):
        compare_events(drive(FRAMES, valid_from=999), drive(FRAMES))
    options = CompareOptions(all_services=True)
    with pytest.raises(CompareError, match="carState in A and none in B"):
        compare_events(drive(range(1), services=["carState"]), [], options, ("A", "B"))
    with pytest.raises(UsageError, match="noSuch"):
        compare_events([], [], CompareOptions(services=["noSuch"]))


# --- services without frame ids --------------------------------------------------------------


def test_other_services_are_matched_by_their_time() -> None:
    left = drive(range(50), services=["carState"])
    options = CompareOptions(services=["carState"])
    comparison = compare_events(left, [*left[:20], *left[21:]], options)
    assert kinds(comparison) == {("missing", "carState"): (1, 20)}
    assert len(comparison.findings) == 1
    assert comparison.messages == 49


def test_other_services_are_matched_by_position_where_times_differ() -> None:
    left = drive(range(50), services=["carState"])
    builders = [read_event(data).as_builder() for data in left]
    for event in builders:
        event.logMonoTime += 1
    right = [event.to_bytes() for event in builders]
    options = CompareOptions(services=["carState"])
    assert compare_events(left, right, options).messages == 50
    assert compare_events(left, right, options).passed
    comparison = compare_events(left, right[:-2], options)
    assert kinds(comparison) == {("missing", "carState"): (2, 48)}


def test_names_of_2026_are_understood() -> None:
    data = new_event("liveDelay", mono_time_ns=1, valid=True).to_bytes()
    options = CompareOptions(services=["lateralDelay"])
    assert compare_events([data], [data], options).messages == 1


# --- files -----------------------------------------------------------------------------------


def test_files_of_any_codec_and_truncated_ones(tmp_path: Path) -> None:
    events = drive(FRAMES)
    left = write_log(tmp_path / "left.rlog.zst", events)
    right = write_log(tmp_path / "right.rlog", events)
    comparison = compare_logs(left, right)
    assert comparison.passed
    assert (comparison.left, comparison.right) == (str(left), str(right))
    right.write_bytes(right.read_bytes()[:-100])
    comparison = compare_logs(left, right)
    assert kinds(comparison) == {("missing", "cameraOdometry"): (1, 159)}
    assert "right.rlog" in comparison.warnings[0]
    assert "179 events" in comparison.warnings[0]


def test_a_log_as_model_replay_writes_it() -> None:
    """No initData; the stamps of the next trigger; the driver's messages behind all others."""
    frames = range(100, 160)
    left = drive(frames)
    restamped = []
    for data in drive(frames):
        event = read_event(data).as_builder()
        event.logMonoTime += 70_000_000
        restamped.append(event.to_bytes())
    driver = drive(frames, services=["driverStateV2"])
    comparison = compare_events(left, [*restamped, *driver])
    assert comparison.passed
    assert comparison.messages == 180
    assert len(comparison.warnings) == 1
