"""What a report needs from an event log: the daemon's messages as arrays over frames.

Reads Events in any order of services; knows nothing of files. Called by ``tools.lib.report``,
``tools.replay`` and the demo.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTPUT_SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DriveLog:
    """One drive, row i = i-th modelV2 message. Calibrated frame: x forward, y right, z down (m).

    Attributes:
        counts: messages by service; those of the daemon that are valid also as ``NAME:valid``.
        frame_ids: (n,) int64.
        times_s: (n,) end-of-frame time relative to the first message.
        execution_ms: (n,).
        drop_percent: (n,) ``frameDropPerc``.
        plan_m: (n, 33, 3) planned positions.
        plan_speed_mps: (n,) planned speed at time 0.
        lane_lines_m: (n, 4, 33, 3).
        lane_line_probs: (n, 4).
        road_edges_m: (n, 2, 33, 3).
        curvature_1pm: (n,) desired curvature, 1/m.
        acceleration_mps2: (n,) desired acceleration.
        car_times_s: (m,) of carState messages, relative as ``times_s``.
        car_speed_mps: (m,).
        all_finite: no NaN or infinity in any of the above.
    """

    counts: Counter[str]
    frame_ids: NDArray[np.int64]
    times_s: Floats
    execution_ms: Floats
    drop_percent: Floats
    plan_m: Floats
    plan_speed_mps: Floats
    lane_lines_m: Floats
    lane_line_probs: Floats
    road_edges_m: Floats
    curvature_1pm: Floats
    acceleration_mps2: Floats
    car_times_s: Floats
    car_speed_mps: Floats
    all_finite: bool

    @property
    def missing_frames(self) -> int:
        """Frame ids between the first and the last modelV2 that have none."""
        if not self.frame_ids.size:
            return 0
        return int(self.frame_ids[-1] - self.frame_ids[0] + 1 - np.unique(self.frame_ids).size)


def summarize(events: Iterable[Any]) -> DriveLog:
    """Collect the daemon's messages of a drive.

    Args:
        events: Event readers in time order.

    Returns:
        The arrays; all of length 0 when there is no modelV2.
    """
    counts: Counter[str] = Counter()
    models: list[tuple[Any, int]] = []
    cars: list[tuple[int, float]] = []
    for event in events:
        name = str(event.which())
        counts[name] += 1
        if name in OUTPUT_SERVICES and event.valid:
            counts[f"{name}:valid"] += 1
        if name == "modelV2":
            models.append((event.modelV2, event.modelV2.timestampEof))
        elif name == "carState":
            cars.append((event.logMonoTime, event.carState.vEgo))
    start_ns = models[0][1] if models else (cars[0][0] if cars else 0)
    messages = [message for message, _ in models]
    arrays = {
        "times_s": _array([(eof - start_ns) * 1e-9 for _, eof in models], (0,)),
        "execution_ms": _array([1e3 * m.modelExecutionTime for m in messages], (0,)),
        "drop_percent": _array([m.frameDropPerc for m in messages], (0,)),
        "plan_m": _array([_xyz(m.position) for m in messages], (0, 33, 3)),
        "plan_speed_mps": _array([m.velocity.x[0] for m in messages], (0,)),
        "lane_lines_m": _array([[_xyz(x) for x in m.laneLines] for m in messages], (0, 4, 33, 3)),
        "lane_line_probs": _array([list(m.laneLineProbs) for m in messages], (0, 4)),
        "road_edges_m": _array([[_xyz(x) for x in m.roadEdges] for m in messages], (0, 2, 33, 3)),
        "curvature_1pm": _array([m.action.desiredCurvature for m in messages], (0,)),
        "acceleration_mps2": _array([m.action.desiredAcceleration for m in messages], (0,)),
        "car_times_s": _array([(stamp - start_ns) * 1e-9 for stamp, _ in cars], (0,)),
        "car_speed_mps": _array([speed for _, speed in cars], (0,)),
    }
    return DriveLog(
        counts=counts,
        frame_ids=np.array([m.frameId for m in messages], np.int64),
        all_finite=all(bool(np.isfinite(array).all()) for array in arrays.values()),
        **arrays,
    )


def _array(rows: list[Any], empty_shape: tuple[int, ...]) -> Floats:
    return np.array(rows, np.float64) if rows else np.zeros(empty_shape)


def _xyz(curve: Any) -> list[tuple[float, float, float]]:
    return list(zip(curve.x, curve.y, curve.z, strict=True))
