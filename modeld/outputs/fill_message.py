"""Fills the three messages of a frame from the parsed outputs.

The messages are ``modelV2``, ``drivingModelData`` and ``cameraOdometry``. Message lists are
assigned from Python lists, one ``tolist`` per array, which is faster than element by element. Lists
that never change are kept as message lists. `ModelMessage` fills ``modelV2`` faster still, by
patching the bytes of an earlier message.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cereal.schema import content, log, new_event, read_event
from modeld.constants import (
    DISENGAGE_HORIZONS_S,
    ENGAGED,
    LANE_LINE_COUNT,
    LEAD_COUNT,
    LEAD_PROB_T_S,
    LEAD_T_S,
    META_LAYOUTS,
    PLAN_ACCELERATION,
    PLAN_ORIENTATION,
    PLAN_ORIENTATION_RATE,
    PLAN_POSITION,
    PLAN_VELOCITY,
    ROAD_EDGE_COUNT,
    T_IDXS,
    X_IDXS,
)
from modeld.errors import InternalError
from modeld.outputs.parse_outputs import DrivingOutputs
from modeld.outputs.verdict import Action, FrameVerdict

PATH_DEGREE: Final = 4


def _message_list(values: Sequence[float]) -> Any:
    """Return the values as a Cap'n Proto List(Float32), taken from a field of that type."""
    return log.XYZTData.new_message(t=list(values)).as_reader().t


_T_LIST: Final = _message_list(T_IDXS.tolist())
_X_LIST: Final = _message_list(X_IDXS.tolist())
_LEAD_T: Final = _message_list(LEAD_T_S)
_HORIZONS: Final = _message_list(DISENGAGE_HORIZONS_S)

_PLAN_FIELDS: Final = (
    ("position", PLAN_POSITION),
    ("velocity", PLAN_VELOCITY),
    ("acceleration", PLAN_ACCELERATION),
    ("orientation", PLAN_ORIENTATION),
    ("orientationRate", PLAN_ORIENTATION_RATE),
)
# Message field, attribute of MetaLayout.
_DISENGAGE_FIELDS: Final = (
    ("brakeDisengageProbs", "brake_disengage"),
    ("gasDisengageProbs", "gas_disengage"),
    ("steerOverrideProbs", "steer_override"),
    ("brake3MetersPerSecondSquaredProbs", "hard_brake_3"),
    ("brake4MetersPerSecondSquaredProbs", "hard_brake_4"),
    ("brake5MetersPerSecondSquaredProbs", "hard_brake_5"),
    ("gasPressProbs", "gas_press"),
    ("brakePressProbs", "brake_press"),
)
_LEAD_FIELDS: Final = (("x", "xStd"), ("y", "yStd"), ("v", "vStd"), ("a", "aStd"))


def _path_solver() -> NDArray[np.float64]:
    """Return the (5, 33) matrix from samples at ``T_IDXS`` to polynomial coefficients.

    It depends on the times only, so it is computed once. Columns are scaled to unit length first,
    because t^4 reaches 10^4.
    """
    powers = T_IDXS[:, None] ** np.arange(PATH_DEGREE + 1)
    scale = np.sqrt((powers**2).sum(axis=0))
    solver: NDArray[np.float64] = np.linalg.pinv(powers / scale) / scale[:, None]
    return solver


_PATH_SOLVER: Final = _path_solver()


@dataclass(frozen=True, slots=True)
class FrameInfo:
    """Facts about the frame and the model run."""

    frame_id: int  # id of the main frame
    frame_id_extra: int  # id of the extra frame
    frame_age: int  # frames by which the camera daemon is ahead of the main frame
    frame_drop_percent: float  # smoothed share of dropped frames
    dropped: int  # frames dropped just before this one
    timestamp_eof_ns: int  # end of the main frame's exposure and readout
    execution_time_s: float  # time of the model run, from inputs ready to outputs parsed
    valid: bool  # no reason against the messages was found, see `modeld.judgement`
    big: bool = False  # the model is the large one of its generation


def fill_model_v2(
    event: Any,
    outputs: DrivingOutputs,
    frame: FrameInfo,
    verdict: FrameVerdict,
    raw_predictions: bytes | None = None,
) -> None:
    """Fill an Event whose ``modelV2`` has been initialized.

    `raw_predictions` are all raw vectors as float32 bytes, for debugging.
    """
    if raw_predictions is not None:
        event.modelV2.rawPredictions = raw_predictions
    fill_outputs(event, outputs)
    fill_frame(event, frame, verdict)


def fill_outputs(event: Any, outputs: DrivingOutputs) -> None:
    """Copy the outputs into a ``modelV2`` event, without computing on them.

    `ModelMessage` relies on each number in the message being a copy of one output.
    """
    model = event.modelV2
    _fill_plan(model, outputs)
    _fill_temporal_pose(model, outputs)
    _fill_lines(model, outputs)
    _fill_leads(model, outputs)
    _fill_meta(model.meta, outputs)


def fill_frame(event: Any, frame: FrameInfo, verdict: FrameVerdict) -> None:
    """Fill the remaining fields of ``modelV2``.

    They contain no lists, so filling the same event repeatedly does not make it grow.
    """
    event.valid = frame.valid
    model = event.modelV2
    model.frameId = frame.frame_id
    model.frameIdExtra = frame.frame_id_extra
    model.frameAge = frame.frame_age
    model.frameDropPerc = frame.frame_drop_percent
    model.timestampEof = frame.timestamp_eof_ns
    model.modelExecutionTime = frame.execution_time_s
    model.big = frame.big
    model.confidence = int(verdict.confidence)
    meta = model.meta
    meta.hardBrakePredicted = verdict.hard_brake_predicted
    meta.laneChangeState = int(verdict.lane_change_state)
    meta.laneChangeDirection = int(verdict.lane_change_direction)
    _fill_action(model.action, verdict.action)


def _fill_plan(model: Any, outputs: DrivingOutputs) -> None:
    columns = outputs.plan.T.tolist()
    for name, where in _PLAN_FIELDS:
        curve = model.init(name)
        curve.t = _T_LIST
        curve.x, curve.y, curve.z = columns[where]
    stds = outputs.plan_stds[:, PLAN_POSITION].T.tolist()
    position = model.position
    position.xStd, position.yStd, position.zStd = stds


def _fill_temporal_pose(model: Any, outputs: DrivingOutputs) -> None:
    """Fill the temporal pose. Only models until April 2025 have it."""
    if outputs.sim_pose is None or outputs.sim_pose_stds is None:
        return
    pose, stds = outputs.sim_pose.tolist(), outputs.sim_pose_stds.tolist()
    temporal = model.init("temporalPose")
    temporal.trans, temporal.rot = pose[:3], pose[3:]
    temporal.transStd, temporal.rotStd = stds[:3], stds[3:]


def _fill_lines(model: Any, outputs: DrivingOutputs) -> None:
    _fill_curves(model.init("laneLines", LANE_LINE_COUNT), outputs.lane_lines)
    model.laneLineStds = outputs.lane_lines_stds[:, 0, 0].tolist()
    model.laneLineProbs = outputs.lane_lines_prob[1::2].tolist()
    _fill_curves(model.init("roadEdges", ROAD_EDGE_COUNT), outputs.road_edges)
    model.roadEdgeStds = outputs.road_edges_stds[:, 0, 0].tolist()


def _fill_curves(curves: Any, points: NDArray[np.float32]) -> None:
    """Fill y and z at ``X_IDXS``; the field for times stays empty."""
    for curve, (lateral, height) in zip(curves, points.transpose(0, 2, 1).tolist(), strict=True):
        curve.x = _X_LIST
        curve.y = lateral
        curve.z = height


def _fill_leads(model: Any, outputs: DrivingOutputs) -> None:
    leads = model.init("leadsV3", LEAD_COUNT)
    values = outputs.lead.transpose(0, 2, 1).tolist()
    stds = outputs.lead_stds.transpose(0, 2, 1).tolist()
    probabilities = outputs.lead_prob.tolist()
    for index, lead in enumerate(leads):
        lead.prob = probabilities[index]
        lead.probTime = LEAD_PROB_T_S[index]
        lead.t = _LEAD_T
        for (name, std_name), value, std in zip(
            _LEAD_FIELDS, values[index], stds[index], strict=True
        ):
            setattr(lead, name, value)
            setattr(lead, std_name, std)


def _fill_meta(meta: Any, outputs: DrivingOutputs) -> None:
    probabilities, layout = outputs.meta.tolist(), META_LAYOUTS[outputs.meta.size]
    meta.engagedProb = probabilities[ENGAGED]
    meta.desireState = outputs.desire_state.tolist()
    meta.desirePrediction = outputs.desire_pred.reshape(-1).tolist()
    disengage = meta.init("disengagePredictions")
    disengage.t = _HORIZONS
    for name, kind in _DISENGAGE_FIELDS:
        where = getattr(layout, kind)
        # Lists that the layout lacks stay empty.
        if where is not None:
            setattr(disengage, name, probabilities[where])


def _fill_action(builder: Any, action: Action) -> None:
    builder.desiredCurvature = action.curvature_1pm
    builder.desiredAcceleration = action.acceleration_mps2
    builder.shouldStop = action.should_stop


def path_coefficients(plan: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the degree-4 least-squares fit of the planned position over time.

    The plan is (33, 15) float32. The result is (3, 5) float64: rows x, y, z in metres, columns in
    ascending powers of seconds.
    """
    positions = plan[:, PLAN_POSITION].astype(np.float64)
    return (_PATH_SOLVER @ positions).T


def fill_driving_model_data(
    event: Any, outputs: DrivingOutputs, frame: FrameInfo, verdict: FrameVerdict
) -> None:
    """Fill a ``drivingModelData`` event, a short form of modelV2."""
    event.valid = frame.valid
    data = event.drivingModelData
    data.frameId = frame.frame_id
    data.frameIdExtra = frame.frame_id_extra
    data.frameDropPerc = frame.frame_drop_percent
    data.modelExecutionTime = frame.execution_time_s
    data.big = frame.big
    _fill_action(data.action, verdict.action)
    data.meta.laneChangeState = int(verdict.lane_change_state)
    data.meta.laneChangeDirection = int(verdict.lane_change_direction)
    # The inner two of the four lines bound the lane. The second of a line's two probabilities is
    # that it exists.
    lines = data.laneLineMeta
    lines.leftY = float(outputs.lane_lines[1, 0, 0])
    lines.rightY = float(outputs.lane_lines[2, 0, 0])
    lines.leftProb = float(outputs.lane_lines_prob[3])
    lines.rightProb = float(outputs.lane_lines_prob[5])
    path = data.path
    path.xCoefficients, path.yCoefficients, path.zCoefficients = path_coefficients(
        outputs.plan
    ).tolist()


def fill_camera_odometry(event: Any, outputs: DrivingOutputs, frame: FrameInfo) -> None:
    """Fill a ``cameraOdometry`` event, the motion between frames; dropped frames invalidate it."""
    event.valid = frame.valid and frame.dropped < 1
    odometry = event.cameraOdometry
    odometry.frameId = frame.frame_id
    odometry.timestampEof = frame.timestamp_eof_ns
    pose, stds = outputs.pose.tolist(), outputs.pose_stds.tolist()
    odometry.trans, odometry.rot = pose[:3], pose[3:]
    odometry.transStd, odometry.rotStd = stds[:3], stds[3:]
    odometry.wideFromDeviceEuler = outputs.wide_from_device_euler.tolist()
    odometry.wideFromDeviceEulerStd = outputs.wide_from_device_euler_stds.tolist()
    odometry.roadTransformTrans = outputs.road_transform[:3].tolist()
    odometry.roadTransformTransStd = outputs.road_transform_stds[:3].tolist()


# --- ``modelV2`` by patching the bytes of an earlier message ----------------------------------
# Setting 1200 numbers one by one takes eight times as long. The lists of one parser have constant
# lengths, so each output has a fixed place in the message's bytes. The places are found once, with
# a message whose outputs are distinct numbers:
#
#     outputs 0 1 2 ...  -> fill_outputs -> bytes ... 17 ... 3 ...    place -> output
#     each frame: fill_frame -> bytes, then bytes[places] = outputs[sources]


# The first of these distinct numbers. They are integers below 2^24, so exact in float32, and above
# every constant of the message (times to 10 s, distances to 192 m).
_FIRST: Final = 1 << 22


class ModelMessage:
    """Builds ``modelV2`` messages from the outputs of one parser.

    `outputs` are the parser's arrays, which it rewrites in place for each frame. Raises
    InternalError if `fill_outputs` computes a number instead of copying one.
    """

    def __init__(self, outputs: DrivingOutputs) -> None:
        arrays = {
            one.name: array
            for one in fields(outputs)
            if isinstance(array := getattr(outputs, one.name), np.ndarray)
        }
        self._outputs = outputs
        # These arrays are views, so they always hold the parser's current outputs.
        self._named = arrays
        self._parts = [array.reshape(-1) for array in arrays.values()]
        self._numbers: NDArray[np.float32] = np.concatenate(self._parts)
        self._event = new_event("modelV2", mono_time_ns=0)
        numbered: dict[str, Any] = {}
        first = _FIRST
        for name, array in arrays.items():
            numbers = np.arange(first, first + array.size, dtype=np.float32)
            numbered[name] = numbers.reshape(array.shape)
            first += array.size
        fill_outputs(self._event, replace(outputs, **numbered))
        words = _words_of(self._event)
        self._places = np.flatnonzero((words >= _FIRST) & (words < first))
        self._sources = words[self._places].astype(np.intp) - _FIRST
        for sign in (1, -1):
            self._check(sign)

    def _check(self, sign: int) -> None:
        """Fill a message with known numbers, by patching and by field, and compare the results.

        `sign` is the sign of the numbers. Trying both detects outputs that are clipped at a bound.
        """
        numbers = self._numbers.size
        known = (sign * np.linspace(0.1, 0.9, numbers) ** 2).astype(np.float32)
        words = _words_of(self._event)
        words[self._places] = known[self._sources]
        event, first = new_event("modelV2", mono_time_ns=0), 0
        arrays: dict[str, Any] = {}
        for name, array in self._named.items():
            arrays[name] = known[first : first + array.size].reshape(array.shape)
            first += array.size
        fill_outputs(event, replace(self._outputs, **arrays))
        both = (words.tobytes(), _words_of(event).tobytes())
        if both[0] == both[1]:
            return
        found, wanted = (content(read_event(data)).to_dict() for data in both)
        names = [name for name, value in wanted.items() if found.get(name) != value]
        raise InternalError(
            f"modelV2: {', '.join(names)}: expected copies of single outputs, found what "
            "fill_outputs computes of them; compute it in fill_frame, this is a defect of modeld"
        )

    def fill(
        self,
        mono_time_ns: int,
        frame: FrameInfo,
        verdict: FrameVerdict,
        raw_predictions: bytes | None = None,
    ) -> bytes:
        """Return the bytes of the Event for the current outputs.

        `raw_predictions` are all raw vectors as float32 bytes, for debugging. With them, the
        message is filled field by field.
        """
        if raw_predictions is not None:
            event = new_event("modelV2", mono_time_ns=mono_time_ns)
            fill_model_v2(event, self._outputs, frame, verdict, raw_predictions)
            return bytes(event.to_bytes())
        event = self._event
        event.logMonoTime = mono_time_ns
        fill_frame(event, frame, verdict)
        np.concatenate(self._parts, out=self._numbers)
        words = _words_of(event)
        words[self._places] = self._numbers[self._sources]
        return words.tobytes()


def _words_of(event: Any) -> NDArray[np.float32]:
    """Return a copy of an event's bytes as float32 (n,). Cap'n Proto is always little-endian."""
    # The library warns if a message is serialized twice, which is intended here.
    event.clear_write_flag()
    return np.frombuffer(event.to_bytes(), "<f4").copy()
