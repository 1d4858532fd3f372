"""Measures the errors of a model's lane lines against hand-labelled lines of real footage.

Errors are in pixels and in metres. For pixels, a model's curve is projected into the picture with
the camera of the labels and compared with the labelled column in each row. For metres, the label is
projected onto a level road and compared with the curve's y at that distance. Positive is right of
the label. The lines of the car's lane are ``modelV2.laneLines`` 1 and 2.

`subject_of` judges a model and returns its metrics. `perfect_fit` and `blind_lane` return two
references: the best possible lines, and those of a blind model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.constants import LANE_LINE_COUNT, ROAD_EDGE_COUNT, X_IDXS
from tools.behaviour.labels import LabelledFrame, Labels, where_crossed
from tools.messages.drive_log import Curves

# The compared curves: both lane lines, the middle between them, and the planned path, which is
# compared with the labelled middle.
NAMES = ("left", "right", "centre", "path")
# Indices of the car's lane lines among the model's four lines, from left to right.
LEFT_LINE, RIGHT_LINE = 1, 2
# Above this probability the model counts a line as seen.
PROBABLE = 0.5
# Distances of the metrics: just ahead of the car, and one and two seconds ahead at 15 m/s.
DISTANCES_M = (8.0, 15.0, 30.0)
ALL = "all"
# Distance at which `following` compares the lane's movement: far enough ahead to steer by.
FOLLOWING_M = 15.0
MIN_FOLLOWED = 3
# Summaries: name -> names of the curves, and whether only points on visible paint count.
SUMMARIES: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "both lines": (("left", "right"), False),
    "left": (("left",), False),
    "right": (("right",), False),
    "seen paint": (("left", "right"), True),
    "lane centre": (("centre",), False),
    "path": (("path",), False),
}

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Errors:
    """Model minus label, by names of `NAMES`; NaN if either is missing."""

    pixels: Mapping[str, Floats]  # (frames, rows) each: difference of columns
    metres: Mapping[str, Floats]  # (frames, rows) each: difference of y on the road
    labelled: Mapping[str, NDArray[np.bool_]]  # (frames, rows) each: whether there is a label
    # (frames, 2) probabilities of the left and right line; NaN for frames without model output.
    probabilities: Floats

    @property
    def answered(self) -> int:
        """The number of labelled frames with an output of the model."""
        return int(np.isfinite(self.probabilities).all(axis=1).sum())

    @property
    def coverage(self) -> tuple[float, float]:
        """The shares of labelled frames in which the left and the right line are probable."""
        left, right = (self.probabilities > PROBABLE).mean(axis=0).tolist()
        return left, right


@dataclass(frozen=True, slots=True)
class Figures:
    """Statistics of absolute errors, in metres and pixels; None if nothing was compared."""

    what: str  # key of `SUMMARIES`
    at: str  # distance, such as "8 m", or "all"
    points: int  # number of labelled points
    missing: int  # number of labelled points without the model's curve
    mean_m: float | None
    median_m: float | None
    p90_m: float | None
    bias_m: float | None  # mean of the signed errors, positive to the right
    mean_px: float | None
    median_px: float | None
    p90_px: float | None


# --- Comparing --------------------------------------------------------------------------------


def judge(labels: Labels, curves: Mapping[int, Curves]) -> Errors:
    """Compare a model's outputs with the labels of a clip.

    `curves` are the model's outputs by the clip's frame number. A missing frame counts as missing
    curves.
    """
    shape = (len(labels.frames), labels.rows_px.size)
    pixels = {name: np.full(shape, np.nan) for name in NAMES}
    metres = {name: np.full(shape, np.nan) for name in NAMES}
    labelled = {name: np.zeros(shape, np.bool_) for name in NAMES}
    probabilities = np.full((shape[0], 2), np.nan)
    for at, frame in enumerate(labels.frames):
        columns = _columns(frame)
        for name in NAMES:
            labelled[name][at] = np.isfinite(columns[name])
        if frame.number not in curves:
            continue
        found = curves[frame.number]
        probabilities[at] = found.lane_line_probs[[LEFT_LINE, RIGHT_LINE]]
        for name, curve in _curves(found, labels).items():
            pixels[name][at], metres[name][at] = _errors(curve, columns[name], labels)
    return Errors(pixels, metres, labelled, probabilities)


def _columns(frame: LabelledFrame) -> dict[str, Floats]:
    left, right = frame.columns_px
    # All points of a row have the same distance, so the middle column is the middle of the lane.
    middle = (left + right) / 2
    return {"left": left, "right": right, "centre": middle, "path": middle}


def _curves(found: Curves, labels: Labels) -> dict[str, Floats]:
    lines = found.lane_lines_m.astype(np.float64)
    left, right = lines[LEFT_LINE], lines[RIGHT_LINE]
    # The plan starts at the camera. Move it down to the road.
    below = np.array([0.0, 0.0, labels.video_camera.height_m])
    path = found.plan_m.astype(np.float64) + below
    return {"left": left, "right": right, "centre": (left + right) / 2, "path": path}


def _errors(curve_m: Floats, columns_px: Floats, labels: Labels) -> tuple[Floats, Floats]:
    pixels = labels.plane.columns(curve_m, labels.rows_px) - columns_px
    truth = labels.plane.on_road(np.stack([columns_px, labels.rows_px], axis=-1))
    metres = where_crossed(curve_m[:, 0], curve_m[:, 1], truth[:, 0]) - truth[:, 1]
    return pixels, metres


# --- Metrics ----------------------------------------------------------------------------------


def summarize_errors(labels: Labels, errors: Errors) -> list[Figures]:
    """Return the metrics of every summary, at each distance and over all rows."""
    left, right = np.stack([frame.is_paint for frame in labels.frames], axis=1)
    paint = {"left": left, "right": right}  # (frames, rows) each
    rows = {f"{at:g} m": [nearest_row(labels, at)] for at in DISTANCES_M}
    places: dict[str, Any] = {**rows, ALL: slice(None)}
    found = []
    for what, (names, only_paint) in SUMMARIES.items():
        masks = {
            n: errors.labelled[n] & paint[n] if only_paint else errors.labelled[n] for n in names
        }
        for at, chosen in places.items():
            metres, pixels = (
                np.concatenate([table[n][:, chosen][masks[n][:, chosen]] for n in names])
                for table in (errors.metres, errors.pixels)
            )
            found.append(_figures(what, at, metres, pixels))
    return found


def following(labels: Labels, errors: Errors) -> float | None:
    """Return how well the model's lane follows the lane's movement from frame to frame.

    The value is 1 - variance of the error / variance of the label, for the lane's centre 15 m
    ahead. It is 1 for a perfect model, 0 for constant output, and negative if the model's lane
    moves independently of the labels. It is None if fewer than three frames have both, or if the
    labels do not move.
    """
    row = nearest_row(labels, FOLLOWING_M)
    columns = np.array([_columns(frame)["centre"][row] for frame in labels.frames])
    pixels = np.stack([columns, np.full(columns.size, labels.rows_px[row])], axis=-1)
    truth = labels.plane.on_road(pixels)[:, 1]
    error = errors.metres["centre"][:, row]
    known = np.isfinite(error)
    if known.sum() < MIN_FOLLOWED or np.ptp(truth[known]) == 0.0:
        return None
    return round(float(1.0 - np.var(error[known]) / np.var(truth[known])), 4)


def nearest_row(labels: Labels, ahead_m: float) -> int:
    """Return the index of the labelled row nearest to a distance."""
    return int(np.argmin(np.abs(labels.ahead_m - ahead_m)))


def _figures(what: str, at: str, metres: Floats, pixels: Floats) -> Figures:
    missing = ~(np.isfinite(metres) & np.isfinite(pixels))
    m, px = metres[np.isfinite(metres)], pixels[np.isfinite(pixels)]
    return Figures(
        what,
        at,
        points=metres.size,
        missing=int(missing.sum()),
        mean_m=_of(np.mean, np.abs(m)),
        median_m=_of(np.median, np.abs(m)),
        p90_m=_of(_p90, np.abs(m)),
        bias_m=_of(np.mean, m),
        mean_px=_of(np.mean, np.abs(px)),
        median_px=_of(np.median, np.abs(px)),
        p90_px=_of(_p90, np.abs(px)),
    )


def _of(statistic: Callable[[Floats], Any], values: Floats) -> float | None:
    return round(float(statistic(values)), 4) if values.size else None


def _p90(values: Floats) -> float:
    return float(np.percentile(values, 90))


@dataclass(frozen=True, slots=True)
class Subject:
    """A judged model or reference."""

    name: str
    errors: Errors  # errors of each labelled point
    figures: Sequence[Figures]  # metrics of every summary
    following: float | None  # result of the function `following`
    curves: Mapping[int, Curves]  # outputs by the clip's frame number

    def as_json(self) -> dict[str, Any]:
        """Return the metrics as plain data for `--json`."""
        left, right = self.errors.coverage
        return {
            "name": self.name,
            "answered": self.errors.answered,
            "coverage": {"left": left, "right": right},
            "following": self.following,
            "figures": [asdict(one) for one in self.figures],
        }


def subject_of(name: str, labels: Labels, curves: Mapping[int, Curves]) -> Subject:
    """Judge curves and return their metrics; `curves` are those of `judge`."""
    errors = judge(labels, curves)
    figures = summarize_errors(labels, errors)
    return Subject(name, errors, figures, following(labels, errors), curves)


# --- References -------------------------------------------------------------------------------


def perfect_fit(labels: Labels) -> dict[int, Curves]:
    """Return the best possible output: parabolas through each frame's labels on the road.

    The remaining error comes from noise in the labels, the shape of the road, and the model's grid.
    """
    return {frame.number: _fit(labels, labels.on_road(frame)) for frame in labels.frames}


def blind_lane(labels: Labels) -> dict[int, Curves]:
    """Return the output of a blind model: a straight lane with the car in its middle.

    A model that is not clearly better does not see the lines.
    """
    half = labels.lane_width_m / 2
    ahead = _curves_of(labels, np.full(X_IDXS.size, -half), np.full(X_IDXS.size, half))
    return {frame.number: ahead for frame in labels.frames}


def _fit(labels: Labels, points_m: Floats) -> Curves:
    left, right = (_parabola(side[np.isfinite(side).all(axis=1)]) for side in points_m)
    return _curves_of(labels, left, right)


def _parabola(known_m: Floats) -> Floats:
    # The weights scale the errors to their size in the picture.
    parabola = np.polyfit(known_m[:, 0], known_m[:, 1], 2, w=1.0 / known_m[:, 0])
    return np.asarray(np.polyval(parabola, X_IDXS), np.float64)


def _curves_of(labels: Labels, left_m: Floats, right_m: Floats) -> Curves:
    down = np.full(X_IDXS.size, labels.video_camera.height_m)
    lanes = np.full((LANE_LINE_COUNT, X_IDXS.size, 3), np.nan)
    for line, y_m in ((LEFT_LINE, left_m), (RIGHT_LINE, right_m)):
        lanes[line] = np.stack([X_IDXS, y_m, down], axis=-1)
    plan = np.stack([X_IDXS, (left_m + right_m) / 2, np.zeros(X_IDXS.size)], axis=-1)
    return Curves(
        plan_m=plan.astype(np.float32),
        lane_lines_m=lanes.astype(np.float32),
        lane_line_probs=np.ones(LANE_LINE_COUNT, np.float32),
        road_edges_m=np.full((ROAD_EDGE_COUNT, X_IDXS.size, 3), np.nan, np.float32),
    )
