"""Small films with a mark in one corner, and their containers changed as cameras write them."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

SIZE = (96, 64)
COUNT = 24
FPS = 20


def write_film(
    path: Path,
    count: int = COUNT,
    *,
    size: tuple[int, int] = SIZE,
    codec: tuple[str, str] = ("libx264", "yuv420p"),
    times: Sequence[int] | None = None,
    flags: dict[str, str] | None = None,
    set_up: Callable[[Any], None] | None = None,
    fps: int = FPS,
    sound_s: float = 0.0,
    cover: bool = False,
) -> Path:
    """Write a film; frame i has the brightness 40 + 6 i, and a blue mark at the top left.

    Args:
        path: the ending decides the container.
        count: of frames.
        size: of the picture.
        codec: its name and the pixel format.
        times: of the frames, in frame intervals.
        flags: options of the container.
        set_up: called with the stream before it is opened.
        fps: frames per second.
        sound_s: length of a sound track, which begins with the film.
        cover: whether the file has a cover picture of 32x32, too.
    """
    with av.open(f"file:{path}", "w", options=flags or {}) as container:
        stream: Any = container.add_stream(codec[0], rate=fps, options={"g": "12"})
        stream.width, stream.height, stream.pix_fmt = *size, codec[1]
        if set_up is not None:
            set_up(stream)
        sound: Any = container.add_stream("pcm_s16le", rate=8000) if sound_s else None
        front: Any = container.add_stream("mjpeg", rate=1) if cover else None
        if cover:
            front.width, front.height, front.pix_fmt = 32, 32, "yuvj420p"
            front.disposition = av.stream.Disposition.attached_pic
            picture = av.VideoFrame(32, 32, "yuvj420p")
            container.mux([*front.encode(picture), *front.encode(None)])
        for index in range(count):
            rgb = np.full((size[1], size[0], 3), 40 + 6 * index, np.uint8)
            rgb[: size[1] // 4, : size[0] // 4] = (30, 60, 220)
            picture = av.VideoFrame.from_ndarray(rgb).reformat(format=codec[1])
            picture.pts = index if times is None else times[index]
            picture.time_base = Fraction(1, fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
        for index in range(round(10 * sound_s)):
            silence = np.zeros((1, 800), np.int16)
            samples = av.AudioFrame.from_ndarray(silence, format="s16", layout="mono")
            samples.sample_rate, samples.pts = 8000, 800 * index
            container.mux(sound.encode(samples))
    return path


def patch(path: Path, box: bytes, offset: int, form: str, *values: int) -> Path:
    """Overwrite numbers in the first box of a kind, from an offset behind its name on."""
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, content.index(box) + 4 + offset, *values)
    path.write_bytes(content)
    return path


def turn(path: Path, *matrix: float) -> Path:
    """Give an MP4 film a matrix a, b, c, d: shown at x' = a x + c y, y' = b x + d y."""
    a, b, c, d = (round(65536 * value) for value in matrix)
    return patch(path, b"tkhd", 40, ">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)


def cover_first(path: Path) -> Path:
    """Move what an MP4 file says of itself, its cover too, before its tracks."""
    content = path.read_bytes()
    first, about = content.index(b"trak") - 4, content.index(b"udta") - 4
    end = about + int.from_bytes(content[about : about + 4], "big")
    moved = content[:first] + content[about:end] + content[first:about] + content[end:]
    path.write_bytes(moved)
    return path


def joined(path: Path, *parts: Path) -> Path:
    """Write files end to end."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def cut(path: Path, share: float) -> Path:
    """Cut off the end of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: round(len(content) * share)])
    return path
