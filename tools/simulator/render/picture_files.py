"""Renders and encodes the video files of a drive in worker processes, with reproducible bytes.

`encode_file` writes HEVC, `encode_small` the scaled ``qcamera.ts``. `open_workers` distributes
files over processes, and `DriverPainter` draws the driver camera's pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.cameras import Camera
from tools.drives.qcamera import SIZE
from tools.errors import ToolError
from tools.lib.processes import Crew, IsStopped, Send, open_crew
from tools.lib.terminal import Progress
from tools.simulator.render.script import TICKS_PER_S
from tools.simulator.world.curves import Floats, random_walk, through_knots
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.view import Bytes

RATE_HZ = 20
# Key frame interval of the device's own encoder for its smaller picture.
KEY_FRAME_INTERVAL = 20
# Constant quantizer, no B frames, no lookahead, one thread: rates, timing and the number of
# processors have no influence. `info=0` omits a text with the encoder's version.
_X265 = ":".join(
    (
        "log-level=none",
        "pools=none",
        "frame-threads=1",
        "wpp=0",
        "lookahead-slices=0",
        "rc-lookahead=0",
        "bframes=0",
        f"keyint={KEY_FRAME_INTERVAL}",
        f"min-keyint={KEY_FRAME_INTERVAL}",
        "scenecut=0",
        "open-gop=0",
        "aq-mode=0",
        "qp=26",
        # Skip unchanged blocks without further analysis: twice as fast, files a few percent larger.
        "rd=1",
        "early-skip=1",
        "rskip=2",
        "rskip-edge-threshold=5",
        "info=0",
    )
)


# Clock of MPEG transport streams.
_CLOCK_HZ = 90_000
# About the 256 kbit/s of a device. Integer scaling and a single thread keep it reproducible.
_X264 = {
    "preset": "ultrafast",
    "qp": "30",
    "x264-params": "keyint=15:min-keyint=15:scenecut=0:bframes=0:threads=1:log-level=0",
}


class Packet(NamedTuple):
    """The size and kind of one encoded picture."""

    size_bytes: int
    is_key: bool


def encode_file(path: Path, camera: Camera, pictures: Iterable[Picture]) -> list[Packet]:
    """Write pictures to a raw HEVC file; return one packet per picture.

    Parameter sets are written once, at the start of the file, and are not part of a packet's
    size. An existing file is overwritten.

    Raises:
        OSError: the file cannot be written.
    """
    import av

    size = camera.width, camera.height
    codec: Any = av.CodecContext.create("libx265", "w")
    codec.width, codec.height = size
    codec.pix_fmt = "yuv420p"
    codec.time_base = Fraction(1, RATE_HZ)
    codec.framerate = Fraction(RATE_HZ, 1)
    codec.options = {"preset": "ultrafast", "x265-params": _X265, "flags": "+global_header"}
    packets: list[Packet] = []
    with path.open("wb") as file:

        def write(encoded: list[Any]) -> None:
            for packet in encoded:
                if not packets:
                    file.write(bytes(codec.extradata))
                data = bytes(packet)
                file.write(data)
                packets.append(Packet(len(data), bool(packet.is_keyframe)))

        for index, picture in enumerate(pictures):
            write(codec.encode(_frame(picture, size, index)))
        write(codec.encode(None))
    return packets


def encode_small(path: Path, pictures: Iterable[Picture], ends_ns: Sequence[int]) -> list[Packet]:
    """Scale the pictures of a segment and write them as ``qcamera.ts``; return their packets.

    `pictures` have the full size; `ends_ns` are the ends of their exposures. An existing file is
    overwritten.

    Raises:
        OSError: the file cannot be written.
    """
    import av

    width, height = SIZE
    halves = width // 2, height // 2
    packets: list[Packet] = []
    with path.open("wb") as file, av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=RATE_HZ)
        stream.width, stream.height = SIZE
        stream.pix_fmt, stream.options = "yuv420p", _X264
        stream.time_base = stream.codec_context.time_base = Fraction(1, _CLOCK_HZ)

        def write(encoded: Iterable[Any]) -> None:
            for packet in encoded:
                packets.append(Packet(packet.size, bool(packet.is_keyframe)))
                container.mux(packet)

        for (luma, u, v), end_ns in zip(pictures, ends_ns, strict=True):
            planes = scale_plane(luma, *SIZE), scale_plane(u, *halves), scale_plane(v, *halves)
            write(stream.encode(_frame(planes, SIZE, end_ns * _CLOCK_HZ // 1_000_000_000)))
        write(stream.encode(None))
    return packets


def _frame(planes: Iterable[Bytes], size: tuple[int, int], pts: int) -> Any:
    """Return planes as a frame for an encoder, which pads its rows."""
    import av

    frame: Any = av.VideoFrame(*size, "yuv420p")
    for plane, values in zip(frame.planes, planes, strict=True):
        rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        rows[:, : values.shape[1]] = values
    frame.pts = pts
    return frame


def scale_plane(plane: Bytes, width: int, height: int) -> Bytes:
    """Return a plane scaled down; each value is the exact mean of the area that it covers."""
    rows, columns = plane.shape
    total = _sums(_sums(plane.astype(np.int64), height).T, width).T
    area = rows * columns
    return np.asarray((total + area // 2) // area, np.uint8)


def _sums(values: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return `count` times the sums over `count` equal spans of the first axis."""
    length = len(values)
    whole, part = np.divmod(np.arange(count + 1) * length, count)
    padded = np.concatenate([values, np.zeros_like(values[:1])])
    below = np.concatenate([np.zeros_like(values[:1]), np.cumsum(values, axis=0)])
    return np.asarray(np.diff(below[whole] * count + padded[whole] * part[:, None], axis=0))


# --- Worker processes ----------------------------------------------------------------------------

# Longest wait for a message of a worker.
_POLL_S = 0.2
# Message of a worker after each picture. After a file it sends the path and the packets.
_PICTURE = "picture"


class PictureFile(Protocol):
    """A video file to render."""

    @property
    def path(self) -> Path:
        """The path of the file."""

    def render(self, count: Callable[[], None]) -> list[Packet]:
        """Render and encode the pictures; `count` is called after each.

        Raises:
            OSError: the file cannot be written.
        """


@dataclass(slots=True)
class Workers:
    """Renders files in worker processes, or in this one; created by `open_workers`."""

    progress: Progress
    _crew: Crew | None = None
    _done: dict[Path, list[Packet]] = field(default_factory=dict)
    _count: int = 0

    def packets(self, file: PictureFile) -> list[Packet]:
        """Return the packets of a file, after waiting for it or rendering it here.

        Raises:
            ToolError: a worker process died.
            OSError: the file cannot be written.
        """
        if self._crew is None:
            return file.render(self._count_one)
        while file.path not in self._done:
            for message in self._crew.receive(_POLL_S):
                if message == _PICTURE:
                    self._count_one()
                else:
                    path, packets = message
                    self._done[path] = packets
        return self._done[file.path]

    def _count_one(self) -> None:
        self._count += 1
        self.progress(self._count)


@contextmanager
def open_workers(
    files: Sequence[PictureFile], count: int, progress: Progress, gone: str
) -> Iterator[Workers]:
    """Start rendering files in worker processes, which end with the block.

    Args:
        files: files to render, dealt to the processes in turn.
        count: number of processes; with 1, files are rendered in this process on request.
        progress: called with the number of pictures after each picture.
        gone: message of the error that is raised if a worker process dies.
    """
    if count == 1:
        yield Workers(progress)
        return
    shares = [(list(files[number::count]),) for number in range(count)]
    with open_crew(_render, shares, ToolError(gone)) as crew:
        yield Workers(progress, crew)


def _render(files: list[PictureFile], _is_stopped: IsStopped, send: Send) -> None:
    """Render files; this is the main function of a worker process."""
    for file in files:
        send((file.path, file.render(lambda: send(_PICTURE))))


# --- The driver camera: a simple drawing of a face -----------------------------------------------

_CABIN, _SEAT, _SHIRT = (58, 128, 128), (44, 130, 126), (76, 140, 118)
_SKIN, _HAIR, _DARK = (142, 114, 148), (40, 124, 132), (30, 128, 128)
_KNOT_S = 1.5
_BLINK_S = (4.0, 0.2)
# Radii of the head, and its movement per step of the random walk, as shares of the picture height.
_HEAD = (0.13, 0.18)
_SWAY = 0.004


class DriverPainter:
    """Renders the driver camera's pictures.

    The camera's width and height must be even. The random motion of the head depends on `seed`.
    """

    def __init__(self, camera: Camera, seconds: float, seed: int) -> None:
        self._size = (camera.height, camera.width)
        rng = np.random.default_rng((seed, 7))
        count = int(seconds / _KNOT_S) + 3
        self._knots = [random_walk(rng, count, 5, (-12, 12)).astype(np.float64) for _ in range(2)]
        self._still = self._paint_cabin()

    def paint(self, tick: int) -> Picture:
        """Return the picture at a tick of 10 ms."""
        height, width = self._size
        time_s = tick / TICKS_PER_S
        at = np.array([time_s])
        sway = [float(through_knots(knots, _KNOT_S, at)[0]) * _SWAY for knots in self._knots]
        centre = (0.46 * width + sway[0] * height, (0.42 + 0.3 * sway[1]) * height)
        # The face turns in the direction of the head's displacement.
        nose = centre[0] + 2.0 * sway[0] * height
        picture = Picture(*(plane.copy() for plane in self._still))
        across, up = _HEAD[0] * height, _HEAD[1] * height
        is_closed = time_s % _BLINK_S[0] < _BLINK_S[1]
        eye = (0.012 if is_closed else 0.1) * up
        for colour, x, y, radius_x, radius_y in (
            (_SKIN, centre[0], centre[1] + up, 0.45 * across, 0.5 * up),
            (_HAIR, centre[0], centre[1] - 0.12 * up, 1.06 * across, 1.0 * up),
            (_SKIN, 0.5 * (centre[0] + nose), centre[1] + 0.1 * up, 0.9 * across, 0.9 * up),
            (_DARK, nose - 0.38 * across, centre[1] - 0.1 * up, 0.15 * across, eye),
            (_DARK, nose + 0.38 * across, centre[1] - 0.1 * up, 0.15 * across, eye),
            (_DARK, nose, centre[1] + 0.55 * up, 0.3 * across, 0.06 * up),
        ):
            _paint_ellipse(picture, colour, (x, y), (radius_x, radius_y))
        return picture

    def _paint_cabin(self) -> Picture:
        height, width = self._size
        picture = Picture(
            np.full((height, width), _CABIN[0], np.uint8),
            np.full((height // 2, width // 2), _CABIN[1], np.uint8),
            np.full((height // 2, width // 2), _CABIN[2], np.uint8),
        )
        for colour, x, y, radius_x, radius_y in (
            (_SEAT, 0.46, 0.75, 0.28, 0.6),
            (_SHIRT, 0.46, 1.02, 0.34, 0.4),
        ):
            size = (radius_x * height, radius_y * height)
            _paint_ellipse(picture, colour, (x * width, y * height), size)
        return picture


def _paint_ellipse(
    picture: Picture,
    colour: tuple[int, int, int],
    centre: tuple[float, float],
    radii: tuple[float, float],
) -> None:
    """Blend an ellipse into the picture, with a rim about one pixel wide."""
    for plane, target in enumerate(picture):
        scale = 1 if plane == 0 else 2
        x, y = ((value + 0.5) / scale for value in centre)
        across, up = (max(value / scale, 0.5) for value in radii)
        rows, columns = (
            np.arange(max(0, int(middle - radius) - 1), min(size, int(middle + radius) + 2))
            for middle, radius, size in ((y, up, target.shape[0]), (x, across, target.shape[1]))
        )
        if not (rows.size and columns.size):
            continue
        # Half of the ellipse's width in each row.
        beside: Floats = 1.0 - ((rows + 0.5 - y) / up) ** 2
        half = across * np.sqrt(np.maximum(beside, 0.0))
        share = (
            np.minimum(np.maximum(half[:, None] - np.abs(columns + 0.5 - x) + 0.5, 0.0), 1.0)
            * (half > 0.0)[:, None]
        )
        part = target[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        part[:] = np.rint(part + (float(colour[plane]) - part) * share).astype(np.uint8)
