"""The overlay as a video: H.264 in MP4, each frame of the drive at its time. Imports av lazily."""

from __future__ import annotations

from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

from cereal.frames import FrameFormat
from modeld.vehicle.cameras import Camera
from runtime.files.user_file import whole_file
from tools.drives.drive import Drive
from tools.errors import UsageError
from tools.playback.pictures import main_camera
from tools.views.frames import main_stream, rgb_of
from tools.views.overlay import draw_overlay
from tools.views.pass_over import Written, pass_over

# Constant quality: text and thin lines stay sharp, a minute of 1928x1208 takes some 30 MB.
QUALITY = {"crf": "23", "preset": "veryfast"}
# Times are counted in these, as in transport streams: usual rates are whole numbers of them.
TICKS_PER_S = 90_000


def write_overlay_video(
    drive: Drive, log: Path, written: Written, limit: int | None = None
) -> None:
    """Write the overlay video of a drive; the file appears in full or not at all.

    A frame that is missing in the drive is shown as its predecessor for that long.

    `drive`: an open drive. `log`: what a daemon said of it. `written`: names the MP4 file, and gets
    the counts. `limit`: stop after this many frames.

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
        """Append a picture that is shown this long after the first."""
        picture: Any = self._av.VideoFrame.from_ndarray(rgb, format="rgb24")
        # A recording's times may stand still; those of a video may not.
        picture.pts = max(self._next, round(time_s * TICKS_PER_S))
        picture.time_base, self._next = self._tick, picture.pts + 1
        self._container.mux(self._stream.encode(picture.reformat(format="yuv420p")))
