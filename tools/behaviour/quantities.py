"""The quantities of behaviour: numbers per frame whose change a driver would feel.

A quantity, such as the planned position after 2 s, is computed from the published `modelV2`. Most
can also be computed from the ground truth of a rendered drive. `BehaviourReader` collects all
quantities over a log. Coordinates are in the calibrated frame: x forward, y right.
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

# Lines and leads with at least this probability count as seen.
SEEN: Final = 0.5
TIMES_S: Final = (1.0, 2.0, 4.0)
DISTANCES_M: Final = (10.0, 30.0)
DRIFT_S: Final = 2.0
_POINTS: Final = len(T_IDXS)

# A position on a grid: index of a sample, and the fraction of the distance to the next sample.
Place = tuple[int, float]
# (reader of a frame's modelV2, car's speed in m/s) -> the value, or NaN without one.
OfModel = Callable[[Any, float], float]
OfTruth = Callable[[Truth], Floats]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that can be computed for each frame."""

    name: str  # name in tables and gates
    unit: str  # "" for probabilities and flags
    meaning: str  # description in one line
    of: OfModel  # computes the value from a message; NaN if the model has none
    # Computes the (n,) true values, NaN if there is none; None if the truth lacks the quantity.
    truth: OfTruth | None = None

    @property
    def suffix(self) -> str:
        """The unit as the suffix of a metric's name: ``_m``, ``_mps2``; "" without a unit."""
        return "_" + self.unit.replace("/", "p") if self.unit else ""


def place_of(grid: Floats, at: float) -> Place:
    """Return the position of a value on a rising (33,) grid."""
    index = min(int(np.searchsorted(grid, at, side="right")) - 1, len(grid) - 2)
    return index, float((at - grid[index]) / (grid[index + 1] - grid[index]))


def _between(values: Sequence[float], place: Place) -> float:
    """Return the interpolated value of a curve; NaN if the curve does not have 33 points."""
    if len(values) != _POINTS:
        return math.nan
    index, share = place
    return float(values[index]) * (1.0 - share) + float(values[index + 1]) * share


def _columns(values: Floats, place: Place) -> Floats:
    """Return (n, 33) true curves at a place."""
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
        # The position of a line that the model does not see is meaningless.
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
    """One axis of a curve of the plan, from which quantities at several times are made."""

    name: str
    unit: str
    meaning: str
    curve: str  # field of modelV2
    axis: str  # field of the curve
    truth: OfTruth  # returns the (n, 33) true curves

    def at(self, time_s: float) -> Quantity:
        """Return the quantity at a time of the plan."""
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
    """Return the quantities of one side, given the indices of its lane line and road edge."""
    lines = [
        Quantity(
            f"{side}_line_{distance_m:g}m",
            "m",
            f"lane line {side} of the car, {distance_m:g} m ahead, if it is seen",
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
        f"displacement to the right after {DRIFT_S:g} s of the desired curvature",
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
    Quantity("lead_seen", "", "1 if a car ahead is more likely than not", _lead_seen),
    Quantity(
        "lead_distance",
        "m",
        "distance of the car ahead, if it is seen",
        _lead("x"),
        lambda truth: truth.lead_xyv[:, 0],
    ),
    Quantity(
        "lead_speed",
        "m/s",
        "speed of the car ahead, if it is seen",
        _lead("v"),
        lambda truth: truth.lead_xyv[:, 2],
    ),
    Quantity(
        "should_stop",
        "",
        "1 if the model requests a stop",
        lambda model, _speed: float(model.action.shouldStop),
    ),
    Quantity(
        "hard_brake",
        "",
        "1 if hard braking is expected",
        lambda model, _speed: float(model.meta.hardBrakePredicted),
    ),
)

# --- The behaviour of a model over a drive: each quantity in each frame -----------------------


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The quantities of a model in each of n frames."""

    frame_ids: NDArray[np.int64]  # (n,) in the order of the messages
    valid: NDArray[np.bool_]  # (n,) whether the message is marked valid
    values: Floats  # (n, q) one column for each of `QUANTITIES`; NaN without a value

    def of(self, name: str) -> Floats:
        """Return the (n,) values of the quantity `name`."""
        return self.values[:, [quantity.name for quantity in QUANTITIES].index(name)]


class BehaviourReader:
    """Collects the behaviour from the events of a log.

    `speeds` are the car's speeds in m/s by frame id. None uses the latest `carState` before each
    frame. Without a speed, quantities that depend on it are NaN.
    """

    def __init__(self, speeds: Mapping[int, float] | None = None) -> None:
        self._speeds = speeds
        self._speed = math.nan
        self._ids, self._valid = array("q"), array("b")
        self._values = array("d")

    def watch(self, events: Iterable[bytes]) -> Iterator[bytes]:
        """Yield each serialized Event unchanged after adding it."""
        for data in events:
            self.add(data)
            yield data

    def add(self, data: bytes) -> None:
        """Add one Event; a damaged one is skipped."""
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
        """Return the behaviour in the events added so far."""
        return Behaviour(
            np.array(self._ids, np.int64),
            np.array(self._valid, np.bool_),
            np.array(self._values, np.float64).reshape(-1, len(QUANTITIES)),
        )


def behaviour_of(events: Iterable[bytes], speeds: Mapping[int, float] | None = None) -> Behaviour:
    """Return the behaviour in a log.

    `events` are serialized Events in the log's order, `speeds` those of `BehaviourReader`.
    """
    reader = BehaviourReader(speeds)
    for data in events:
        reader.add(data)
    return reader.behaviour()


def true_behaviour(truth: Truth) -> Behaviour:
    """Return the behaviour of a perfect model; quantities that the truth lacks are NaN."""
    unknown = np.full(truth.frame_id.size, np.nan)
    columns = [unknown if one.truth is None else one.truth(truth) for one in QUANTITIES]
    valid = np.ones(truth.frame_id.size, np.bool_)
    return Behaviour(truth.frame_id, valid, np.stack(columns, axis=1))
