"""Ground truth of one frame, in the form of the driving model's output heads.

All values are in the calibrated frame of the car (x forward, y right, z down, origin in the
camera), including hills and banks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DESIRE_LENGTH,
    DESIRE_PREDICTION_STEPS,
    DISENGAGE_HORIZONS_S,
    ENGAGED,
    LEAD_COUNT,
    LEAD_PROB_T_S,
    LEAD_STEPS,
    LEAD_T_S,
    LEAD_WIDTH,
    META_LAYOUTS,
    T_IDXS,
    X_IDXS,
)
from modeld.vehicle.desire import Desire
from tools.simulator.world.car import Body
from tools.simulator.world.curves import Floats
from tools.simulator.world.expert import LEFT, Plan
from tools.simulator.world.traffic import Vehicle, foresee, nearest_ahead
from tools.simulator.world.world import Marking, MarkingKind, World

# Height of a camera behind the windscreen; openpilot's calibration starts from it.
CAMERA_HEIGHT_M = 1.22
# Arc lengths relative to the car at which lines are sampled, from behind it to beyond `X_IDXS`.
_AHEAD_M: Floats = np.arange(-8.0, 262.0, 1.0)
# A line counts as absent if it is more worn than this, or bare on more of the next _NEAR_M.
GONE_WEAR = 0.9
_GONE_SHARE = 0.7
_NEAR_M = 40.0
# Cars farther away are only a few pixels in the model's picture.
LEAD_SIGHT_M = 120.0
# Number of columns of `Truth.meta`.
_META_WIDTH = 55
_HARD_BRAKES_MPS2 = (3.0, 4.0, 5.0)
# Accelerations beyond which a pedal counts as pressed: gas above the first, brake below the second.
_GAS_MPS2, _BRAKE_MPS2 = 0.1, -0.4
# Index of the last plan row within each horizon.
_HORIZON_ROWS = np.searchsorted(T_IDXS, DISENGAGE_HORIZONS_S, side="right") - 1
_PEDAL_TIMES_S = (0.0, *DISENGAGE_HORIZONS_S)
_LEFT_BLINKERS, _RIGHT_BLINKERS = slice(33, 55, 4), slice(34, 55, 4)


@dataclass(frozen=True, slots=True)
class Truth:
    """The ground truth of one frame, named after the heads; float64, in metres, m/s, rad.

    Attributes:
        plan: (33, 15) the expert's plan.
        lane_lines: (4, 33, 2) y and z at ``X_IDXS``; NaN where a line is absent.
        lane_lines_prob: (4,) 1 where paint is visible.
        road_edges: (2, 33, 2) the edges of the asphalt.
        lead: (3, 6, 4) x and y of the lead car's rear, its speed and acceleration; NaN without one.
        lead_prob: (3,) 1 where there is a lead car.
        pose: (6,) velocity and rotation rates along and about the axes.
        road_transform: (6,) position and rotation of the road: the camera's height down, level.
        wide_from_device_euler: (3,) zeros, as both cameras point the same way.
        desire_state: (8,) the current manoeuvre, one-hot.
        desire_pred: (4, 8) the manoeuvre in 2, 4, 6, 8 s.
        meta: (55,) in the column layout of ``modeld.constants``.
        for_curves: (1,) the acceleration that the curves ahead allow or require, m/s^2; the model
            has no such head.
    """

    plan: Floats
    lane_lines: Floats
    lane_lines_prob: Floats
    road_edges: Floats
    lead: Floats
    lead_prob: Floats
    pose: Floats
    road_transform: Floats
    wide_from_device_euler: Floats
    desire_state: Floats
    desire_pred: Floats
    meta: Floats
    for_curves: Floats


def truth_of(
    world: World,
    body: Body,
    vehicles: Sequence[Vehicle],
    plan: Plan,
    *,
    desire: int = 0,
    height_m: float = CAMERA_HEIGHT_M,
) -> Truth:
    """Return the ground truth of one frame.

    `plan` is the expert's plan from here. `desire` is a member of
    ``modeld.vehicle.desire.Desire``; with 0 the plan determines it. `height_m` is the camera's
    height above the road.
    """
    doing = desire or _desire_of(plan)
    lane_lines, road_edges = borders_beside(world, body, height_m)
    lead, lead_prob = _leads(world, body, vehicles, plan)
    there = [_is_there(line, body.s_m) for line in _lines_beside(world, body)]
    return Truth(
        plan=plan.array().astype(np.float64),
        lane_lines=lane_lines,
        lane_lines_prob=np.array(there, np.float64),
        road_edges=road_edges,
        lead=lead,
        lead_prob=lead_prob,
        pose=np.concatenate([plan.velocity_mps[0], plan.rate_radps[0]]),
        road_transform=np.array([0.0, 0.0, height_m, 0.0, 0.0, 0.0]),
        wide_from_device_euler=np.zeros(3),
        desire_state=_one_hot(doing),
        desire_pred=_desires(plan, doing),
        meta=_meta(plan, doing),
        for_curves=np.array([plan.for_curves_mps2]),
    )


def _desire_of(plan: Plan) -> Desire:
    if not plan.side:
        return Desire.NONE
    return Desire.LANE_CHANGE_LEFT if plan.side == LEFT else Desire.LANE_CHANGE_RIGHT


def _one_hot(desire: int) -> Floats:
    row = np.zeros(DESIRE_LENGTH)
    row[desire] = 1.0
    return row


def _desires(plan: Plan, doing: int) -> Floats:
    """Return the manoeuvres in 2, 4, 6, 8 s: a lane change ends in time, others continue."""
    steps = range(1, DESIRE_PREDICTION_STEPS + 1)
    changes = (Desire.LANE_CHANGE_LEFT, Desire.LANE_CHANGE_RIGHT)
    later = [
        0 if doing in changes and 2.0 * step >= plan.changes_until_s else doing for step in steps
    ]
    return np.array([_one_hot(desire) for desire in later])


def _is_there(line: Marking | None, s_m: float) -> bool:
    """Return whether a line is visible on the next metres."""
    if line is None or line.kind is MarkingKind.NONE or line.wear >= GONE_WEAR:
        return False
    bare = sum(
        max(min(end, s_m + _NEAR_M) - max(begin, s_m), 0.0)
        for begin, end in line.gaps
        if begin < s_m + _NEAR_M
    )
    return bare < _GONE_SHARE * _NEAR_M


def _lines_beside(world: World, body: Body) -> tuple[Marking | None, ...]:
    return world.lanes.beside(world.lanes.lane_at(body.offset_m))


def borders_beside(world: World, body: Body, height_m: float) -> tuple[Floats, Floats]:
    """Return lane lines (4, 33, 2) and road edges (2, 33, 2) as in `Truth`.

    The lines are the far left, left, right and far right lines of the car's lane.
    """
    lanes = world.lanes
    lines = [np.nan if line is None else line.offset_m for line in _lines_beside(world, body)]
    borders = _borders(world, body, [*lines, lanes.left_edge_m, lanes.right_edge_m], height_m)
    return borders[:4], borders[4:]


def _borders(world: World, body: Body, offsets_m: Sequence[float], height_m: float) -> Floats:
    """Return y and z of lines along the road at the model's distances, (n, 33, 2)."""
    offsets = np.array(offsets_m)[:, None]
    known = np.where(np.isnan(offsets), 0.0, offsets)
    x, y, z = body.seen(*world.road.places(body.s_m + _AHEAD_M, known))
    z += height_m
    found = np.full((len(offsets_m), X_IDXS.size, 2), np.nan)
    # Keep a line only up to where its distance ahead stops increasing.
    back = np.diff(x, axis=1) <= 0.0
    for row in np.flatnonzero(~np.isnan(offsets[:, 0])).tolist():
        last = int(back[row].argmax()) + 1 if back[row].any() else x.shape[1]
        for column, values in enumerate((y[row], z[row])):
            found[row, :, column] = np.interp(X_IDXS, x[row, :last], values[:last], right=np.nan)
    return found


def _leads(
    world: World, body: Body, vehicles: Sequence[Vehicle], plan: Plan
) -> tuple[Floats, Floats]:
    """Return the lead cars at 0, 2, 4 s and their expected motion, (3, 6, 4) and (3,)."""
    lead, prob = np.full((LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH), np.nan), np.zeros(LEAD_COUNT)
    lanes = world.lanes
    offsets = np.interp(LEAD_PROB_T_S, T_IDXS, plan.offset_m).tolist()
    for index, offset in enumerate(offsets):
        centre = lanes.centre_m(lanes.lane_at(offset))
        vehicle = nearest_ahead(vehicles, body.s_m, centre, 0.5 * lanes.width_m)
        if vehicle is None or vehicle.s_m - body.s_m > LEAD_SIGHT_M:
            continue
        prob[index] = 1.0
        s, speed, acceleration = foresee(vehicle, np.array(LEAD_T_S))
        x, y, _ = body.seen(*world.road.places(s, vehicle.offset_m))
        lead[index] = np.stack([x, y, speed, acceleration], axis=1)
    return lead, prob


def _meta(plan: Plan, doing: int) -> NDArray[np.float64]:
    """Return the driver's predicted actions: engaged, with the plan's pedals and blinkers."""
    meta = np.zeros(_META_WIDTH)
    layout = META_LAYOUTS[_META_WIDTH]
    meta[ENGAGED] = 1.0
    speed = np.sqrt((plan.velocity_mps**2).sum(axis=1))
    along = (plan.velocity_mps * plan.acceleration_mps2).sum(axis=1) / np.maximum(speed, 1e-3)
    # The daemon expects cumulative values: whether the limit is exceeded within each horizon.
    hardest = np.minimum.accumulate(along)[_HORIZON_ROWS]
    kinds = (layout.hard_brake_3, layout.hard_brake_4, layout.hard_brake_5)
    for columns, limit in zip(kinds, _HARD_BRAKES_MPS2, strict=True):
        meta[columns] = hardest < -limit
    pedals = np.interp(_PEDAL_TIMES_S, T_IDXS, along)
    if layout.gas_press is not None and layout.brake_press is not None:
        meta[layout.gas_press] = pedals > _GAS_MPS2
        meta[layout.brake_press] = pedals < _BRAKE_MPS2
    blinkers = {
        Desire.LANE_CHANGE_LEFT: _LEFT_BLINKERS,
        Desire.LANE_CHANGE_RIGHT: _RIGHT_BLINKERS,
    }
    if doing in blinkers:
        later = np.array(_PEDAL_TIMES_S) < max(plan.changes_until_s, 1e-3)
        meta[blinkers[Desire(doing)]] = later
    return meta
