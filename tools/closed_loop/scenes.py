"""What the cameras of a drive saw, frame by frame: painted again, with the truth of the moment.

Equal scenes give equal pictures, so of a frame that is driven only who was where is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from modeld.constants import X_IDXS
from tools.closed_loop.cameras import device_cameras
from tools.closed_loop.simulation import Simulation
from tools.closed_loop.trial import Trial
from tools.messages.drive_log import Curve, Curves
from tools.report.picture import encode_jpeg
from tools.world.body import Body
from tools.world.curves import Floats
from tools.world.expert import Expert
from tools.world.painting.painter import Painter
from tools.world.traffic import Vehicle
from tools.world.truth import truth_of
from tools.world.view import Lens, Mount

# Lines are compared where a car is in the next two seconds; of those that the model sees.
COMPARED_M = 40.0
SEEN = 0.5
# The lines of the camera's own lane among the model's four.
OWN_LINES = (1, 2)


@dataclass(frozen=True, slots=True)
class Scene:
    """One frame.

    Attributes:
        number: of the frame in its drive.
        body: the car.
        vehicles: the others.
        lane: in which the car should be.
    """

    number: int
    body: Body
    vehicles: tuple[Vehicle, ...]
    lane: int


def scene_of(simulation: Simulation) -> Scene:
    """Return what the cameras see now."""
    return Scene(simulation.frame, simulation.body, simulation.vehicles, simulation.lane)


def road_pictures(trial: Trial, scenes: Iterable[Scene]) -> list[bytes]:
    """Paint what the road camera saw, as JPEG."""
    lens = Lens.of(device_cameras().road)
    painter = Painter(trial.world, Mount(lens, trial.rpy_rad, trial.height_m))
    return [
        encode_jpeg(*painter.paint(scene.body, scene.vehicles, scene.number).nv12())
        for scene in scenes
    ]


def true_curves(trial: Trial, scene: Scene) -> Curves:
    """Return what a perfect model would have said: the expert's plan, lines and edges.

    NaN where there is nothing.
    """
    world = trial.world
    expert = Expert(world, scene.lane, max(world.speed_limit_mps, trial.speed_mps))
    plan = expert.plan(scene.body, scene.vehicles)
    truth = truth_of(world, scene.body, scene.vehicles, plan, height_m=trial.height_m)
    return Curves(
        plan_m=truth.plan[:, :3].astype(np.float32),
        lane_lines_m=_with_distances(truth.lane_lines),
        lane_line_probs=truth.lane_lines_prob.astype(np.float32),
        road_edges_m=_with_distances(truth.road_edges),
    )


def _with_distances(borders_yz: Floats) -> Curve:
    """Return curves as x, y, z."""
    x = np.broadcast_to(X_IDXS[:, None], (*borders_yz.shape[:2], 1))
    return np.concatenate([x, borders_yz], axis=2).astype(np.float32)


def line_errors_m(found: Curves, truth: Curves) -> Floats:
    """Return how far both lines of the camera's lane lie beside the painted ones.

    At all of the model's distances up to `COMPARED_M`, where there is paint and the model sees it.
    """
    near = X_IDXS <= COMPARED_M
    errors = [
        np.abs(found.lane_lines_m[line, near, 1] - truth.lane_lines_m[line, near, 1])
        for line in OWN_LINES
        if truth.lane_line_probs[line] > SEEN and found.lane_line_probs[line] > SEEN
    ]
    pooled = np.concatenate([np.zeros(0), *errors])
    return np.asarray(pooled[np.isfinite(pooled)])
