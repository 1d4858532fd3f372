"""Which frames and messages the logs have: missing, extra, repeated, in another order."""

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.schema import new_event, read_event
from tests.support.selection import quick_cases
from tests.tools.compare.made_logs import SERVICES, drive, write_log
from tools.compare.align import Aligner
from tools.compare.align import Pair as Matched
from tools.compare.compare import CompareOptions, compare_events, compare_logs
from tools.compare.findings import Comparison
from tools.errors import CompareError, UsageError

FRAMES = range(100, 160)
CAR = CompareOptions(services=["carState"])


def kinds(comparison: Comparison) -> dict[tuple[str, str], tuple[int, int]]:
    """Return how many frames each service lacks, and the first of them; nothing else differs."""
    found: dict[tuple[str, str], tuple[int, int]] = {
        (f.kind, f.service): (f.frames, f.first_frame) for f in comparison.findings
    }
    assert len(found) == len(comparison.findings)
    assert {kind for kind, _ in found} <= {"missing", "extra", "repeated", "reordered"}
    return found


def without(*gone: int) -> list[int]:
    return [frame_id for frame_id in FRAMES if frame_id not in gone]


@pytest.mark.parametrize(
    ("left", "right", "kind", "frames", "first"),
    [
        (FRAMES, without(120, 121, 140), "missing", 3, 120),
        (without(130), FRAMES, "extra", 1, 130),
        (FRAMES, [*range(100, 130), 129, *range(130, 160)], "repeated", 1, 129),
        (FRAMES, [*range(100, 120), *range(121, 131), 120, *range(131, 160)], "reordered", 1, 121),
    ],
)
def test_frames_that_are_not_on_both_sides_are_one_finding_of_each_service(
    left: list[int], right: list[int], kind: str, frames: int, first: int
) -> None:
    # All else is compared with its own frame.
    comparison = compare_events(drive(left), drive(right))
    assert kinds(comparison) == {(kind, service): (frames, first) for service in SERVICES}
    assert comparison.frames == 60 - (frames if kind in ("missing", "extra") else 0)
    assert compare_events(drive(right), drive(right)).passed


def test_a_daemon_that_was_not_run_is_a_warning() -> None:
    both = drive(FRAMES, services=(*SERVICES, "driverStateV2"))
    for left, right, name in ((both, drive(FRAMES), "A"), (drive(FRAMES), both, "B")):
        comparison = compare_events(left, right, names=("A", "B"))
        assert comparison.passed
        assert comparison.warnings == [f"driverStateV2: 60 messages in {name} only, not compared"]
    options = CompareOptions(services=["modelV2", "driverStateV2"])
    assert not compare_events(both, drive(FRAMES), options).passed  # it was asked for
    # A service that the daemon no longer publishes is a finding.
    comparison = compare_events(drive(FRAMES), drive(FRAMES, services=SERVICES[:2]))
    assert kinds(comparison) == {("missing", "cameraOdometry"): (60, 100)}


@pytest.mark.parametrize("frames", quick_cases([100, 1200], 100))
def test_the_order_of_services_is_free(frames: int) -> None:
    """One log frame by frame, the other service by service, up to a minute of each."""
    by_service = [event for name in SERVICES for event in drive(range(frames), services=[name])]
    interleaved = drive(range(frames))
    for left, right in ((interleaved, by_service), (by_service, interleaved)):
        comparison = compare_events(left, right)
        assert comparison.passed
        assert comparison.messages == 3 * frames


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
    seen: dict[str, list[bytes]] = {"left": [], "right": []}
    pairs = 0
    for item in Aligner(logs[0], logs[1], lambda _: True):
        if isinstance(item, Matched):
            pairs += 1
            one, other = item.left, item.right
            assert (one.service, one.frame_id) == (other.service, other.frame_id)
            seen["left"].append(one.data)
            seen["right"].append(other.data)
        else:
            seen[item.side].append(item.message.data)
    assert (sorted(seen["left"]), sorted(seen["right"])) == (sorted(logs[0]), sorted(logs[1]))
    assert pairs == 2 * sum(min(left.count(frame), right.count(frame)) for frame in set(left))


def test_frames_before_the_calibration_are_not_compared() -> None:
    def spoil(service: str, frame_id: int, event: Any) -> None:
        if frame_id < 110 and service == "modelV2":
            event.modelV2.position.x = [float("nan")] * 33

    left, right = drive(FRAMES, valid_from=110), drive(range(105, 160), spoil)
    comparison = compare_events(left, right)
    assert comparison.passed
    assert (comparison.skipped, comparison.frames) == (5, 50)
    found = compare_events(left, right, CompareOptions(uncalibrated=True)).findings
    missing = {f.service: (f.frames, f.first_frame) for f in found if f.kind == "missing"}
    assert missing == dict.fromkeys(SERVICES, (5, 100))
    # A right log that is never valid is found.
    comparison = compare_events(drive(FRAMES), drive(FRAMES, valid_from=999))
    assert [(f.field, f.frames) for f in comparison.findings] == [(".valid", 60)] * 3


def test_nothing_to_compare_is_an_error_and_what_waits_is_bounded() -> None:
    with pytest.raises(CompareError, match="--uncalibrated"):
        compare_events(drive(FRAMES, valid_from=999), drive(FRAMES))
    options = CompareOptions(all_services=True)
    with pytest.raises(CompareError, match="carState in A and none in B"):
        compare_events(drive(range(1), services=["carState"]), [], options, ("A", "B"))
    with pytest.raises(UsageError, match="noSuch"):
        compare_events([], [], CompareOptions(services=["noSuch"]))
    left, right = drive(range(500)), drive(range(1000, 1500))
    aligner = Aligner(left, right, lambda _: True, max_waiting_bytes=100_000)
    assert len([item for item in aligner if not isinstance(item, Matched)]) == 3000
    assert aligner.seen.evicted > 2500


def later(events: list[bytes], by_ns: int) -> list[bytes]:
    builders = [read_event(data).as_builder() for data in events]
    for event in builders:
        event.logMonoTime += by_ns
    return [event.to_bytes() for event in builders]


def test_services_without_ids_are_matched_by_time_and_else_by_position() -> None:
    left = drive(range(50), services=["carState"])
    comparison = compare_events(left, [*left[:20], *left[21:]], CAR)
    assert (kinds(comparison), comparison.messages) == ({("missing", "carState"): (1, 20)}, 49)
    right = later(left, 1)
    comparison = compare_events(left, right, CAR)
    assert (comparison.messages, comparison.passed) == (50, True)
    assert kinds(compare_events(left, right[:-2], CAR)) == {("missing", "carState"): (2, 48)}
    # Names of 2026 are understood.
    data = new_event("liveDelay", mono_time_ns=1, valid=True).to_bytes()
    options = CompareOptions(services=["lateralDelay"])
    assert compare_events([data], [data], options).messages == 1


def test_files_of_any_codec_and_truncated_ones(tmp_path: Path) -> None:
    left, right = (
        write_log(tmp_path / name, drive(FRAMES)) for name in ("left.rlog.zst", "right.rlog")
    )
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
    driver = drive(FRAMES, services=["driverStateV2"])
    comparison = compare_events(drive(FRAMES), [*later(drive(FRAMES), 70_000_000), *driver])
    assert comparison.passed
    assert (comparison.messages, len(comparison.warnings)) == (180, 1)
