"""The three messages of a frame as plain dicts, every field of them by its name in the schema."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference_loop.rules import Action, T

X = [192.0 * (i / 32) ** 2 for i in range(33)]
PLAN_BLOCKS = ("position", "velocity", "acceleration", "orientation", "orientationRate")
DISENGAGE = (
    *("gasDisengageProbs", "brakeDisengageProbs", "steerOverrideProbs"),
    *(f"brake{hard}MetersPerSecondSquaredProbs" for hard in (3, 4, 5)),
    *("gasPressProbs", "brakePressProbs"),
)
# Layout of `meta` by its width: first column, step and number of entries of each list. With 48
# values there is a column of the gas pedal, and none of the brake: neither was published.
META: dict[int, dict[str, tuple[int, int, int]]] = {
    48: {name: (first, 7, 5) for first, name in enumerate(DISENGAGE[:6], 1)},
    53: {name: (first, 8, 5) for first, name in enumerate(DISENGAGE, 1)},
    55: {
        **{name: (first, 6, 5) for first, name in enumerate(DISENGAGE[:6], 1)},
        "gasPressProbs": (31, 4, 6),
        "brakePressProbs": (32, 4, 6),
    },
}
# Enumerants by their ordinals.
CONFIDENCE = ("red", "yellow", "green")
STATES = ("off", "preLaneChange", "laneChangeStarting", "laneChangeFinishing")
DIRECTIONS = ("none", "left", "right")


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a frame beside its heads; `raw`: all vectors in run order, or none."""

    frame_id: int
    frame_id_extra: int
    frame_age: int
    drop_percent: float
    dropped: int
    eof_ns: int
    valid: bool
    big: bool
    action: Action
    confidence: int
    hard_brake: bool
    lane_change_state: int
    lane_change_direction: int
    raw: list[float]


def meta_column(parsed: dict[str, Any], name: str) -> list[float]:
    """A list of probabilities out of `meta`; empty where this layout has none."""
    meta = parsed["meta"]
    start, step, count = META[meta.size].get(name, (0, 1, 0))
    return [float(meta[start + i * step]) for i in range(count)]


def model_v2(parsed: dict[str, Any], about: About) -> dict[str, Any]:
    """Fields of `modelV2`; times of execution are nobody's to foresee, and left 0."""
    plan = parsed["plan"]
    message: dict[str, Any] = {
        "frameId": about.frame_id,
        "frameIdExtra": about.frame_id_extra,
        "frameAge": about.frame_age,
        "frameDropPerc": about.drop_percent,
        "timestampEof": about.eof_ns,
        "modelExecutionTime": 0.0,
        "gpuExecutionTime": 0.0,
        "rawPredictions": about.raw,
        "leads": [],
        "navEnabled": False,
        "locationMonoTime": 0,
        "big": about.big,
        "confidence": CONFIDENCE[about.confidence],
        "action": _action(about.action),
        "temporalPose": _pose(parsed, "sim_pose") if "sim_pose" in parsed else {},
        "lateralPlannerSolution": {},
    }
    for i, name in enumerate(PLAN_BLOCKS):
        x, y, z = (plan[:, 3 * i + axis].tolist() for axis in range(3))
        message[name] = {"t": T, "x": x, "y": y, "z": z}
    spread = parsed["plan_stds"]
    message["position"] |= {
        f"{axis}Std": spread[:, i].tolist() for i, axis in enumerate(("x", "y", "z"))
    }
    for name, head in (("laneLine", "lane_lines"), ("roadEdge", "road_edges")):
        lines = parsed[head]
        message[f"{name}s"] = [
            {"x": X, "y": line[:, 0].tolist(), "z": line[:, 1].tolist(), "t": []} for line in lines
        ]
        message[f"{name}Stds"] = [float(line[0, 0]) for line in parsed[f"{head}_stds"]]
    message["laneLineProbs"] = [float(parsed["lane_lines_prob"][2 * i + 1]) for i in range(4)]
    message["leadsV3"] = [_lead(parsed, i) for i in range(3)]
    message["meta"] = _meta(parsed, about)
    return message


def _lead(parsed: dict[str, Any], which: int) -> dict[str, Any]:
    lead: dict[str, Any] = {
        "prob": float(parsed["lead_prob"][which]),
        "probTime": (0.0, 2.0, 4.0)[which],
        "t": [0.0, 2.0, 4.0, 6.0, 8.0, 10.0],
    }
    for i, name in enumerate("xyva"):
        lead[name] = parsed["lead"][which, :, i].tolist()
        lead[f"{name}Std"] = parsed["lead_stds"][which, :, i].tolist()
    return lead


def _meta(parsed: dict[str, Any], about: About) -> dict[str, Any]:
    columns = {name: meta_column(parsed, name) for name in DISENGAGE}
    return {
        "engagedProb": float(parsed["meta"][0]),
        "desireState": parsed["desire_state"].tolist(),
        "desirePrediction": parsed["desire_pred"].reshape(-1).tolist(),
        "disengagePredictions": {"t": [2.0, 4.0, 6.0, 8.0, 10.0], **columns},
        "hardBrakePredicted": about.hard_brake,
        **_lane_change(about),
        "brakeDisengageProb": 0.0,
        "gasDisengageProb": 0.0,
        "steerOverrideProb": 0.0,
    }


def _pose(parsed: dict[str, Any], head: str) -> dict[str, Any]:
    pose, stds = parsed[head].tolist(), parsed[f"{head}_stds"].tolist()
    return {"trans": pose[:3], "rot": pose[3:], "transStd": stds[:3], "rotStd": stds[3:]}


def _lane_change(about: About) -> dict[str, str]:
    return {
        "laneChangeState": STATES[about.lane_change_state],
        "laneChangeDirection": DIRECTIONS[about.lane_change_direction],
    }


def _action(action: Action) -> dict[str, Any]:
    return {
        "desiredCurvature": action.curvature,
        "desiredAcceleration": action.acceleration,
        "shouldStop": action.stop,
    }


def driving_model_data(parsed: dict[str, Any], about: About) -> dict[str, Any]:
    """Fields of `drivingModelData`: the path is a polynomial of degree 4, constant term first."""
    positions = parsed["plan"][:, :3]
    path = np.polynomial.polynomial.polyfit(np.array(T), positions, 4)
    return {
        "frameId": about.frame_id,
        "frameIdExtra": about.frame_id_extra,
        "frameDropPerc": about.drop_percent,
        "modelExecutionTime": 0.0,
        "big": about.big,
        "action": _action(about.action),
        "laneLineMeta": {
            "leftY": float(parsed["lane_lines"][1, 0, 0]),
            "rightY": float(parsed["lane_lines"][2, 0, 0]),
            "leftProb": float(parsed["lane_lines_prob"][3]),
            "rightProb": float(parsed["lane_lines_prob"][5]),
        },
        "meta": _lane_change(about),
        "path": {f"{axis}Coefficients": path[:, i].tolist() for i, axis in enumerate("xyz")},
    }


def camera_odometry(parsed: dict[str, Any], about: About) -> dict[str, Any]:
    return {
        "frameId": about.frame_id,
        "timestampEof": about.eof_ns,
        **_pose(parsed, "pose"),
        "wideFromDeviceEuler": parsed["wide_from_device_euler"].tolist(),
        "wideFromDeviceEulerStd": parsed["wide_from_device_euler_stds"].tolist(),
        "roadTransformTrans": parsed["road_transform"][:3].tolist(),
        "roadTransformTransStd": parsed["road_transform_stds"][:3].tolist(),
    }


def messages(parsed: dict[str, Any], about: About) -> dict[str, dict[str, Any]]:
    """The three messages by service, `valid` of the event among the fields as `@valid`."""
    return {
        "modelV2": {"@valid": about.valid, **model_v2(parsed, about)},
        "drivingModelData": {"@valid": about.valid, **driving_model_data(parsed, about)},
        "cameraOdometry": {
            "@valid": about.valid and about.dropped < 1,
            **camera_odometry(parsed, about),
        },
    }
