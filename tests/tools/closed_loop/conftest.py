"""Programs for the closed loop, hand-written and of random weights."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler.compile import compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from tests.support.built import built
from tests.tools.tiny_driving import write_tiny_driving
from tools.example_models.driving import PolicyConfig, VisionConfig, build_policy, build_vision
from tools.playback.model import LoadedModel, load_model
from tools.simulator.closed_loop.device import device_cameras
from tools.simulator.world.car import Body
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.view import Mount
from tools.simulator.world.world import World


@pytest.fixture(scope="session")
def blind_model() -> Path:
    """An artifact that answers by the brightness of frames: a plan straight on, nearly."""
    road = device_cameras().road

    def write(to: Path) -> None:
        write_tiny_driving(to / "blind.pkl", (road.width, road.height))

    return built("blind", write) / "blind.pkl"


@pytest.fixture
def blind(blind_model: Path) -> Iterator[LoadedModel]:
    """The same, loaded."""
    with load_model(blind_model) as loaded:
        yield loaded


def compile_for_any_cpu(files: list[Path], to: Path) -> None:
    flags = replace(Flags.from_environment(), tuned=False)
    compile_driving(files, target=target_for("cpu"), flags=flags).write(to / "driving.pkl")


@pytest.fixture(scope="session")
def random_model() -> Path:
    """An artifact of networks of the real kind with random weights, small ones."""
    seen = VisionConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), expansion=2, head_width=32)
    policy = PolicyConfig(layers=1, heads=2, feed_forward=64, head_width=32)

    def write(to: Path) -> None:
        files = []
        models = (("vision", build_vision(0, seen)), ("policy", build_policy(0, policy)))
        for name, (proto, _) in models:
            files.append(to / f"{name}.onnx")
            files[-1].write_bytes(proto.SerializeToString(deterministic=True))
        compile_for_any_cpu(files, to)

    return built("random-driving", write) / "driving.pkl"


class Grey:
    """Paints for those who do not look at pictures; no two frames are equal."""

    def __init__(self, _world: World, mount: Mount) -> None:
        size = np.array([mount.lens.height, mount.lens.width])
        self._planes = [np.full(size // by, 128, np.uint8) for by in (1, 2, 2)]

    def paint(self, _body: Body, _vehicles: object, number: int) -> Picture:
        self._planes[0][:] = 64 + number % 128
        return Picture(*self._planes)


@pytest.fixture
def grey(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is painted: most of what a drive costs."""
    monkeypatch.setattr("tools.simulator.closed_loop.device.Painter", Grey)
