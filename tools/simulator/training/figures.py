"""Errors of a model on samples with known ground truth, by scenery and by situation.

The input is a model's outputs for samples, in the layout of their targets. The result is mean
absolute errors of lines, path, speed, acceleration and leads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.constants import T_IDXS, X_IDXS
from tools.simulator.training.heads import (
    PLAN,
    VISION_HEADS,
    VISION_TARGETS,
    Singles,
    places_in_target,
)
from tools.simulator.training.samples.replay import Sample
from tools.simulator.training.samples.situations import CRAWLING_MPS, KINDS

_LINE_M = (10.0, 30.0)
_PATH_S = (1.0, 2.0, 4.0)
# Time at which the acceleration is judged, close to the time of the command.
_ACCELERATION_S = 1.0
# Leads within this distance are judged separately from those beyond.
_NEAR_M = 60.0
# Limits of two situations: crawling close behind a standing car, and braking for a curve.
_STANDING_MPS, _BEHIND_M = 0.3, 20.0
_CURVE_MPS2 = -0.5
SITUATIONS = (
    f"`queue`: slower than {CRAWLING_MPS:g} m/s, less than {_BEHIND_M:g} m behind a car that "
    f"stands; `curve`: curves ahead ask for at least {-_CURVE_MPS2:g} m/s2 of braking."
)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean absolute errors over a set of samples; NaN if there was nothing to judge.

    Attributes:
        samples: number of samples.
        line_m: lateral error of the visible lines of the car's lane, at 10 and 30 m.
        path_m: lateral error of the plan, at 1, 2 and 4 s.
        speed_mps: error of the car's speed.
        acceleration_mps2: error of the plan's acceleration at 1 s.
        lead_m, lead_mps: errors of distance and speed of leads within 60 m.
        far_lead_m: error of the distance of leads beyond 60 m.
        lines_found, leads_found: share of lines and leads whose presence is detected correctly.
    """

    samples: int
    line_m: tuple[float, float]
    path_m: tuple[float, float, float]
    speed_mps: float
    acceleration_mps2: float
    lead_m: float
    lead_mps: float
    far_lead_m: float
    lines_found: float
    leads_found: float

    def rows(self) -> dict[str, float]:
        """Return the errors by the names used in reports."""
        names = [f"lane line at {at:g} m, m" for at in _LINE_M]
        names += [f"path at {at:g} s, m" for at in _PATH_S]
        names += ["speed, m/s", "acceleration, m/s2", "lead distance, m", "lead speed, m/s"]
        names += ["distance of a lead beyond 60 m, m", "lines found", "leads found"]
        errors = (*self.line_m, *self.path_m, self.speed_mps, self.acceleration_mps2)
        leads = (self.lead_m, self.lead_mps, self.far_lead_m)
        values = (*errors, *leads, self.lines_found, self.leads_found)
        return dict(zip(names, values, strict=True))

    def as_json(self) -> dict[str, float]:
        """Return the errors by the names used in gates."""
        lines = {f"line_{at:g}m_m": m for at, m in zip(_LINE_M, self.line_m, strict=True)}
        paths = {f"path_{at:g}s_m": m for at, m in zip(_PATH_S, self.path_m, strict=True)}
        return {
            "samples": self.samples,
            **lines,
            **paths,
            "speed_mps": self.speed_mps,
            "acceleration_mps2": self.acceleration_mps2,
            "lead_m": self.lead_m,
            "lead_mps": self.lead_mps,
            "far_lead_m": self.far_lead_m,
            "lines_found": self.lines_found,
            "leads_found": self.leads_found,
        }


def judge(outputs: Singles, samples: Sequence[Sample]) -> dict[str, Figures]:
    """Return the errors for `all` samples, for each class of scenery, and for each situation."""
    kinds = np.array([sample.kind for sample in samples])
    truth = np.stack([sample.target for sample in samples])
    found = {"all": figures_of(outputs, truth)}
    for kind, name in enumerate(KINDS):
        if (kinds == kind).any():
            found[name] = figures_of(outputs[kinds == kind], truth[kinds == kind])
    for name, chosen in _situations(truth).items():
        if chosen.any():
            found[name] = figures_of(outputs[chosen], truth[chosen])
    return found


def _situations(truth: Singles) -> dict[str, NDArray[np.bool_]]:
    """Return a mask of the samples in each situation, from their targets (n, size)."""
    places = places_in_target(VISION_TARGETS)
    speed = truth[:, places["pose"]][:, 0]
    lead = truth[:, places["lead"]]
    is_behind = (truth[:, places["lead_prob"]][:, 0] > 0.5) & (lead[:, 0] < _BEHIND_M)
    is_queue = is_behind & (speed < CRAWLING_MPS) & (lead[:, 2] < _STANDING_MPS)
    is_curve = truth[:, places["for_curves"]][:, 0] < _CURVE_MPS2
    return {"queue": is_queue, "curve": is_curve}


def figures_of(outputs: Singles, truth: Singles) -> Figures:
    """Return the errors of outputs against targets, both (n, size)."""
    places = places_in_target(VISION_TARGETS)
    shapes = {head.name: head.shape for head in (*VISION_HEADS, PLAN)}

    def part(name: str) -> tuple[Floats, Floats]:
        a, b = (v[:, places[name]].astype(np.float64) for v in (outputs, truth))
        return a.reshape(-1, *shapes[name]), b.reshape(-1, *shapes[name])

    lines, lanes_there = part("lane_lines"), part("lane_lines_prob")
    seen = lanes_there[1][:, 1:3, 1] > 0.5
    line_errors = []
    for at in _LINE_M:
        a, b = (_at(X_IDXS, at, v[:, 1:3, :, 0]) for v in lines)
        line_errors.append(_mean(np.abs(a - b)[seen]))
    plan = part("plan")
    path_errors = [
        _mean(np.abs(np.subtract(*(_at(T_IDXS, t, v[..., 1]) for v in plan)))) for t in _PATH_S
    ]
    pose, lead, prob = part("pose"), part("lead"), part("lead_prob")
    ahead = np.abs(lead[0] - lead[1])[:, 0, 0]
    near, far = lead[1][:, 0, 0, 0] < _NEAR_M, lead[1][:, 0, 0, 0] >= _NEAR_M
    pushed = np.abs(np.subtract(*(_at(T_IDXS, _ACCELERATION_S, v[..., 6]) for v in plan)))
    return Figures(
        len(truth),
        (line_errors[0], line_errors[1]),
        (path_errors[0], path_errors[1], path_errors[2]),
        _mean(np.abs(pose[0][:, 0] - pose[1][:, 0])),
        _mean(pushed),
        _mean(ahead[near, 0]),
        _mean(ahead[near, 2]),
        _mean(ahead[far, 0]),
        _mean((lanes_there[0][..., 1] > 0.5) == (lanes_there[1][..., 1] > 0.5)),
        _mean((prob[0] > 0.5) == (prob[1] > 0.5)),
    )


def _at(grid: Floats, at: float, values: Floats) -> Floats:
    """Return values (n, ..., 33) on a grid, interpolated at one position."""
    after = int(np.searchsorted(grid, at))
    share = (at - grid[after - 1]) / (grid[after] - grid[after - 1])
    return np.asarray(values[..., after - 1] * (1.0 - share) + values[..., after] * share)


def _mean(values: NDArray[np.floating] | NDArray[np.bool_]) -> float:
    known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if known.size else float("nan")
