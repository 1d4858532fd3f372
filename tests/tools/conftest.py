"""Artifacts and videos small enough to make for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.tools.regress.planted import Planted, jobs_here, make_planted, remove
from tests.tools.tiny_driving import write_tiny_driving

SIZE = (192, 128)
FRAMES = 9

MakeVideo = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A driving artifact for ``SIZE``."""
    return write_tiny_driving(tmp_path_factory.mktemp("tiny") / "tiny.pkl", SIZE)


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    """Write lossless test videos; frame i is brighter than frame i - 1."""

    def make(name: str = "drive.mkv", frames: int = FRAMES, fps: int = 20, **more: Any) -> Path:
        width, height = more.get("size", SIZE)
        path = tmp_path / name
        with av.open(str(path), "w") as container:
            stream: Any = container.add_stream(more.get("codec", "ffv1"), rate=fps)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for index in range(frames):
                picture = av.VideoFrame.from_ndarray(test_picture(index, width, height))
                picture.pts, picture.time_base = index, Fraction(1, fps)
                container.mux(stream.encode(picture))
            container.mux(stream.encode(None))
        return path

    def test_picture(index: int, width: int, height: int) -> Any:
        # Grain keeps the frames of lossy codecs from shrinking to nothing.
        grain = np.random.default_rng(index).integers(0, 20, (height, width), dtype=np.uint8)
        luma = np.full((height, width), 20 + 3 * index, np.uint8) + grain
        rgb = np.repeat(luma[:, :, None], 3, axis=2)
        rgb[:, :, 0] //= 2
        return rgb

    return make


@pytest.fixture(scope="session")
def planted_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    """A small program, a rendered drive and their reference, made by the clean code."""
    with pytest.MonkeyPatch.context() as patch:
        planted = make_planted(tmp_path_factory.mktemp("planted"), patch)
    yield planted
    remove(planted)


@pytest.fixture
def planted(planted_session: Planted, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted]:
    """The same, with jobs that run in this process."""
    with jobs_here(monkeypatch, planted_session.holder):
        yield planted_session
