"""Programs for the closed loop: hand-written, and of random weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.compile import compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from tests.tools.tiny_driving import write_tiny_driving
from tools.closed_loop.cameras import device_cameras
from tools.example_models.policy import PolicyConfig, build_policy
from tools.example_models.vision import VisionConfig, build_vision
from tools.playback.model import LoadedModel, load_model


@pytest.fixture(scope="session")
def blind_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact that answers by the brightness of frames: a plan straight on, nearly."""
    road = device_cameras().road
    path = tmp_path_factory.mktemp("blind") / "blind.pkl"
    return write_tiny_driving(path, (road.width, road.height))


@pytest.fixture
def blind(blind_model: Path) -> Iterator[LoadedModel]:
    """The same, loaded."""
    with load_model(blind_model) as loaded:
        yield loaded


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of networks of the real kind with random weights, small ones."""
    directory = tmp_path_factory.mktemp("random")
    vision, _ = build_vision(
        0, VisionConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), expansion=2, head_width=32)
    )
    policy, _ = build_policy(0, PolicyConfig(layers=1, heads=2, feed_forward=64, head_width=32))
    files = []
    for name, proto in (("vision", vision), ("policy", policy)):
        files.append(directory / f"{name}.onnx")
        files[-1].write_bytes(proto.SerializeToString(deterministic=True))
    flags = replace(Flags.from_environment(), tuned=False)
    path = directory / "random.pkl"
    compile_driving(files, target=target_for("cpu"), flags=flags).write(path)
    return path
