"""Interfaces of driving models by hand, and a program that answers what it is told."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cereal.frames import nv12_format
from runtime.format.interfaces import ActionRule, HistoryRule, ImageRule, Interface, ModelPart
from runtime.run.entry import TensorSpec

# Small enough to fill many frames; their cameras come from the configuration.
SMALL, TICI = nv12_format(64, 32), nv12_format(1928, 1208)
VISION_SLICES = {
    "meta": (0, 55),
    "desire_pred": (55, 87),
    "pose": (87, 99),
    "wide_from_device_euler": (99, 105),
    "road_transform": (105, 117),
    "lane_lines": (117, 645),
    "lane_lines_prob": (645, 653),
    "road_edges": (653, 917),
    "lead": (917, 1061),
    "lead_prob": (1061, 1064),
    "hidden_state": (1064, 1576),
    "pad": (0, 1576),
}
POLICY_SLICES = {"plan": (0, 990), "desire_state": (990, 998), "pad": (998, 1000)}
SPLIT_ACTION = ActionRule(
    lateral="plan",
    longitudinal="plan",
    lateral_delay="liveDelay",
    lateral_delay_extra_s=0.0,
    frame_delay_s=0.05,
    lat_smooth_s=0.1,
    long_smooth_s=0.3,
    hold_below_mps=0.3,
    stop="plan",
    clip_speed=True,
)


def make_interface(**changes: Any) -> Interface:
    """The split interface of August 2025, or another one."""
    split = Interface(
        name="split-2025",
        reason="written by hand",
        models=(
            ModelPart("vision", "vision-test", 1576, VISION_SLICES, {}),
            ModelPart("policy", "policy-test", 1000, POLICY_SLICES, {}),
        ),
        image=ImageRule("bilinear", 4),
        desire=HistoryRule(25, 4, current=True, newest=True),
        features=HistoryRule(25, 4, current=True, newest=True),
        curvature=None,
        states=(),
        host_inputs=("traffic_convention",),
        drop_policy="skip",
        action=SPLIT_ACTION,
        meta=55,
        lane_change="A",
    )
    return replace(split, **changes)


def with_heads(interface: Interface, **widths: int) -> Interface:
    """The interface with one more model, "extra", that has heads of these widths."""
    slices, start = {}, 0
    for name, width in widths.items():
        slices[name] = (start, start + width)
        start += width
    return replace(interface, models=(*interface.models, ModelPart("extra", "", start, slices, {})))


class ScriptedProgram:
    """Stands in for a loaded artifact: same methods, scripted outputs, and inputs are checked.

    `calls` has entry and inputs of every run.
    """

    def __init__(self, metadata: Mapping[str, Any], capacity_bytes: int) -> None:
        self.metadata = metadata
        self.capacity_bytes = capacity_bytes
        self.entries: tuple[str, ...] = ("run",)
        self.calls: list[tuple[str, dict[str, NDArray[Any]]]] = []
        self.on_run: Callable[[], None] = lambda: None

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        raise NotImplementedError

    def outputs(self) -> dict[str, NDArray[Any]]:
        raise NotImplementedError

    def picture_inputs(self, camera: str) -> tuple[TensorSpec, ...]:
        """A frame of a camera, how it lies in memory, and the matrix of the view."""
        return (
            TensorSpec(f"{camera}_frame", (self.capacity_bytes,), np.dtype(np.uint8)),
            TensorSpec(f"{camera}_geometry", (4,), np.dtype(np.int32)),
            TensorSpec(f"{camera}_transform", (3, 3), np.dtype(np.float32)),
        )

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> dict[str, NDArray[Any]]:
        """Reject inputs that are not the declared ones, as real programs do."""
        assert entry in self.entries
        expected = {spec.name: spec for spec in self.entry_inputs(entry)}
        assert inputs.keys() == expected.keys()
        for name, array in inputs.items():
            assert array.dtype == expected[name].dtype, name
            assert array.flags.c_contiguous, name
            if name.endswith("_frame"):
                # May be shorter.
                assert array.ndim == 1
                assert 0 < array.size <= self.capacity_bytes
            else:
                assert array.shape == expected[name].shape, name
        self.calls.append((entry, {name: array.copy() for name, array in inputs.items()}))
        self.on_run()
        return {} if entry == "prepare" else self.outputs()


class FakeProgram(ScriptedProgram):
    """A driving program: `raw` has the next output vector of each role."""

    def __init__(
        self, interface: Interface | None = None, capacity_bytes: int = SMALL.size
    ) -> None:
        interface = interface or make_interface()
        super().__init__({"interface": interface.plain()}, capacity_bytes)
        if interface.drop_policy == "skip":
            self.entries = ("run", "prepare")
        self.raw = {part.role: np.zeros((1, part.width), np.float32) for part in interface.models}
        self.resets = 0
        self._host_inputs = interface.host_inputs

    @property
    def vision(self) -> NDArray[np.float32]:
        return self.raw["vision"]

    @property
    def policy(self) -> NDArray[np.float32]:
        return self.raw["policy"]

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        names = () if entry == "prepare" else self._host_inputs
        return (
            *self.picture_inputs("road"),
            *self.picture_inputs("wide"),
            TensorSpec("desire", (8,), np.dtype(np.float32)),
            *(TensorSpec(name, (1, 2), np.dtype(np.float32)) for name in names),
        )

    def outputs(self) -> dict[str, NDArray[Any]]:
        return {f"{role}_outputs": vector for role, vector in self.raw.items()}

    def reset(self) -> None:
        self.resets += 1
