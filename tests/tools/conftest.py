"""What tests of the tools share: commands in this process, and small artifacts and videos."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from tests.support.built import built
from tests.tools.tiny_driving import write_tiny_driving
from tests.tools.views.browser import Browser, browser, find_browser
from tools.cli import main

SIZE = (192, 128)
FRAMES = 9

MakeVideo = Callable[..., Path]


@dataclass(frozen=True)
class Said:
    """What a command wrote on stdout and stderr."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Modeld:
    """Runs commands of modeld in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, code: int, *words: object) -> Said:
        """Run a command that ends with this exit code; return what it wrote."""
        self._capsys.readouterr()
        found = main([str(word) for word in words])
        said = Said(*self._capsys.readouterr())
        assert found == code, said.err
        return said

    def refused(self, code: int, text: str, *words: object) -> Said:
        """Run a command that cannot work, and says so with this text in one line."""
        said = self(code, *words)
        assert text in said.err
        assert said.err.startswith("modeld: error: ")
        assert said.err.count("\n") == 1
        return said


@pytest.fixture
def modeld(capsys: pytest.CaptureFixture[str]) -> Modeld:
    return Modeld(capsys)


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A driving artifact for ``SIZE``, one for all tests."""
    return built("tiny", lambda to: write_tiny_driving(to / "tiny.pkl", SIZE)) / "tiny.pkl"


@pytest.fixture(scope="session")
def video() -> Path:
    """A video as `make_video` makes it, one for all tests."""
    return built("video", lambda to: write_video(to / "drive.mkv")) / "drive.mkv"


@pytest.fixture
def make_video(tmp_path: Path) -> MakeVideo:
    """Write lossless videos into the test's directory; frame i is brighter than frame i - 1."""

    def make(name: str = "drive.mkv", frames: int = FRAMES, fps: int = 20, **more: Any) -> Path:
        return write_video(tmp_path / name, frames, fps, **more)

    return make


def write_video(
    path: Path,
    frames: int = FRAMES,
    fps: int = 20,
    size: tuple[int, int] = SIZE,
    codec: str = "ffv1",
) -> Path:
    width, height = size
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for index in range(frames):
            # Grain keeps the frames of lossy codecs from shrinking to nothing.
            grain = np.random.default_rng(index).integers(0, 20, (height, width), dtype=np.uint8)
            rgb = np.repeat((np.uint8(20 + 3 * index) + grain)[:, :, None], 3, axis=2)
            rgb[:, :, 0] //= 2
            picture = av.VideoFrame.from_ndarray(rgb)
            picture.pts, picture.time_base = index, Fraction(1, fps)
            container.mux(stream.encode(picture))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    executable = find_browser()
    if executable is None:
        pytest.skip("needs Chromium: apt install chromium")
    with browser(executable) as found:
        yield found
