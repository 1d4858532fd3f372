"""Interfaces of both layouts as artifacts hold them, and a program that answers what it is told."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime import TensorSpec
from tests.modeld.fake_program import ScriptedProgram

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


class MonitoringProgram(ScriptedProgram):
    """A driver monitoring program with the output that it gives next."""

    def __init__(self, metadata: Mapping[str, Any], capacity_bytes: int) -> None:
        super().__init__(metadata, capacity_bytes)
        self.output = np.zeros((1, metadata["interface"]["model"]["width"]), np.float32)

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        assert entry == "run"
        calib = TensorSpec("calib", (1, 3), np.dtype(np.float32))
        return (*self.picture_inputs("driver"), calib)

    def outputs(self) -> dict[str, NDArray[Any]]:
        return {"monitoring_outputs": self.output}
