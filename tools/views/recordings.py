"""Writes a drive with the model's answer as a file to watch: an overlay video, or for rerun.

The video is H.264 in MP4, with each frame of the drive at its time. The recording for the rerun
viewer (extra ``rerun``) has these entities: ``road`` is the 3D space (x forward, y left, z up, on
the road below the camera) with the plan, lane lines, road edges, leads, and the camera with its
pictures; ``numbers/*`` are plots. Its timelines are ``frame`` (frame id) and ``drive`` (seconds
since the first frame). av and rerun are imported lazily.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cereal.frames import Frame, FrameFormat
from modeld.vehicle.cameras import Camera
from runtime.files.user_file import whole_file
from tools.drives.drive import Drive
from tools.errors import UsageError
from tools.playback.pictures import main_camera
from tools.report.picture import encode_jpeg, jpeg_size
from tools.views.answer import Answer
from tools.views.foxglove import CAR_M, FLU_FROM_FRD, MIN_LEAD_PROBABILITY, calib_from_camera
from tools.views.overlay import AMBER, BLUE, GREEN, RED, FrameFacts, draw_overlay
from tools.views.pass_over import Written, main_stream, pass_over, planes, rgb_of

# Constant quality keeps text and thin lines sharp; a minute of 1928x1208 takes some 30 MB.
QUALITY = {"crf": "23", "preset": "veryfast"}
# Clock rate of timestamps, as in transport streams; usual frame periods are whole numbers of ticks.
TICKS_PER_S = 90_000


def write_overlay_video(
    drive: Drive, log: Path, written: Written, limit: int | None = None
) -> None:
    """Write the overlay video of a drive; the file is written atomically.

    In place of a missing frame, the previous one is shown longer.

    `drive`: an open drive. `log`: a daemon's log of it. `written`: has the path of the MP4 file and
    receives the counts. `limit`: stop after this many frames.

    Raises:
        ToolError: the drive or the log cannot be read, or the file cannot be written.
    """
    output = written.file
    camera = main_camera(drive.info)
    layout = drive.info.formats[main_stream(drive)]
    try:
        with (
            whole_file(output) as file,
            _Encoder(file, layout, drive.info.rate_hz, _pixel_aspect(camera)) as encoder,
            closing(pass_over(drive, log, written, limit)) as frames,
        ):
            for frame, facts in frames:
                rgb = rgb_of(frame)
                draw_overlay(rgb, camera, facts)
                encoder.add(rgb, facts.time_s)
    except OSError as error:
        raise UsageError(
            f"{output}: cannot be written ({error.strerror or error}); free some disk space or "
            "name another file"
        ) from error


def _pixel_aspect(camera: Camera | None) -> Fraction:
    return Fraction(camera.pixel_aspect if camera else 1.0).limit_denominator(1000)


class _Encoder:
    """An H.264 stream in an MP4 container."""

    def __init__(
        self, file: BinaryIO, layout: FrameFormat, rate_hz: float, aspect: Fraction
    ) -> None:
        import av

        rate = Fraction(rate_hz).limit_denominator(1001)
        self._av = av
        self._container: Any = av.open(file, "w", format="mp4")
        self._stream: Any = self._container.add_stream("libx264", rate=rate, options=QUALITY)
        self._stream.width, self._stream.height = layout.width, layout.height
        self._stream.pix_fmt = "yuv420p"
        self._stream.codec_context.sample_aspect_ratio = aspect
        self._stream.codec_context.time_base = self._tick = Fraction(1, TICKS_PER_S)
        self._next = 0

    def __enter__(self) -> _Encoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()

    def add(self, rgb: Any, time_s: float) -> None:
        """Append a picture to be shown at this time after the first."""
        picture: Any = self._av.VideoFrame.from_ndarray(rgb, format="rgb24")
        # Timestamps of a recording can repeat; those of a video cannot.
        picture.pts = max(self._next, round(time_s * TICKS_PER_S))
        picture.time_base, self._next = self._tick, picture.pts + 1
        self._container.mux(self._stream.encode(picture.reformat(format="yuv420p")))


COPY_BYTES = 1 << 20


def write_rerun(drive: Drive, log: Path, written: Written, limit: int | None = None) -> None:
    """Write a recording for the rerun viewer; the file is written atomically.

    `drive`: an open drive. `log`: a daemon's log of it. `written`: has the path of the .rrd file
    and receives the counts. `limit`: stop after this many frames.

    Raises:
        ModuleNotFoundError: the extra ``rerun`` is not installed.
        ToolError: the drive or the log cannot be read, or the file cannot be written.
    """
    output = written.file
    try:
        # rerun opens files itself, so it writes a draft, which is then copied.
        with whole_file(output) as file:
            directory = output.resolve().parent
            with tempfile.TemporaryDirectory(dir=directory, prefix=".rerun.") as beside:
                draft = Path(beside) / "draft.rrd"
                _record(drive, log, draft, written, limit)
                with draft.open("rb") as source:
                    while piece := source.read(COPY_BYTES):
                        file.write(piece)
    except (OSError, RuntimeError) as error:
        # rerun raises RuntimeError if its own thread could not write.
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{output}: cannot be written ({reason}); free some disk space or name another file"
        ) from error


def _record(drive: Drive, log: Path, draft: Path, written: Written, limit: int | None) -> None:
    import rerun

    # The drive's identity as recording id: the same input gives the same id.
    with (
        rerun.RecordingStream("modeld", recording_id=drive.info.identity) as stream,
        closing(pass_over(drive, log, written, limit)) as frames,
    ):
        stream.save(str(draft))
        recorder = _Recorder(rerun, stream, main_camera(drive.info))
        for frame, facts in frames:
            recorder.add(frame, facts)
        stream.flush()


class _Recorder:
    def __init__(self, rerun: Any, stream: Any, camera: Camera | None) -> None:
        self._rr = rerun
        self._stream = stream
        self._camera = camera
        # Forward-left-up: x forward, y left, z up.
        stream.log("road", rerun.ViewCoordinates.FLU, static=True)

    def add(self, frame: Frame, facts: FrameFacts) -> None:
        """Record a frame and its answer."""
        self._stream.set_time("frame", sequence=facts.frame_id)
        self._stream.set_time("drive", duration=facts.time_s)
        luma, chroma = planes(frame)
        picture = self._rr.EncodedImage(contents=encode_jpeg(luma, chroma), media_type="image/jpeg")
        self._stream.log("road/camera", picture)
        self._number("dropped_frames", float(facts.missing))
        if facts.execution_ms is not None:
            self._number("execution_ms", facts.execution_ms)
        if facts.answer is None:
            # Do not show the answer to an earlier frame.
            self._stream.log("road/model", self._rr.Clear(recursive=True))
        else:
            self._answer(facts.answer, (luma.shape[1], luma.shape[0]))

    def _answer(self, answer: Answer, size: tuple[int, int]) -> None:
        rr, height_m = self._rr, answer.height_m
        if self._camera is not None:
            scaled = jpeg_size(*size)
            scaling = np.diag([scaled[0] / size[0], scaled[1] / size[1], 1.0])
            pinhole = rr.Pinhole(
                image_from_camera=scaling @ self._camera.intrinsics,
                resolution=scaled,
                camera_xyz=rr.ViewCoordinates.RDF,
            )
            self._stream.log("road/camera", pinhole)
            placed = rr.Transform3D(
                translation=[0.0, 0.0, height_m], mat3x3=calib_from_camera(answer.rpy_rad)
            )
            self._stream.log("road/camera", placed)
        self._strips("plan", [answer.plan_on_road_m], [(*GREEN, 230)], 0.18, height_m)
        alphas = [int(255 * np.clip(np.nan_to_num(p), 0.12, 1)) for p in answer.lane_line_probs]
        lane_colors = [(*BLUE, alpha) for alpha in alphas]
        self._strips("lane_lines", answer.lane_lines_m, lane_colors, 0.06, height_m)
        edges = answer.road_edges_m
        self._strips("road_edges", edges, [(*RED, 200)] * len(edges), 0.06, height_m)
        self._leads(answer)
        self._number("speed_planned_mps", answer.plan_speed_mps)
        self._number("curvature_1pm", answer.curvature_1pm)
        self._number("acceleration_mps2", answer.acceleration_mps2)
        self._number("drop_percent", answer.drop_percent)
        if answer.car_speed_mps is not None:
            self._number("speed_car_mps", answer.car_speed_mps)

    def _strips(
        self, name: str, curves: Any, colors: Any, radius_m: float, height_m: float
    ) -> None:
        above = np.array([0.0, 0.0, height_m])
        strips = [curve[np.isfinite(curve).all(axis=1)] @ FLU_FROM_FRD + above for curve in curves]
        self._stream.log(
            f"road/model/{name}", self._rr.LineStrips3D(strips, colors=colors, radii=radius_m)
        )

    def _leads(self, answer: Answer) -> None:
        seen = [lead for lead in answer.leads if lead.probability >= MIN_LEAD_PROBABILITY]
        length, _, height = CAR_M
        boxes = self._rr.Boxes3D(
            centers=[[lead.x_m + length / 2, -lead.y_m, height / 2] for lead in seen],
            sizes=[CAR_M for _ in seen],
            colors=[(*AMBER, 220) for _ in seen],
            labels=[f"{lead.x_m:.0f} m" for lead in seen],
        )
        self._stream.log("road/model/leads", boxes)

    def _number(self, name: str, value: float) -> None:
        self._stream.log(f"numbers/{name}", self._rr.Scalars(value))
