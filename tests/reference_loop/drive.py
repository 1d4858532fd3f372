"""The drive that product and reference are played: the dashcam clip, and a busy car around it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.reference_loop.loop import Car, Moment
from tests.reference_loop.rules import Driver
from tests.reference_loop.warps import Lens, Picture
from tools.video.video import Video

CLIP = Path(__file__).parents[3] / "shared/data/dashcam/solidWhiteRight.mp4"
WIDTH, HEIGHT = 960, 540
STRIDE, UV_OFFSET = 1024, 1024 * 544
LENS = Lens(WIDTH, HEIGHT, 1000.0)
WIDE_LENS = Lens(WIDTH, HEIGHT, 320.0)
CAR = Car(steer_delay=0.12, longitudinal_delay=0.43, road=LENS, wide=WIDE_LENS)
FRAME_NS = 50_000_000
EXPOSURE_NS = 15_000_000
WIDE_LATER_NS = 1_000_000
FIRST_ID = 3
WIDE_ID_OFFSET = 7

# Index of the clip's frame -> ids missing before it. One falls on the start of a lane change.
LOST = {27: 1, 80: 3, 101: 1, 180: 12}
# A first calibration after a few frames without one, and another later.
CALIBRATIONS = {4: (0.0, 0.02, -0.01), 60: (0.01, -0.03, 0.02)}
# Frames from .. to; km/h would be below 20 mph at 30, standstill at 0.2 m/s, backwards at -0.4.
SPEEDS = ((0, 14.0), (70, 20.5), (88, 0.2), (92, -0.4), (96, 7.0), (112, 16.0))


@dataclass(frozen=True, slots=True)
class Drive:
    """Moments, and the stamps of start of frame of each: road, wide."""

    moments: tuple[Moment, ...]
    stamps_ns: tuple[tuple[int, int], ...]


def pictures_of_the_clip() -> list[Picture]:
    """All frames of the clip; a made-up drive past stripes where it is not checked out."""
    return decode(CLIP) if CLIP.exists() else [_stripes(i) for i in range(221)]


def _stripes(index: int) -> Picture:
    rows, columns = np.indices((HEIGHT * 3 // 2, STRIDE))
    waves = np.sin((columns + 7 * index) / 23) + np.sin((rows * (1 + index % 5) + index) / 41)
    data = np.zeros(UV_OFFSET + STRIDE * HEIGHT // 2, np.uint8)
    values = (127 + 60 * waves).astype(np.uint8)
    data[: HEIGHT * STRIDE] = values[:HEIGHT].reshape(-1)
    data[UV_OFFSET:] = values[HEIGHT:].reshape(-1)
    return Picture(data, WIDTH, HEIGHT, STRIDE, UV_OFFSET, index)


def decode(path: Path) -> list[Picture]:
    """All frames of a clip as padded NV12."""
    size = UV_OFFSET + STRIDE * HEIGHT // 2
    found = []
    with Video(path) as video:
        for number, frame in enumerate(video.frames()):
            data = np.zeros(size, np.uint8)
            for plane, at, rows in (
                (frame.luma, 0, HEIGHT),
                (frame.chroma, UV_OFFSET, HEIGHT // 2),
            ):
                target = data[at : at + rows * STRIDE].reshape(rows, STRIDE)
                target[:, :WIDTH] = plane
            found.append(Picture(data, WIDTH, HEIGHT, STRIDE, UV_OFFSET, number))
    return found


def make_drive(pictures: list[Picture], frames: int, *, single: bool = False) -> Drive:
    """The first frames of the clip; `single`: there is only the road camera."""
    moments, stamps = [], []
    for index, frame_id in zip(range(frames), _ids(), strict=False):
        road = pictures[index]
        wide = road if single else pictures[(3 * index + 50) % len(pictures)]
        sof_ns = frame_id * FRAME_NS
        stamps.append((sof_ns, sof_ns if single else sof_ns + WIDE_LATER_NS))
        moments.append(
            Moment(
                frame_id=frame_id,
                extra_id=frame_id if single else frame_id + WIDE_ID_OFFSET,
                eof_ns=sof_ns + EXPOSURE_NS,
                road=road,
                wide=wide,
                driver=_driver(index),
                is_rhd=50 <= index < 75,
                lateral_delay=0.2 if index < 40 else 0.31,
                camera_id=frame_id + (2 if index % 9 == 0 else 0) - index % 2,
                rpy=CALIBRATIONS.get(index),
            )
        )
    return Drive(tuple(moments), tuple(stamps))


def _ids() -> Iterator[int]:
    frame_id, index = FIRST_ID, 0
    while True:
        frame_id += LOST.get(index, 0)
        yield frame_id
        frame_id, index = frame_id + 1, index + 1


def _driver(index: int) -> Driver:
    """A change to the left at 20, one to the right at 64 past somebody in the way, hazards.

    At 116 a blinker is on while the software does not steer, and still is when it does: only
    machine B takes that for an edge. The change at 160 is for both.
    """
    left = any(start <= index < stop for start, stop in ((20, 34), (116, 150), (160, 190)))
    right, hazards = 64 <= index < 100, 104 <= index < 110
    return Driver(
        v_ego=next(v for start, v in reversed(SPEEDS) if index >= start),
        left_blinker=left or hazards,
        right_blinker=right or hazards,
        steering_pressed=index in (26, 66, 70, 123, 125, 164),
        steering_torque={26: 1.5, 66: -2.0, 70: -2.0, 123: -1.0, 125: 1.0, 164: 2.0}.get(
            index, 0.0
        ),
        right_blindspot=64 <= index < 68,
        lat_active=index >= 10 and not 114 <= index < 118,
    )
