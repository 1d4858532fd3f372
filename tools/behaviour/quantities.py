"""The quantities of behaviour that a driver would feel.

Each is one number of a frame, taken from the published `modelV2` and, where there is one, from the
truth of a rendered drive. Calibrated frame: x forward, y right; positive is to the right.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cereal.errors import MessageError
from cereal.schema import DAMAGED, member_name, read_event
from modeld.constants import T_IDXS, X_IDXS
from tools.behaviour.truth import Floats, Truth

# What the model takes for more likely there than not.
SEEN: Final = 0.5
TIMES_S: Final = (1.0, 2.0, 4.0)
DISTANCES_M: Final = (10.0, 30.0)
DRIFT_S: Final = 2.0
_POINTS: Final = len(T_IDXS)

# A sample of a curve: the value at `index` plus the share of the way to the next one.
Place = tuple[int, float]
# The modelV2 of a frame (a reader), and the car's speed in m/s -> the value, NaN without one.
OfModel = Callable[[Any, float], float]
OfTruth = Callable[[Truth], Floats]


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a frame."""

    name: str  # as in tables and gates
    unit: str  # as it is written; "" for probabilities and flags
    meaning: str  # one line for people
    of: OfModel  # takes it from a message; NaN where the model gives none
    # Takes the (n,) true values; NaN where there is nothing; None: nobody knows it.
    truth: OfTruth | None = None

    @property
    def suffix(self) -> str:
        """The unit as the end of a name: ``_m``, ``_mps2``; "" without a unit."""
        return "_" + self.unit.replace("/", "p") if self.unit else ""


def place_of(grid: Floats, at: float) -> Place:
    """Return where a value lies between the samples of a rising (33,) grid."""
    index = min(int(np.searchsorted(grid, at, side="right")) - 1, len(grid) - 2)
    return index, float((at - grid[index]) / (grid[index + 1] - grid[index]))


def _between(values: Sequence[float], place: Place) -> float:
    """Return the sample of a curve of a message; NaN where it has not the model's points."""
    if len(values) != _POINTS:
        return math.nan
    index, share = place
    return float(values[index]) * (1.0 - share) + float(values[index + 1]) * share


def _columns(values: Floats, place: Place) -> Floats:
    """Return the same sample of (n, 33) true curves."""
    index, share = place
    found: Floats = values[:, index] * (1.0 - share) + values[:, index + 1] * share
    return found


def _line_prob(line: int) -> OfModel:
    def of(model: Any, _speed: float) -> float:
        probs = model.laneLineProbs
        return float(probs[line]) if len(probs) == 4 else math.nan

    return of


def _line(line: int, distance_m: float) -> OfModel:
    prob, place = _line_prob(line), place_of(X_IDXS, distance_m)

    def of(model: Any, speed: float) -> float:
        # A line that the model does not see lies anywhere.
        if not prob(model, speed) >= SEEN or len(model.laneLines) != 4:
            return math.nan
        return _between(model.laneLines[line].y, place)

    return of


def _edge(edge: int, distance_m: float) -> OfModel:
    place = place_of(X_IDXS, distance_m)

    def of(model: Any, _speed: float) -> float:
        edges = model.roadEdges
        return _between(edges[edge].y, place) if len(edges) == 2 else math.nan

    return of


def _border(name: str, index: int, distance_m: float) -> OfTruth:
    return lambda truth: _columns(getattr(truth, name)[:, index], place_of(truth.x_m, distance_m))


def _lead_prob(model: Any, _speed: float) -> float:
    leads = model.leadsV3
    return float(leads[0].prob) if len(leads) else math.nan


def _lead_seen(model: Any, speed: float) -> float:
    prob = _lead_prob(model, speed)
    return prob if math.isnan(prob) else float(prob >= SEEN)


def _lead(axis: str) -> OfModel:
    def of(model: Any, speed: float) -> float:
        if not _lead_prob(model, speed) >= SEEN:
            return math.nan
        values = getattr(model.leadsV3[0], axis)
        return float(values[0]) if len(values) else math.nan

    return of


def _lateral_acceleration(model: Any, speed: float) -> float:
    return float(model.action.desiredCurvature) * speed**2


def _drift(model: Any, speed: float) -> float:
    return 0.5 * float(model.action.desiredCurvature) * (speed * DRIFT_S) ** 2


class _Planned(NamedTuple):
    """What the plan says of a time: one axis of one of its curves, and the true curve."""

    name: str
    unit: str
    meaning: str
    curve: str
    axis: str
    truth: OfTruth

    def at(self, time_s: float) -> Quantity:
        """Return it as the quantity of a time."""
        place = place_of(T_IDXS, time_s)
        return Quantity(
            f"{self.name}_{time_s:g}s",
            self.unit,
            f"planned {self.meaning} after {time_s:g} s",
            lambda model, _speed: _between(getattr(getattr(model, self.curve), self.axis), place),
            lambda truth: _columns(self.truth(truth), place_of(truth.t_s, time_s)),
        )


_PLANNED: Final = (
    _Planned(
        "lateral", "m", "position to the right", "position", "y", lambda t: t.path_xy_m[:, :, 1]
    ),
    _Planned("heading", "rad", "heading", "orientation", "z", lambda t: t.path_yaw_rad),
    _Planned("speed", "m/s", "speed", "velocity", "x", lambda t: t.path_speed_mps),
)


def _borders(side: str, line: int, edge: int) -> tuple[Quantity, ...]:
    """Return the quantities of one side, by the numbers of its line and its edge."""
    lines = [
        Quantity(
            f"{side}_line_{distance_m:g}m",
            "m",
            f"lane line {side} of the car, {distance_m:g} m ahead, where it is seen",
            _line(line, distance_m),
            _border("lane_line_y_m", line, distance_m),
        )
        for distance_m in DISTANCES_M
    ]
    prob = Quantity(
        f"{side}_line_prob",
        "",
        f"probability of the lane line {side} of the car",
        _line_prob(line),
        lambda truth: np.isfinite(truth.lane_line_y_m[:, line, 0]) * 1.0,
    )
    edges = [
        Quantity(
            f"{side}_edge_{distance_m:g}m",
            "m",
            f"{side} edge of the road, {distance_m:g} m ahead",
            _edge(edge, distance_m),
            _border("road_edge_y_m", edge, distance_m),
        )
        for distance_m in DISTANCES_M
    ]
    return (*lines, prob, *edges)


QUANTITIES: Final[tuple[Quantity, ...]] = (
    *(planned.at(time_s) for planned in _PLANNED for time_s in TIMES_S),
    Quantity(
        "lateral_acceleration",
        "m/s2",
        "desired curvature, at the car's speed",
        _lateral_acceleration,
        lambda truth: truth.curvature_1pm * truth.speed_mps**2,
    ),
    Quantity(
        "drift_2s",
        "m",
        f"where {DRIFT_S:g} s of the desired curvature take the car, to the right",
        _drift,
        lambda truth: 0.5 * truth.curvature_1pm * (truth.speed_mps * DRIFT_S) ** 2,
    ),
    Quantity(
        "acceleration",
        "m/s2",
        "desired acceleration",
        lambda model, _speed: float(model.action.desiredAcceleration),
        lambda truth: truth.acceleration_mps2,
    ),
    *_borders("left", line=1, edge=0),
    *_borders("right", line=2, edge=1),
    Quantity("lead_prob", "", "probability of a car ahead", _lead_prob),
    Quantity("lead_seen", "", "1 where a car ahead is more likely than not", _lead_seen),
    Quantity(
        "lead_distance",
        "m",
        "distance of the car ahead, where it is seen",
        _lead("x"),
        lambda truth: truth.lead_xyv[:, 0],
    ),
    Quantity(
        "lead_speed",
        "m/s",
        "speed of the car ahead, where it is seen",
        _lead("v"),
        lambda truth: truth.lead_xyv[:, 2],
    ),
    Quantity(
        "should_stop",
        "",
        "1 where the car is told to stop",
        lambda model, _speed: float(model.action.shouldStop),
    ),
    Quantity(
        "hard_brake",
        "",
        "1 where hard braking is expected",
        lambda model, _speed: float(model.meta.hardBrakePredicted),
    ),
)

# --- The behaviour of a model over a drive: each quantity in each frame -----------------------


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a model wanted, frame by frame."""

    frame_ids: NDArray[np.int64]  # (n,) int64, in the order of the messages
    valid: NDArray[np.bool_]  # (n,) bool, as the messages say
    values: Floats  # (n, q) float64, a column for each of `QUANTITIES`; NaN where there is none

    def of(self, name: str) -> Floats:
        """Return the (n,) values of a quantity."""
        return self.values[:, [quantity.name for quantity in QUANTITIES].index(name)]


class BehaviourReader:
    """Collects the behaviour while a log is read by somebody else.

    `speeds`: the car's speed in m/s by frame id; None: what `carState` says before a frame. Without
    a speed, quantities that rest on it have no value.
    """

    def __init__(self, speeds: Mapping[int, float] | None = None) -> None:
        self._speeds = speeds
        self._speed = math.nan
        self._ids, self._valid = array("q"), array("b")
        self._values = array("d")

    def watch(self, events: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the bytes of each Event unchanged, and take note of it."""
        for data in events:
            self.add(data)
            yield data

    def add(self, data: bytes) -> None:
        """Take note of one Event; a damaged one is passed over."""
        try:
            self._add(read_event(data))
        except (MessageError, *DAMAGED):
            return

    def _add(self, event: Any) -> None:
        name = member_name(event)
        if name == "carState":
            self._speed = float(event.carState.vEgo)
        elif name == "modelV2":
            model, speed = event.modelV2, self._speed
            if self._speeds is not None:
                speed = self._speeds.get(model.frameId, math.nan)
            row = [quantity.of(model, speed) for quantity in QUANTITIES]
            frame_id, valid = int(model.frameId), bool(event.valid)
            self._ids.append(frame_id)
            self._valid.append(valid)
            self._values.extend(row)

    def behaviour(self) -> Behaviour:
        """Return what was seen so far."""
        return Behaviour(
            np.array(self._ids, np.int64),
            np.array(self._valid, np.bool_),
            np.array(self._values, np.float64).reshape(-1, len(QUANTITIES)),
        )


def behaviour_of(events: Iterable[bytes], speeds: Mapping[int, float] | None = None) -> Behaviour:
    """Return the behaviour that a log holds.

    `events`: bytes of each Event, in the log's order. `speeds`: as in `BehaviourReader`.
    """
    reader = BehaviourReader(speeds)
    for data in events:
        reader.add(data)
    return reader.behaviour()


def true_behaviour(truth: Truth) -> Behaviour:
    """Return what a perfect model would have wanted; NaN where nobody knows."""
    unknown = np.full(truth.frame_id.size, np.nan)
    columns = [unknown if one.truth is None else one.truth(truth) for one in QUANTITIES]
    valid = np.ones(truth.frame_id.size, np.bool_)
    return Behaviour(truth.frame_id, valid, np.stack(columns, axis=1))
