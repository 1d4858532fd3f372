"""Interfaces of both layouts as artifacts hold them, and a program that answers what it is told."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import TensorSpec

# Per seat of the vector of 2025: (offset, width) of each head; the right seat begins 41 later.
PLACES_2025 = {
    "face_descs": (0, 12),
    "face_prob": (12, 1),
    "left_eye_prob": (21, 1),
    "right_eye_prob": (30, 1),
    "left_blink_prob": (31, 1),
    "right_blink_prob": (32, 1),
    "sunglasses_prob": (33, 1),
    "occluded_prob": (34, 1),
    "ready_prob": (35, 4),
    "not_ready_prob": (39, 2),
}
HEADS_2026 = (*list(PLACES_2025)[:7], "using_phone_prob", "sleep_prob")


def slices_2025() -> dict[str, list[int]]:
    found = {"poor_vision": [82, 83], "wheel_on_right": [83, 84], "features": [84, 596]}
    for seat, base in (("lhd", 0), ("rhd", 41)):
        for head, (offset, width) in PLACES_2025.items():
            found[f"{head}_{seat}"] = [base + offset, base + offset + width]
    return found


def slices_2026() -> dict[str, list[int]]:
    found, start = {"wheel_on_right": [0, 1]}, 1
    for seat in ("rhd", "lhd"):
        for head in HEADS_2026:
            found[f"{head}_{seat}"] = [start, start + PLACES_2025.get(head, (0, 1))[1]]
            start = found[f"{head}_{seat}"][1]
    return found


def metadata(
    slices: Mapping[str, list[int]], width: int, stds: str, mode: str = "bilinear"
) -> dict[str, Any]:
    inputs = {"input_img": [[1, 1382400], "uint8"], "calib": [[1, 3], "float32"]}
    model = {"role": "monitoring", "checkpoint": "test", "width": width, "inputs": inputs}
    return {
        "interface": {
            "name": "dmonitoring-test",
            "reason": "a test says so",
            "model": {**model, "slices": dict(slices)},
            "image_mode": mode,
            "stds": stds,
        }
    }


METADATA_2025 = metadata(slices_2025(), 596, "exp")
METADATA_2026 = metadata(slices_2026(), 41, "clipped", "nearest")


class ScriptedProgram:
    """Stands in for a loaded driver monitoring artifact: same methods, scripted output."""

    def __init__(self, metadata: Mapping[str, Any], capacity: int) -> None:
        self.metadata = metadata
        self.capacity = capacity
        self.output = np.zeros((1, metadata["interface"]["model"]["width"]), np.float32)
        self.calls: list[dict[str, NDArray[Any]]] = []
        self.on_run: Callable[[], None] = lambda: None

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        assert entry == "run"
        return (
            TensorSpec("driver_frame", (self.capacity,), np.dtype(np.uint8)),
            TensorSpec("driver_geometry", (4,), np.dtype(np.int32)),
            TensorSpec("driver_transform", (3, 3), np.dtype(np.float32)),
            TensorSpec("calib", (1, 3), np.dtype(np.float32)),
        )

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> dict[str, NDArray[Any]]:
        specs = {spec.name: spec for spec in self.entry_inputs(entry)}
        assert inputs.keys() == specs.keys()
        for name, array in inputs.items():
            assert array.dtype == specs[name].dtype
            if name == "driver_frame":
                assert array.ndim == 1
                assert 0 < array.size <= self.capacity
            else:
                assert array.shape == specs[name].shape
        self.calls.append({name: array.copy() for name, array in inputs.items()})
        self.on_run()
        return {"monitoring_outputs": self.output}
