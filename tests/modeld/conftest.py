"""A program that answers what it is told, and frames, for the tests of the daemon."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cereal.frames import Frame, FrameFormat, nv12_format

VISION_SLICES: dict[str, list[int | None]] = {
    "meta": [0, 55],
    "desire_pred": [55, 87],
    "pose": [87, 99],
    "wide_from_device_euler": [99, 105],
    "road_transform": [105, 117],
    "lane_lines": [117, 645],
    "lane_lines_prob": [645, 653],
    "road_edges": [653, 917],
    "lead": [917, 1061],
    "lead_prob": [1061, 1064],
    "hidden_state": [1064, 1576],
    "pad": [0, None],
}
POLICY_SLICES: dict[str, list[int | None]] = {
    "plan": [0, 990],
    "desire_state": [990, 998],
    "pad": [-2, None],
}


def make_metadata(*formats: FrameFormat) -> dict[str, Any]:
    """Metadata of a driving artifact of the 2025 split interface."""
    return {
        "interface": "split-2025",
        "run_hz": 20,
        "context_hz": 5,
        "image_mode": "bilinear-fixed",
        "drop_policy": "skip",
        "cameras": [
            {
                name: getattr(form, name)
                for name in ("width", "height", "stride", "uv_offset", "payload_bytes")
            }
            for form in formats
        ],
        "models": {
            "vision": {
                "checkpoint": "vision-test",
                "output_width": 1576,
                "output_slices": dict(VISION_SLICES),
            },
            "policy": {
                "checkpoint": "policy-test",
                "output_width": 1000,
                "output_slices": dict(POLICY_SLICES),
            },
        },
    }


class FakeProgram:
    """Stands in for a loaded driving artifact: same methods, scripted outputs.

    Attributes:
        calls: Entry and a copy of the inputs of every run.
        vision: (1, 1576) float32, the next vision output.
        policy: (1, 1000) float32, the next policy output.
        resets: Number of resets so far.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata
        self.entries = tuple(
            f"{kind}:{camera['width']}x{camera['height']}"
            for camera in metadata["cameras"]
            for kind in ("run", "prepare")
        )
        self.vision = np.zeros((1, 1576), np.float32)
        self.policy = np.zeros((1, 1000), np.float32)
        self.calls: list[tuple[str, dict[str, NDArray[Any]]]] = []
        self.resets = 0
        self.on_run: Callable[[], None] = lambda: None

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> dict[str, NDArray[Any]]:
        self._check(inputs, entry)
        assert entry is not None
        self.calls.append((entry, {name: array.copy() for name, array in inputs.items()}))
        self.on_run()
        if entry.startswith("prepare"):
            return {}
        return {"vision_outputs": self.vision, "policy_outputs": self.policy}

    def reset(self) -> None:
        self.resets += 1

    def _check(self, inputs: Mapping[str, NDArray[Any]], entry: str | None) -> None:
        """The real program rejects inputs that are not exactly the declared ones."""
        assert entry in self.entries
        size = entry.split(":")[1]
        payload = next(
            camera["payload_bytes"]
            for camera in self.metadata["cameras"]
            if f"{camera['width']}x{camera['height']}" == size
        )
        expected: dict[str, tuple[type, tuple[int, ...]]] = {
            "road_frame": (np.uint8, (payload,)),
            "wide_frame": (np.uint8, (payload,)),
            "road_transform": (np.float32, (3, 3)),
            "wide_transform": (np.float32, (3, 3)),
            "desire": (np.float32, (8,)),
        }
        if entry.startswith("run"):
            expected["traffic_convention"] = (np.float32, (1, 2))
        assert {name: (array.dtype.type, array.shape) for name, array in inputs.items()} == expected


def make_frame(form: FrameFormat, frame_id: int, sof_ns: int | None = None) -> Frame:
    """A frame filled with its id, 50 ms after the previous one unless told otherwise."""
    start_ns = frame_id * 50_000_000 if sof_ns is None else sof_ns
    data = np.full(form.size, frame_id % 256, np.uint8)
    return Frame(data, form, frame_id, start_ns, start_ns + 15_000_000)


@pytest.fixture
def tici_format() -> FrameFormat:
    return nv12_format(1928, 1208)


@pytest.fixture
def small_format() -> FrameFormat:
    """Small enough to fill many frames; its cameras come from the configuration."""
    return nv12_format(64, 32)


@pytest.fixture
def small_metadata(small_format: FrameFormat) -> dict[str, Any]:
    return make_metadata(small_format)


@pytest.fixture
def small_program(small_metadata: dict[str, Any]) -> FakeProgram:
    return FakeProgram(small_metadata)


@pytest.fixture
def frame_of(small_format: FrameFormat) -> Callable[..., Frame]:
    """Makes a frame of the small format from an id and, optionally, a start-of-frame stamp."""

    def make(frame_id: int, sof_ns: int | None = None) -> Frame:
        return make_frame(small_format, frame_id, sof_ns)

    return make


@pytest.fixture
def tici_program(tici_format: FrameFormat) -> FakeProgram:
    return FakeProgram(make_metadata(tici_format))
