"""The output layouts of the example models: names, widths and slices of the 2025 split interface.

Widths are those of openpilot's models of 2025, for interoperability. Called by the model builders;
imports only the standard library and numpy.
"""

import base64
import pickle
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

HIDDEN_WIDTH = 512
PLAN_STEPS = 33
PLAN_COLUMNS = 15

# (name, width) in output order; the slices follow by summation.
VISION_OUTPUTS: tuple[tuple[str, int], ...] = (
    ("meta", 55),
    ("desire_pred", 32),
    ("pose", 12),
    ("wide_from_device_euler", 6),
    ("road_transform", 12),
    ("lane_lines", 528),
    ("lane_lines_prob", 8),
    ("road_edges", 264),
    ("lead", 144),
    ("lead_prob", 3),
    ("hidden_state", HIDDEN_WIDTH),
)
POLICY_OUTPUTS: tuple[tuple[str, int], ...] = (("plan", 990), ("desire_state", 8))
POLICY_PAD = 2


def t_idxs() -> NDArray[np.float64]:
    """Return the 33 plan times in seconds: 10 (i/32)^2."""
    return 10.0 * (np.arange(PLAN_STEPS) / (PLAN_STEPS - 1)) ** 2


def x_idxs() -> NDArray[np.float64]:
    """Return the 33 distances ahead of the lane lines in metres: 192 (i/32)^2."""
    return 192.0 * (np.arange(PLAN_STEPS) / (PLAN_STEPS - 1)) ** 2


def contiguous_slices(outputs: tuple[tuple[str, int], ...]) -> dict[str, slice]:
    """Return name -> slice of the (1, N) output for consecutive blocks of the given widths."""
    slices: dict[str, slice] = {}
    start = 0
    for name, width in outputs:
        slices[name] = slice(start, start + width)
        start += width
    return slices


def vision_slices() -> dict[str, slice]:
    """Return the vision slices; `pad` aliases the whole output, as real exports have it."""
    return contiguous_slices(VISION_OUTPUTS) | {"pad": slice(0, None)}


def policy_slices() -> dict[str, slice]:
    """Return the policy slices; `pad` counts from the end, as real exports have it."""
    return contiguous_slices(POLICY_OUTPUTS) | {"pad": slice(-POLICY_PAD, None)}


def model_metadata(checkpoint: str, slices: Mapping[str, slice]) -> dict[str, str]:
    """Return ONNX metadata_props as openpilot's exporter writes them.

    `checkpoint` is free text that identifies the training run, `slices` are those of the last axis
    of `outputs`.
    """
    # Protocol 4 is fixed so that the bytes do not follow Python's default.
    pickled = pickle.dumps(dict(slices), protocol=4)
    return {
        "model_checkpoint": checkpoint,
        "output_slices": base64.b64encode(pickled).decode("ascii"),
    }
