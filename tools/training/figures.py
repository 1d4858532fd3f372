"""Errors of a model on moments whose truth is known, in metres, by class of scenery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.constants import T_IDXS, X_IDXS
from tools.training.heads import PLAN, VISION_HEADS, VISION_TARGETS, Singles, places_in_target
from tools.training.replay import Sample
from tools.training.situations import KINDS

_LINE_M = (10.0, 30.0)
_PATH_S = (1.0, 2.0, 4.0)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Figures:
    """Mean absolute errors over a set of moments; NaN where there was none to judge.

    Attributes:
        samples: how many moments.
        line_m: lateral, of the own lane's two lines that can be seen, at 10 and 30 m.
        path_m: lateral, of the plan, at 1, 2, 4 s.
        speed_mps: of the own speed.
        lead_m: of the distance to a lead within 60 m.
        lines_found: share of lines that were rightly said to be there or not.
        leads_found: the same of leads.
    """

    samples: int
    line_m: tuple[float, float]
    path_m: tuple[float, float, float]
    speed_mps: float
    lead_m: float
    lines_found: float
    leads_found: float

    def rows(self) -> dict[str, float]:
        """Return the figures by the names of a report."""
        names = [f"lane line at {at:g} m, m" for at in _LINE_M]
        names += [f"path at {at:g} s, m" for at in _PATH_S]
        names += ["speed, m/s", "lead distance, m", "lines found", "leads found"]
        values = (*self.line_m, *self.path_m, self.speed_mps, self.lead_m)
        return dict(zip(names, (*values, self.lines_found, self.leads_found), strict=True))

    def as_json(self) -> dict[str, float]:
        """Return the figures by names that gates can have."""
        lines = {f"line_{at:g}m_m": m for at, m in zip(_LINE_M, self.line_m, strict=True)}
        paths = {f"path_{at:g}s_m": m for at, m in zip(_PATH_S, self.path_m, strict=True)}
        return {
            "samples": self.samples,
            **lines,
            **paths,
            "speed_mps": self.speed_mps,
            "lead_m": self.lead_m,
            "lines_found": self.lines_found,
            "leads_found": self.leads_found,
        }


def judge(said: Singles, samples: Sequence[Sample]) -> dict[str, Figures]:
    """Return figures for each class of scenery, and under `all` for all of them."""
    kinds = np.array([sample.kind for sample in samples])
    truth = np.stack([sample.target for sample in samples])
    found = {"all": figures_of(said, truth)}
    for kind, name in enumerate(KINDS):
        if (kinds == kind).any():
            found[name] = figures_of(said[kinds == kind], truth[kinds == kind])
    return found


def figures_of(said: Singles, truth: Singles) -> Figures:
    """Return the figures of some samples, both (n, size)."""
    places = places_in_target(VISION_TARGETS)
    shapes = {head.name: head.shape for head in (*VISION_HEADS, PLAN)}

    def part(name: str) -> tuple[Floats, Floats]:
        a, b = (v[:, places[name]].astype(np.float64) for v in (said, truth))
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
    gap = np.abs(lead[0][:, 0, 0, 0] - lead[1][:, 0, 0, 0])
    near = lead[1][:, 0, 0, 0] < 60.0
    return Figures(
        len(truth),
        (line_errors[0], line_errors[1]),
        (path_errors[0], path_errors[1], path_errors[2]),
        _mean(np.abs(pose[0][:, 0] - pose[1][:, 0])),
        _mean(gap[near]),
        _mean((lanes_there[0][..., 1] > 0.5) == (lanes_there[1][..., 1] > 0.5)),
        _mean((prob[0] > 0.5) == (prob[1] > 0.5)),
    )


def _at(grid: Floats, at: float, values: Floats) -> Floats:
    """Return values (n, ..., 33), given on a grid, at one of its places between two."""
    after = int(np.searchsorted(grid, at))
    share = (at - grid[after - 1]) / (grid[after] - grid[after - 1])
    return np.asarray(values[..., after - 1] * (1.0 - share) + values[..., after] * share)


def _mean(values: NDArray[np.floating] | NDArray[np.bool_]) -> float:
    known = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    return float(known.mean()) if known.size else float("nan")
