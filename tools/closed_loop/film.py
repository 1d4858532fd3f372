"""Writes a live drive as segments of a device: its messages and what its cameras saw.

Pictures are painted again after the drive: equal scenes give equal pictures, so nothing is encoded
and no frame is kept while the daemon runs. Called by the demo.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from cereal.log_reader import read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import content, member_name, new_event, read_event
from cereal.segment_log import SEGMENT_NS, SegmentLogWriter, init_data_event
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.calibration import Camera
from tools.closed_loop.cameras import device_cameras
from tools.closed_loop.messages import DEVICE, STATE_SERVICES
from tools.closed_loop.scenes import Scene
from tools.closed_loop.trial import Trial
from tools.drives.routes import VIDEO_NAMES
from tools.errors import ToolError, UsageError
from tools.lib.crew import IsStopped, Send, open_crew
from tools.lib.progress_bar import Progress
from tools.messages.drive_log import OUTPUT_SERVICES
from tools.render.hevc import Packet, encode_file
from tools.render.messages import fill_encode_index
from tools.world.painting.painter import Painter
from tools.world.painting.sky import Picture
from tools.world.view import Lens, Mount

INDEX_SERVICES: Final = {ROAD_STREAM: "roadEncodeIdx", WIDE_STREAM: "wideRoadEncodeIdx"}
_STREAM_OF_STATE: Final = {service: stream for stream, service in STATE_SERVICES.items()}
# How long one wait for a message of the painting processes takes.
_POLL_S: Final = 0.2
_PICTURE: Final = "picture"
_GONE: Final = "expected the painting processes to finish, found one gone; is there enough memory?"


@dataclass(frozen=True, slots=True)
class Footage:
    """A finished drive: scenes by frame id, the event log, and the logMonoTime of its ends."""

    trial: Trial
    scenes: Mapping[int, Scene]
    events: Path
    span_ns: tuple[int, int]

    def said(self) -> Iterator[tuple[str, Any, bytes]]:
        """Yield service, Event and bytes of what belongs to the drive."""
        for data in read_log_bytes(self.events):
            event = read_event(data)
            name = str(member_name(event))
            is_answer = name in OUTPUT_SERVICES
            is_of_frame = is_answer or name in _STREAM_OF_STATE
            if is_of_frame and content(event).frameId not in self.scenes:
                continue
            if is_of_frame or self.span_ns[0] <= event.logMonoTime <= self.span_ns[1]:
                yield name, event, data


@dataclass(slots=True)
class _Shots:
    """The frames that one camera delivered, by segment; packets are filled later."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    packets: dict[int, list[Packet]] = field(default_factory=dict)


def write_footage(footage: Footage, directory: Path, route: str, progress: Progress) -> list[Path]:
    """Write a drive as ``DIRECTORY/ROUTE--N``, replacing the route; return the segments in order.

    `directory` exists. `progress` is called after each picture, at most twice a scene.

    Raises:
        UsageError: the directory cannot be written.
        ToolError: a painting process died.
        LogError: the log cannot be read or written.
    """
    shots = _plan(footage)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{route}.", dir=directory) as hidden:
            _paint(footage, shots, Path(hidden), progress)
            made = _write_logs(footage, shots, Path(hidden), route)
            for number, place in enumerate(made):
                for stream in shots:
                    with contextlib.suppress(FileNotFoundError):
                        (Path(hidden) / f"{number}-{stream}").rename(place / VIDEO_NAMES[stream])
            for old in directory.glob(f"{route}--*"):
                shutil.rmtree(old)
            return [place.rename(directory / place.name) for place in made]
    except OSError as error:
        raise UsageError(
            f"{directory}: expected to write a drive, found: {error.strerror or error}; free some "
            "disk space or name another directory"
        ) from error


def _plan(footage: Footage) -> dict[str, _Shots]:
    """Return which frames each camera announced, in segments of a minute of the log's clock."""
    shots = {stream: _Shots() for stream in VIDEO_NAMES if stream in INDEX_SERVICES}
    for name, event, _ in footage.said():
        stream = _STREAM_OF_STATE.get(name)
        if stream is not None:
            segment = (event.logMonoTime - footage.span_ns[0]) // SEGMENT_NS
            shots[stream].ids.setdefault(segment, []).append(content(event).frameId)
    return shots


def _paint(footage: Footage, shots: Mapping[str, _Shots], place: Path, progress: Progress) -> None:
    """Paint and encode all pictures, each camera in a process of its own."""
    cameras = device_cameras()
    assert cameras.wide is not None
    lenses = {ROAD_STREAM: cameras.road, WIDE_STREAM: cameras.wide}
    shares = []
    for stream, one in shots.items():
        files = [
            (place / f"{segment}-{stream}", [footage.scenes[frame] for frame in ids])
            for segment, ids in one.ids.items()
        ]
        shares.append((stream, footage.trial, lenses[stream], files))
    done = 0
    with open_crew(_paint_files, shares, ToolError(_GONE)) as crew:
        while crew.working:
            for message in crew.receive(_POLL_S):
                if message == _PICTURE:
                    done += 1
                    progress(done)
                else:
                    stream, packets = message
                    shots[stream].packets.update(zip(shots[stream].ids, packets, strict=True))


def _paint_files(
    stream: str,
    trial: Trial,
    camera: Camera,
    files: Sequence[tuple[Path, Sequence[Scene]]],
    _is_stopped: IsStopped,
    send: Send,
) -> None:
    """Paint the files of a camera; the body of a process."""
    painter = Painter(trial.world, Mount(Lens.of(camera), trial.rpy_rad, trial.height_m))

    def pictures(scenes: Sequence[Scene]) -> Iterator[Picture]:
        for scene in scenes:
            yield painter.paint(scene.body, scene.vehicles, scene.number)
            send(_PICTURE)

    send((stream, [encode_file(path, camera, pictures(scenes)) for path, scenes in files]))


def _write_logs(
    footage: Footage, shots: Mapping[str, _Shots], place: Path, route: str
) -> list[Path]:
    """Write the segments' logs, with an index for each picture; return their directories."""
    coming = {stream: _indices(one) for stream, one in shots.items()}
    made: list[Path] = []
    init = init_data_event(
        mono_time_ns=footage.span_ns[0],
        wall_time_ns=time.time_ns(),
        version=f"modeld demo {metadata.version('modeld')}",
        device_type=DEVICE,
    )
    with SegmentLogWriter(place, route, init, open_sink=LogWriter) as writer:
        made.append(writer.directory)
        for name, event, data in footage.said():
            writer.write(data)
            stream = _STREAM_OF_STATE.get(name)
            if stream is not None:
                service = INDEX_SERVICES[stream]
                index = new_event(service, mono_time_ns=event.logMonoTime, valid=True)
                fill_encode_index(getattr(index, service), content(event), *next(coming[stream]))
                writer.write(index.to_bytes())
            if writer.directory != made[-1]:
                made.append(writer.directory)
    return made


def _indices(shots: _Shots) -> Iterator[tuple[int, int, int, Packet]]:
    """Yield encodeId, segment, place in it and packet of each picture."""
    encode_id = 0
    for segment, packets in shots.packets.items():
        for position, packet in enumerate(packets):
            yield encode_id, segment, position, packet
            encode_id += 1
