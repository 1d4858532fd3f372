"""Frames judged by what came before: ids, stamps, and pictures that do not change."""

import numpy as np
import pytest

from cereal.clock import ManualClock
from cereal.frames import Frame
from modeld.frames.frame_judge import FROZEN_FRAMES, FrameJudge
from modeld.state.loop_state import Fault
from tests.modeld.bench import MS
from tests.modeld.conftest import make_episodes
from tests.modeld.fake_program import SMALL


class Camera:
    """Frames of 20 Hz whose picture is noise, and their judge."""

    def __init__(self, hold: int = 5) -> None:
        self.clock = ManualClock(5_000 * MS)
        self.judge = FrameJudge("road", make_episodes(self.clock), hold)
        self.numbers = np.random.default_rng(1)
        self.id, self.sof_ns = 100, 0

    def take(
        self,
        *,
        frame_id: int | None = None,
        step_ms: int = 50,
        passed_ms: int = 50,
        picture: int | None = None,
        moving: bool = True,
    ) -> list[str]:
        """Return the texts of the reasons about the next frame."""
        self.id = self.id + 1 if frame_id is None else frame_id
        self.sof_ns += step_ms * MS
        self.clock.advance_ns(passed_ms * MS)
        data = self.numbers.integers(0, 256, SMALL.size, np.uint8)
        if picture is not None:
            data = np.full(SMALL.size, picture, np.uint8)
        frame = Frame(data, SMALL, self.id, self.sof_ns, self.sof_ns)
        self.judge.look(frame, self.clock.now_ns(), moving=moving)
        return [reason.text for reason in self.judge.reasons]

    def restarted(self) -> bool:
        return self.judge.restarted

    def count(self, fault: Fault) -> int:
        return self.judge.episodes.state.faults[fault]


@pytest.fixture
def camera() -> Camera:
    return Camera()


def test_frames_in_order_are_nothing_to_speak_of(camera: Camera) -> None:
    assert [camera.take() for _ in range(50)] == [[]] * 50
    # Missing frames and late wake-ups neither.
    assert camera.take(frame_id=200, step_ms=500, passed_ms=900) == []
    assert not camera.restarted()


def test_ids_that_go_back_mark_as_long_as_the_model_sees_images_of_before(camera: Camera) -> None:
    camera.take(frame_id=79)
    said = ["road camera: ids go back from 79 to 30"]
    assert camera.take(frame_id=30) == said
    assert camera.restarted()
    assert [camera.take() for _ in range(5)] == [said] * 4 + [[]]
    assert not camera.restarted()
    assert camera.count(Fault.FRAME_IDS_BACK) == 1


def test_an_id_twice_is_no_restart_and_stamps_that_go_back_are_one(camera: Camera) -> None:
    camera.take(frame_id=79)
    assert camera.take(frame_id=79) == ["road camera: ids stand still at 79"]
    assert not camera.restarted()
    assert camera.count(Fault.FRAME_IDS_BACK) == 1
    other = Camera()
    other.take(step_ms=60_000, passed_ms=60_000)
    assert other.take(step_ms=-30_000) == ["road camera: frame 102 starts 30.0 s before the last"]
    assert other.restarted()
    assert other.count(Fault.FRAME_STAMPS) == 1


@pytest.mark.parametrize(
    ("step_ms", "passed_ms", "text"),
    [
        (50, 3_050, "3.0 s behind its time"),  # a picture of three seconds ago
        (3_050, 50, "3.0 s ahead of its time"),
        (50, 1_051, "1.0 s behind its time"),
        (50, 1_050, None),
        (5_050, 5_050, None),  # nobody ran for five seconds
    ],
)
def test_stamps_that_part_from_the_clock(
    camera: Camera, step_ms: int, passed_ms: int, text: str | None
) -> None:
    camera.take()
    expected = [] if text is None else [f"road camera: frame 102 starts {text}"]
    assert camera.take(step_ms=step_ms, passed_ms=passed_ms) == expected
    assert not camera.restarted()
    uneven = Camera()
    uneven.judge.is_timed = False
    uneven.take()
    assert uneven.take(step_ms=step_ms, passed_ms=passed_ms) == []


@pytest.mark.parametrize(
    "takes",
    [
        # A simulator stamps by the number of the frame, at whatever rate it runs.
        {"step_ms": 50, "passed_ms": 300},
        # A rendered car park may stand still.
        {"picture": 9, "moving": False},
    ],
)
def test_what_is_none_of_our_business(camera: Camera, takes: dict[str, int]) -> None:
    found = [camera.take(**takes) for _ in range(100)]  # type: ignore[arg-type]  # of one type each
    assert found == [[]] * 100


def test_a_picture_of_a_moving_car_that_stays_for_a_second_is_frozen(camera: Camera) -> None:
    found = [camera.take(picture=9) for _ in range(FROZEN_FRAMES + 2)]
    assert found == [
        *[[]] * FROZEN_FRAMES,
        ["road camera: the same picture since 1.0 s"],
        ["road camera: the same picture since 1.1 s"],
    ]
    assert camera.count(Fault.FRAME_FROZEN) == 2
    assert camera.take() == []


def test_one_byte_where_it_is_looked_at_is_life(camera: Camera) -> None:
    data = np.zeros(SMALL.size, np.uint8)
    for index in range(100):
        # Each 2048 bytes of luma: 64 x 32 pixels have fewer samples than a picture of a camera.
        data[0] = index
        frame = Frame(data, SMALL, 200 + index, index * 50 * MS, index * 50 * MS)
        camera.clock.advance_ns(50 * MS)
        camera.judge.look(frame, camera.clock.now_ns(), moving=True)
        assert camera.judge.reasons == ()
