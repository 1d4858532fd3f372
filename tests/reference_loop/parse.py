"""Raw vectors to distributions: means and standard deviations, mixtures, probabilities."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
SHAPES: dict[str, tuple[int, ...]] = {
    "plan": (33, 15),
    "planplus": (33, 15),
    "lane_lines": (4, 33, 2),
    "road_edges": (2, 33, 2),
    "lead": (3, 6, 4),
    "pose": (6,),
    "sim_pose": (6,),
    "road_transform": (6,),
    "wide_from_device_euler": (3,),
    "desired_curvature": (1,),
    "action": (2,),
}
MIXTURES = {"plan": (5, 1), "lead": (2, 3)}  # hypotheses, selections
CHANCES = ("lane_lines_prob", "lead_prob", "meta")
CATEGORIES = {"desire_state": (8,), "desire_pred": (4, 8)}


def parse(heads: Mapping[str, Values]) -> dict[str, Any]:
    """Every known head as float64, standard deviations under `<name>_stds`.

    `planplus` is added to the plan; heads that no message uses are left out.
    """
    parsed: dict[str, Any] = {}
    for name, raw in heads.items():
        values = np.asarray(raw, np.float64).reshape(-1)
        if name in CHANCES:
            parsed[name] = 1.0 / (1.0 + bounded_exp(-values))
        elif name in CATEGORIES:
            parsed[name] = softmax(values.reshape(CATEGORIES[name]))
        elif name in SHAPES:
            size = int(np.prod(SHAPES[name]))
            mean, std = halves(values) if values.size == 2 * size else mixture(name, values)
            parsed[name] = mean.reshape(SHAPES[name])
            parsed[f"{name}_stds"] = std.reshape(SHAPES[name])
    if "planplus" in parsed:
        parsed["plan"] = parsed["plan"] + parsed["planplus"]
    return parsed


def bounded_exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.exp(np.minimum(values, 11.0))
    return found


def softmax(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last axis."""
    grown = np.exp(values - values.max(axis=-1, keepdims=True))
    found: NDArray[np.float64] = grown / grown.sum(axis=-1, keepdims=True)
    return found


def halves(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means, then logarithms of standard deviations."""
    half = values.size // 2
    return values[:half], bounded_exp(values[half:])


def mixture(
    name: str, values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each selection the mean and deviation of the hypothesis with the greatest weight."""
    hypotheses, selections = MIXTURES[name]
    rows = values.reshape(hypotheses, -1)
    means, stds = [], []
    for selection in range(selections):
        logits = rows[:, rows.shape[1] - selections + selection]
        best = int(np.argmax(logits))
        mean, std = halves(rows[best, : rows.shape[1] - selections])
        means.append(mean)
        stds.append(std)
    return np.concatenate(means), np.concatenate(stds)
