"""A modelV2 and its truth written by hand: straight curves, known at any place."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cereal.schema import new_event
from modeld.constants import T_IDXS, X_IDXS
from tools.behaviour.truth import Floats, Truth


@dataclass(frozen=True)
class Made:
    """What the message says; see `message`."""

    aside_mps: float = 0.3
    turning_radps: float = 0.02
    speed_mps: float = 20.0
    braking_mps2: float = 0.0
    curvature_1pm: float = 0.002
    acceleration_mps2: float = -0.5
    left_m: float = -1.8
    slope: float = 0.01
    left_prob: float = 0.9
    lead_prob: float = 0.8
    lead_m: float = 40.0
    should_stop: bool = False


def message(frame_id: int, made: Made | None = None, *, valid: bool = True) -> bytes:
    """Return the Event: everything is a straight line over time, or over distance."""
    made = made or Made()
    event = new_event("modelV2", mono_time_ns=frame_id * 50_000_000 + 2, valid=valid)
    model = event.modelV2
    model.frameId = frame_id
    model.position.y = (made.aside_mps * T_IDXS).tolist()
    model.orientation.z = (made.turning_radps * T_IDXS).tolist()
    model.velocity.x = (made.speed_mps - made.braking_mps2 * T_IDXS).tolist()
    model.action.desiredCurvature = made.curvature_1pm
    model.action.desiredAcceleration = made.acceleration_mps2
    model.action.shouldStop = made.should_stop
    for line, start in zip(model.init("laneLines", 4), (-5.4, made.left_m, 1.8, 5.4), strict=True):
        line.y = (start + made.slope * X_IDXS).tolist()
    model.laneLineProbs = [0.1, made.left_prob, 0.8, 0.2]
    for edge, start in zip(model.init("roadEdges", 2), (-6.0, 6.0), strict=True):
        edge.y = np.full(33, start).tolist()
    _fill_lead(model.init("leadsV3", 3)[0], made)
    return bytes(event.to_bytes())


def _fill_lead(lead: Any, made: Made) -> None:
    lead.prob = made.lead_prob
    lead.x = [made.lead_m, made.lead_m + 30.0]
    lead.v = [15.0, 14.0]


def car_state(frame_id: int, speed_mps: float) -> bytes:
    event = new_event("carState", mono_time_ns=frame_id * 50_000_000 + 1)
    event.carState.vEgo = speed_mps
    return bytes(event.to_bytes())


def made_truth(frames: int) -> Truth:
    """Return the truth that the messages of `made_models` say, but for the left line."""
    lines = np.array([np.nan, -1.7, 1.8, np.nan])[:, None] + 0.01 * X_IDXS
    path = np.stack([20.0 * T_IDXS, 0.3 * T_IDXS], axis=1)

    def rows(values: Any) -> Floats:
        return np.repeat(np.array(values, np.float64)[None], frames, axis=0)

    return Truth(
        frame_id=np.arange(frames, dtype=np.int64),
        t_s=T_IDXS,
        x_m=X_IDXS,
        speed_mps=rows(20.0),
        acceleration_mps2=rows(-0.5),
        curvature_1pm=rows(0.002),
        lane_line_y_m=rows(lines),
        road_edge_y_m=rows(np.array([-6.0, 6.0])[:, None] + 0.0 * X_IDXS),
        lead_xyv=rows([40.0, 0.0, 15.0]),
        path_xy_m=rows(path),
        path_speed_mps=rows(20.0 + 0.0 * T_IDXS),
        path_yaw_rad=rows(0.02 * T_IDXS),
    )
