"""Renders the pictures of a finished drive: for its report, its clip, and its segments.

Equal scenes render to equal pictures. Therefore only the positions of all cars are kept for each
frame while the daemon runs, and pictures are rendered and encoded afterwards.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cereal.log_reader import read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import content, member_name, new_event, read_event
from cereal.segment_log import SEGMENT_NS, SegmentLogWriter, init_data_event
from modeld.constants import X_IDXS
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from modeld.vehicle.cameras import Camera
from tools.drives.routes import VIDEO_NAMES
from tools.errors import UsageError
from tools.lib.terminal import Progress
from tools.messages.drive_log import OUTPUT_SERVICES, Curve, Curves
from tools.report.picture import encode_jpeg
from tools.simulator.closed_loop.device import DEVICE, STATE_SERVICES, device_cameras
from tools.simulator.closed_loop.simulation import FRAME_S, Simulation
from tools.simulator.closed_loop.trial import Trial
from tools.simulator.render.messages import fill_encode_index
from tools.simulator.render.picture_files import Packet, encode_file, open_workers
from tools.simulator.world.car import Body
from tools.simulator.world.curves import Floats
from tools.simulator.world.expert import Expert
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.painter import Painter
from tools.simulator.world.traffic import Vehicle
from tools.simulator.world.truth import truth_of
from tools.simulator.world.view import Lens, Mount
from tools.views.canvas import Canvas
from tools.views.overlay import (
    BLUE,
    GREEN,
    HALF_CAR_M,
    HALF_LINE_M,
    MIN_OPACITY,
    RED,
    ribbon,
)

# Lane lines are compared up to this distance, if their probability exceeds `SEEN`.
COMPARED_M = 40.0
SEEN = 0.5
# Indices of the lines of the camera's own lane among the model's four.
OWN_LINES = (1, 2)


@dataclass(frozen=True, slots=True)
class Scene:
    """The content of one frame; `lane` is the lane in which the car should be."""

    number: int
    body: Body
    vehicles: tuple[Vehicle, ...]
    lane: int


def scene_of(simulation: Simulation) -> Scene:
    """Return the present scene of a simulation."""
    return Scene(simulation.frame, simulation.body, simulation.vehicles, simulation.lane)


def _painter(trial: Trial, camera: Camera) -> Painter:
    return Painter(trial.world, Mount(Lens.of(camera), trial.rpy_rad, trial.height_m))


def road_pictures(trial: Trial, scenes: Iterable[Scene]) -> list[bytes]:
    """Return the road camera's pictures of scenes as JPEG."""
    painter = _painter(trial, device_cameras().road)
    return [
        encode_jpeg(*painter.paint(scene.body, scene.vehicles, scene.number).nv12())
        for scene in scenes
    ]


def true_curves(trial: Trial, scene: Scene) -> Curves:
    """Return a perfect model's curves: the expert's plan, lane lines and road edges.

    Points that do not exist are NaN.
    """
    world = trial.world
    expert = Expert(world, scene.lane, max(world.speed_limit_mps, trial.speed_mps))
    plan = expert.plan(scene.body, scene.vehicles)
    truth = truth_of(world, scene.body, scene.vehicles, plan, height_m=trial.height_m)
    return Curves(
        plan_m=truth.plan[:, :3].astype(np.float32),
        lane_lines_m=_with_distances(truth.lane_lines),
        lane_line_probs=truth.lane_lines_prob.astype(np.float32),
        road_edges_m=_with_distances(truth.road_edges),
    )


def _with_distances(borders_yz: Floats) -> Curve:
    """Return curves as x, y, z."""
    x = np.broadcast_to(X_IDXS[:, None], (*borders_yz.shape[:2], 1))
    return np.concatenate([x, borders_yz], axis=2).astype(np.float32)


def line_errors_m(found: Curves, truth: Curves) -> Floats:
    """Return the lateral errors of both lines of the camera's lane.

    They are taken at the model's distances up to `COMPARED_M`, for lines that are visible and
    detected.
    """
    near = X_IDXS <= COMPARED_M
    errors = [
        np.abs(found.lane_lines_m[line, near, 1] - truth.lane_lines_m[line, near, 1])
        for line in OWN_LINES
        if truth.lane_line_probs[line] > SEEN and found.lane_line_probs[line] > SEEN
    ]
    pooled = np.concatenate([np.zeros(0), *errors])
    return np.asarray(pooled[np.isfinite(pooled)])


# --- The clip: an animated WebP, which browsers show without a player ----------------------------

# Width and height of the clip, those of a page column.
SIZE: Final = (640, 400)
# The maximum number of pictures of a clip, and the least number of frames between two of them.
MOST_PICTURES: Final = 60
EVERY: Final = 2
# Quality just above the onset of visible blocks; 10 to 15 KB per picture.
QUALITY: Final = 55
# The largest clip that is added to a page.
MAX_BYTES: Final = 1 << 20


def clip_frames(frames: Sequence[int]) -> list[int]:
    """Return the evenly spaced frames of a drive that its clip shows."""
    return list(frames[:: max(EVERY, -(-len(frames) // MOST_PICTURES))])


def make_clip(trial: Trial, scenes: Mapping[int, Scene], curves: Mapping[int, Curves]) -> bytes:
    """Return an animated WebP, or b"" if there are too few pictures or it is too large.

    `scenes` maps frame ids to scenes, in order. Frames without model outputs in `curves` are left
    out.
    """
    chosen = clip_frames(list(scenes))
    shown = [frame for frame in chosen if frame in curves]
    if len(shown) < 2:
        return b""
    camera = device_cameras().road.scaled(*SIZE)
    painter = _painter(trial, camera)
    step_s = FRAME_S * (chosen[1] - chosen[0])
    clip = _Clip(Fraction(step_s).limit_denominator(1000))
    for frame in shown:
        scene = scenes[frame]
        rgb = _rgb(painter.paint(scene.body, scene.vehicles, scene.number))
        _draw(Canvas(rgb), curves[frame], camera, trial)
        clip.add(rgb)
    data = clip.end()
    return data if len(data) <= MAX_BYTES else b""


def _draw(canvas: Canvas, curves: Curves, camera: Camera, trial: Trial) -> None:
    rpy = trial.rpy_rad
    for edge in curves.road_edges_m:
        canvas.fill(ribbon(edge, HALF_LINE_M, camera, rpy), RED, 0.75)
    for line, probability in zip(curves.lane_lines_m, curves.lane_line_probs, strict=True):
        opacity = max(float(probability), MIN_OPACITY)
        canvas.fill(ribbon(line, HALF_LINE_M, camera, rpy), BLUE, opacity)
    plan = curves.plan_m + np.array([0.0, 0.0, trial.height_m])
    canvas.fill(ribbon(plan, HALF_CAR_M, camera, rpy), GREEN, 0.45)


def _rgb(picture: Picture) -> NDArray[np.uint8]:
    import av

    frame: Any = av.VideoFrame.from_ndarray(np.concatenate(picture.nv12()), format="nv12")
    rgb: NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    return rgb


class _Clip:
    """An animated WebP in memory that loops forever."""

    def __init__(self, step: Fraction) -> None:
        import av

        self._av, self._file, self._count = av, io.BytesIO(), 0
        options = {"loop": "0"}
        self._container: Any = av.open(self._file, "w", format="webp", options=options)
        quality = {"quality": str(QUALITY), "preset": "photo"}
        self._stream: Any = self._container.add_stream(
            "libwebp_anim", rate=1 / step, options=quality
        )
        self._stream.width, self._stream.height = SIZE
        self._stream.pix_fmt = "yuv420p"

    def add(self, rgb: NDArray[np.uint8]) -> None:
        picture: Any = self._av.VideoFrame.from_ndarray(rgb, format="rgb24")
        picture.pts, self._count = self._count, self._count + 1
        self._container.mux(self._stream.encode(picture.reformat(format="yuv420p")))

    def end(self) -> bytes:
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._file.getvalue()


# --- The segments of a live drive: its messages and its camera pictures --------------------------

INDEX_SERVICES: Final = {ROAD_STREAM: "roadEncodeIdx", WIDE_STREAM: "wideRoadEncodeIdx"}
_STREAM_OF_STATE: Final = {service: stream for stream, service in STATE_SERVICES.items()}
_GONE: Final = "expected the rendering processes to finish, found one dead; is there enough memory?"


@dataclass(frozen=True, slots=True)
class Footage:
    """A finished drive: scenes by frame id, the event log, and the log times of start and end."""

    trial: Trial
    scenes: Mapping[int, Scene]
    events: Path
    span_ns: tuple[int, int]

    def drive_events(self) -> Iterator[tuple[str, Any, bytes]]:
        """Yield service, Event and bytes of each logged event that belongs to the drive."""
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
    """The frames that one camera delivered, by segment, and their encoded packets."""

    ids: dict[int, list[int]] = field(default_factory=dict)
    packets: dict[int, list[Packet]] = field(default_factory=dict)


def write_footage(footage: Footage, directory: Path, route: str, progress: Progress) -> list[Path]:
    """Write a drive as ``DIRECTORY/ROUTE--N``; return the segment directories in order.

    `directory` must exist; an existing route is replaced. `progress` is called with the number of
    rendered pictures, of which there are at most two per scene.

    Raises:
        UsageError: the directory cannot be written.
        ToolError: a rendering process died.
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
    """Return the frames that each camera announced, in segments of one minute of log time."""
    shots = {stream: _Shots() for stream in VIDEO_NAMES if stream in INDEX_SERVICES}
    for name, event, _ in footage.drive_events():
        stream = _STREAM_OF_STATE.get(name)
        if stream is not None:
            segment = (event.logMonoTime - footage.span_ns[0]) // SEGMENT_NS
            shots[stream].ids.setdefault(segment, []).append(content(event).frameId)
    return shots


class _SceneFile(NamedTuple):
    """One camera's video file of one segment."""

    path: Path
    trial: Trial
    camera: Camera
    scenes: tuple[Scene, ...]

    def render(self, count: Callable[[], None]) -> list[Packet]:
        """Render and encode the scenes, as `PictureFile` specifies."""
        return encode_file(self.path, self.camera, self._pictures(count))

    def _pictures(self, count: Callable[[], None]) -> Iterator[Picture]:
        painter = _painter(self.trial, self.camera)
        for scene in self.scenes:
            yield painter.paint(scene.body, scene.vehicles, scene.number)
            count()


def _paint(footage: Footage, shots: Mapping[str, _Shots], place: Path, progress: Progress) -> None:
    """Render and encode all pictures, with one process per camera."""
    cameras = device_cameras()
    assert cameras.wide is not None
    lenses = {ROAD_STREAM: cameras.road, WIDE_STREAM: cameras.wide}
    files = {
        (segment, stream): _SceneFile(
            place / f"{segment}-{stream}",
            footage.trial,
            lenses[stream],
            tuple(footage.scenes[frame] for frame in ids),
        )
        for stream, one in shots.items()
        for segment, ids in one.ids.items()
    }
    # Files are dealt in turn, so each process renders a single camera.
    dealt = [files[key] for key in sorted(files)]
    with open_workers(dealt, len(shots), progress, _GONE) as pool:
        for (segment, stream), file in files.items():
            shots[stream].packets[segment] = pool.packets(file)


def _write_logs(
    footage: Footage, shots: Mapping[str, _Shots], place: Path, route: str
) -> list[Path]:
    """Write the segments' logs with an encode index per picture; return their directories."""
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
        for name, event, data in footage.drive_events():
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
    """Yield encode id, segment, position in the segment and packet of each picture."""
    encode_id = 0
    for segment, packets in shots.packets.items():
        for position, packet in enumerate(packets):
            yield encode_id, segment, position, packet
            encode_id += 1
