"""Real segments of a drive, small enough to write for every test.

Each picture carries its frame id and its camera as light and dark blocks, so that a test reads from
the pixels which frame it was given, whatever log and file say.
"""

import functools
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from cereal.frames import Frame
from cereal.log_writer import LogWriter
from tests.tools.messages import event_of

SIZE = (64, 48)
START_NS = 50_000_000_000
PERIOD_NS = 50_000_000
READOUT_NS = 11_000_000
GOP = 5
STREAMS = ("road", "wideRoad", "driver")
FILE_OF = {"road": "fcamera.hevc", "wideRoad": "ecamera.hevc", "driver": "dcamera.hevc"}
STATE_OF = {
    "road": "roadCameraState",
    "wideRoad": "wideRoadCameraState",
    "driver": "driverCameraState",
}
INDEX_OF = {"road": "roadEncodeIdx", "wideRoad": "wideRoadEncodeIdx", "driver": "driverEncodeIdx"}
# The small pictures of the road camera.
SMALL = "small"
FILE_OF[SMALL], STATE_OF[SMALL], INDEX_OF[SMALL] = "qcamera.ts", "roadCameraState", "qRoadEncodeIdx"
# The driver camera runs half a period later.
PHASE_NS = {"road": 0, "wideRoad": 400_000, "driver": 25_000_000, SMALL: 0}
_COLUMNS, _ROWS = 8, 2


@dataclass(frozen=True)
class Track:
    """One camera in one segment.

    Attributes:
        pictures: frame ids in the file, in order.
        states: frame ids with a camera state in the log; None: those of `pictures`.
        indexed: frame ids with an EncodeIdx; None: those of `pictures`.
        first_id: segmentId of the file's first picture.
        has_file: write the video.
        has_sizes: EncodeIdx tells the bytes.
        has_flags: EncodeIdx tells key frames.
        has_starts: camera states tell the start of exposure.
        size: of the pictures.
        repeats_headers: parameter sets stand before every key frame, not only the first.
        hashed: pictures carry checksums.
        has_sound: half a second more of it than of pictures; of small pictures.
    """

    pictures: Sequence[int]
    states: Sequence[int] | None = None
    indexed: Sequence[int] | None = None
    first_id: int = 0
    has_file: bool = True
    has_sizes: bool = True
    has_flags: bool = True
    has_starts: bool = True
    size: tuple[int, int] = SIZE
    repeats_headers: bool = False
    hashed: bool = False
    has_sound: bool = False


@dataclass(frozen=True)
class Segment:
    """One segment.

    Attributes:
        number: segmentNum.
        tracks: stream, or ``SMALL`` -> what there is of it.
        log: name of the log.
        device: initData.deviceType.
        sensor: of the camera states.
        shuffle: order of the log's events: takes and returns (time, bytes) rows.
        extra: more events (time, bytes).
    """

    number: int
    tracks: dict[str, Track]
    log: str = "rlog.zst"
    device: str = "tici"
    sensor: str = "os04c10"
    shuffle: Callable[[list[tuple[int, bytes]]], list[tuple[int, bytes]]] | None = None
    extra: Sequence[tuple[int, bytes]] = field(default_factory=tuple)
    device_state_type: str = "tici"


def plain(number: int = 0, count: int = 12, first: int | None = None, **more: Any) -> Segment:
    """A whole segment with two cameras; frame ids go on over segments of the same length."""
    begin = number * count if first is None else first
    ids = range(begin, begin + count)
    return Segment(number, {"road": Track(ids), "wideRoad": Track(ids)}, **more)


def write_segment(directory: Path, segment: Segment) -> Path:
    """Write log and videos into a directory, which is returned."""
    directory.mkdir(parents=True, exist_ok=True)
    events = [*_common_events(segment), *segment.extra]
    for stream, track in segment.tracks.items():
        ids = tuple(track.pictures)
        if stream == SMALL:
            packets, content = encode_small(ids, track.size, track.has_sound)
        else:
            packets = encode(stream, ids, track.size, track.hashed)
            content = packets.file(repeats_headers=track.repeats_headers)
        if track.has_file:
            (directory / FILE_OF[stream]).write_bytes(content)
        events += _camera_events(segment, stream, track, packets)
    events.sort(key=lambda row: row[0])
    if segment.shuffle:
        events = segment.shuffle(events)
    with LogWriter(directory / segment.log) as log:
        for _, data in events:
            log.write(data)
    return directory


def write_route(directory: Path, *counts: int) -> list[str]:
    """Write the segments of a route, of so many frames each; return their directories."""
    found = []
    for number, count in enumerate(counts):
        segment = plain(number, count=count, first=sum(counts[:number]))
        found.append(str(write_segment(directory / f"00000001--0123456789--{number}", segment)))
    return found


def sof_ns(stream: str, frame_id: int) -> int:
    """When the exposure of a frame begins."""
    return START_NS + PERIOD_NS * frame_id + PHASE_NS[stream]


def state_ns(stream: str, frame_id: int) -> int:
    """When its camera state was sent."""
    return sof_ns(stream, frame_id) + READOUT_NS + 1_000_000


def shown(frame: Frame) -> tuple[str, int]:
    """Read from the pixels of which camera and frame a picture is."""
    layout = frame.format
    rows = frame.data[: layout.stride * layout.height].reshape(layout.height, layout.stride)
    picture = rows[:, : layout.width]
    block = (layout.height // _ROWS, layout.width // _COLUMNS)
    bits = [
        picture[row * block[0] : (row + 1) * block[0], col * block[1] : (col + 1) * block[1]].mean()
        > 128
        for row in range(_ROWS)
        for col in range(_COLUMNS)
    ]
    value = sum(int(bit) << position for position, bit in enumerate(bits))
    return STREAMS[value & 3], value >> 2


@dataclass(frozen=True)
class Packets:
    """A video as its encoder made it: parameter sets, and (bytes, is key) of each picture."""

    header: bytes
    bodies: tuple[tuple[bytes, bool], ...]

    def file(self, *, repeats_headers: bool = False) -> bytes:
        """Return them one after the other, parameter sets at the start or before all key frames."""
        first = b"" if repeats_headers else self.header
        before = {True: self.header if repeats_headers else b"", False: b""}
        return first + b"".join(before[is_key] + body for body, is_key in self.bodies)


@functools.lru_cache(maxsize=64)
def encode(stream: str, ids: tuple[int, ...], size: tuple[int, int], hashed: bool) -> Packets:
    """Encode pictures that show these frame ids."""
    context: Any = av.CodecContext.create("libx265", "w")
    context.width, context.height = size
    context.pix_fmt = "yuv420p"
    context.time_base, context.framerate = Fraction(1, 20), Fraction(20)
    context.flags |= av.codec.context.Flags.global_header
    context.options = {
        "preset": "ultrafast",
        "x265-params": f"bframes=0:keyint={GOP}:min-keyint={GOP}:scenecut=0:qp=12:ctu=16:pools=1:"
        f"frame-threads=1:log-level=none:repeat-headers=0:info=0:hash={int(hashed)}",
    }
    packets = []
    for position, frame_id in enumerate(ids):
        picture = av.VideoFrame.from_ndarray(_picture(stream, frame_id, size), format="yuv420p")
        picture.pts = position
        packets += context.encode(picture)
    packets += context.encode(None)
    return Packets(
        bytes(context.extradata or b""),
        tuple((bytes(packet), bool(packet.is_keyframe)) for packet in packets),
    )


@functools.lru_cache(maxsize=64)
def encode_small(
    ids: tuple[int, ...], size: tuple[int, int], has_sound: bool
) -> tuple[Packets, bytes]:
    """Encode pictures of the road camera; return the packets, and a transport stream of them."""
    packets: list[Any] = []
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream: Any = container.add_stream("libx264", rate=20)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = {
            "preset": "ultrafast",
            "qp": "8",
            "x264-params": f"bframes=0:keyint={GOP}:min-keyint={GOP}:scenecut=0:threads=1",
        }
        sound: Any = container.add_stream("aac", rate=16_000) if has_sound else None
        for position, frame_id in enumerate(ids):
            pixels = _picture("road", frame_id, size)
            picture = av.VideoFrame.from_ndarray(pixels, format="yuv420p")
            picture.pts, picture.time_base = position, Fraction(1, 20)
            packets += stream.encode(picture)
        packets += stream.encode(None)
        bodies = tuple((bytes(packet), bool(packet.is_keyframe)) for packet in packets)
        for position in range((len(ids) + 10) * 800 // 1024 if has_sound else 0):
            silence = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp")
            silence.sample_rate, silence.pts = 16_000, position * 1024
            packets += sound.encode(silence)
        for packet in packets:
            container.mux(packet)
    return Packets(b"", bodies), file.getvalue()


def _picture(stream: str, frame_id: int, size: tuple[int, int]) -> Any:
    width, height = size
    value = STREAMS.index(stream) | frame_id << 2
    planar = np.full((height * 3 // 2, width), 128, np.uint8)
    block = (height // _ROWS, width // _COLUMNS)
    for position in range(_ROWS * _COLUMNS):
        row, col = divmod(position, _COLUMNS)
        planar[row * block[0] : (row + 1) * block[0], col * block[1] : (col + 1) * block[1]] = (
            220 if value >> position & 1 else 30
        )
    # Blue rises with the columns, red falls: planes that are exchanged are seen.
    ramp = np.linspace(60, 190, width // 2).astype(np.uint8)
    chroma = planar[height:].reshape(2, height // 2, width // 2)
    chroma[0], chroma[1] = ramp, ramp[::-1]
    return planar


def _common_events(segment: Segment) -> list[tuple[int, bytes]]:
    ids = sorted({one for track in segment.tracks.values() for one in track.pictures}) or [0]
    begin, end = sof_ns("road", ids[0]), sof_ns("road", ids[-1])
    kind = "startOfSegment" if segment.number else "startOfRoute"
    init = {"deviceType": segment.device, "version": "0.10.0", "dongleId": "a2a0ccea32023010"}
    pose = {"rpyCalib": [0.0, 0.02, -0.01], "height": [1.3], "calStatus": "calibrated"}
    rows: list[tuple[str, int, dict[str, Any]]] = [
        # The logger's initData is the same in each segment, with the time of its first.
        ("initData", START_NS - PERIOD_NS, init),
        ("sentinel", begin - 9_000_000, {"type": kind}),
        ("carParams", begin - 8_000_000, {"longitudinalActuatorDelay": 0.25}),
        ("sentinel", end + PERIOD_NS, {"type": "endOfSegment"}),
    ]
    for time_ns in range(begin - 7_000_000, end, 5 * PERIOD_NS):
        rows.append(("deviceState", time_ns, {"deviceType": segment.device_state_type}))
        rows.append(("liveCalibration", time_ns, pose))
    car_ns = range(begin - 6_000_000, end, PERIOD_NS // 5)
    rows += [("carState", time_ns, {"vEgo": 12.5}) for time_ns in car_ns]
    return [(time_ns, event_of(name, time_ns, **fields)) for name, time_ns, fields in rows]


def _camera_events(
    segment: Segment, stream: str, track: Track, packets: Packets
) -> list[tuple[int, bytes]]:
    rows: list[tuple[str, int, dict[str, Any]]] = []
    for frame_id in track.pictures if track.states is None else track.states:
        start_ns = sof_ns(stream, frame_id)
        state = {
            "frameId": frame_id,
            "sensor": segment.sensor,
            "timestampSof": start_ns * track.has_starts,
            "timestampEof": start_ns + READOUT_NS,
        }
        rows.append((STATE_OF[stream], state_ns(stream, frame_id), state))
    for position, frame_id in enumerate(track.pictures):
        if track.indexed is not None and frame_id not in track.indexed:
            continue
        number = track.first_id + position
        body, is_key = packets.bodies[position]
        kind = "qcameraH264" if stream == SMALL else "fullHEVC"
        index = {"frameId": frame_id, "type": kind, "encodeId": frame_id}
        index |= {"segmentNum": segment.number, "segmentId": number, "segmentIdEncode": number}
        index |= {"timestampSof": sof_ns(stream, frame_id)}
        index |= {"timestampEof": sof_ns(stream, frame_id) + READOUT_NS}
        index |= {"flags": 8 if is_key and track.has_flags else 0}
        index |= {"len": len(body) if track.has_sizes else 0}
        rows.append((INDEX_OF[stream], state_ns(stream, frame_id) + 30_000_000, index))
    return [(time_ns, event_of(name, time_ns, **fields)) for name, time_ns, fields in rows]
