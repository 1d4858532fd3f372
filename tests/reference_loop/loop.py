"""The loop: one moment after the other through warps, histories, models and rules."""

import base64
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.reference_loop.messages import About, messages, meta_column
from tests.reference_loop.parse import parse
from tests.reference_loop.revisions import Facts
from tests.reference_loop.rules import (
    DT,
    MACHINES,
    NO_DESIRE,
    Action,
    Confidence,
    Driver,
    HardBrake,
    act,
)
from tests.reference_loop.warps import ROAD_VIEW, WIDE_VIEW, Lens, Picture, transform, view

Array = NDArray[Any]
CAUSES = ("brakeDisengageProbs", "gasDisengageProbs", "steerOverrideProbs")


@dataclass(frozen=True, slots=True)
class Moment:
    """A pair of frames and what the bus says at that time.

    `rpy` is a new calibration, or None where none has come since the moment before; `camera_id`
    is the newest id that the camera process announced.
    """

    frame_id: int
    extra_id: int
    eof_ns: int
    road: Picture
    wide: Picture
    driver: Driver
    is_rhd: bool
    lateral_delay: float
    camera_id: int
    rpy: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True)
class Car:
    """Delays of the actuators in seconds, and the lenses of both views."""

    steer_delay: float
    longitudinal_delay: float
    road: Lens
    wide: Lens

    def with_one_camera(self) -> "Car":
        """Both views come from the road camera, with its lens."""
        return replace(self, wide=self.road)


Row = NDArray[np.float32]


class Past:
    """Rows since the start; what was before it is zero."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.rows: list[Row] = []

    def push(self, row: Row) -> None:
        """Append a copy of a row, reshaped."""
        self.rows.append(np.array(row, np.float32).reshape(self.shape))

    def back(self, age: int) -> Row:
        """The row of an age <= 0; zeros from before the start."""
        at = len(self.rows) - 1 + age
        return self.rows[at] if at >= 0 else np.zeros(self.shape, np.float32)

    def at(self, ages: Sequence[int]) -> NDArray[np.float32]:
        """Rows of several ages, (n, *shape)."""
        return np.stack([self.back(age) for age in ages])

    def largest(self, groups: int, of: int) -> NDArray[np.float32]:
        """Elementwise maximum of groups of consecutive rows; the newest row ends the last."""
        found = []
        for group in range(groups):
            end = -(groups - 1 - group) * of
            found.append(np.max([self.back(end - i) for i in range(of)], axis=0))
        return np.stack(found)


class Images:
    """The pictures of one camera as the models see them, (6, 128, 256) uint8 each."""

    def __init__(self) -> None:
        self.recent: list[NDArray[np.uint8]] = []

    def push(self, image: NDArray[np.uint8]) -> None:
        """Append the newest; only the last few are ever asked for."""
        self.recent = [*self.recent[-9:], image]

    def pair(self, gap: int) -> NDArray[np.uint8]:
        """(12, 128, 256): the picture of `gap` frames before, then the newest."""
        black = np.zeros((6, 128, 256), np.uint8)
        before = self.recent[-1 - gap] if len(self.recent) > gap else black
        return np.concatenate([before, self.recent[-1]])


class _Slices(pickle.Unpickler):
    """Reads the pickled dict of slices that exporters put into ONNX files, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != ("builtins", "slice"):
            raise pickle.UnpicklingError(f"{module}.{name}")
        return slice


class Model:
    """One ONNX file in onnxruntime."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
        properties = self.session.get_modelmeta().custom_metadata_map
        packed = base64.b64decode(properties["output_slices"])
        self.slices: dict[str, slice] = _Slices(io.BytesIO(packed)).load()
        self.inputs = {i.name: (i.shape, _dtype(i.type)) for i in self.session.get_inputs()}
        self.states = {
            name: np.zeros(shape, kind)
            for name, (shape, kind) in self.inputs.items()
            if f"next_{name}" in {o.name for o in self.session.get_outputs()}
        }
        self.vector = np.zeros(0, np.float32)

    def run(self, given: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        feed = {
            name: np.asarray(given[name]).reshape(shape).astype(kind)
            for name, (shape, kind) in self.inputs.items()
            if name not in self.states
        }
        names = [o.name for o in self.session.get_outputs()]
        found = dict(zip(names, self.session.run(None, feed | self.states), strict=True))
        self.states = {name: found[f"next_{name}"] for name in self.states}
        vector = next(v for n, v in found.items() if not n.startswith("next_"))
        # A copy, as the device returned it.
        self.vector = vector.reshape(-1).astype(np.float32)
        return {name: self.vector[where] for name, where in self.slices.items() if name != "pad"}


def _dtype(onnx_type: str) -> Any:
    return {"float": np.float32, "float16": np.float16, "uint8": np.uint8}[
        onnx_type.removeprefix("tensor(").removesuffix(")")
    ]


class Loop:
    """The reference of one drive.

    `models`: role -> ONNX file. `views`: warped pictures of earlier loops, shared between them.
    `raw`: whether the messages carry the models' vectors.
    """

    def __init__(
        self,
        facts: Facts,
        models: Mapping[str, Path],
        car: Car,
        views: dict[Any, Array],
        *,
        raw: bool = False,
    ) -> None:
        assert set(models) == set(facts.order), (sorted(models), facts.order)
        self.facts, self.car, self.views, self.raw = facts, car, views, raw
        self.models = [Model(models[role]) for role in facts.order]
        self.images = {"road": Images(), "wide": Images()}
        self.desires = Past((8,))
        self.features: Past | None = None
        self.curvatures = Past((1,))
        self.matrices = {name: np.zeros((3, 3), np.float32) for name in self.images}
        self.calibrated = False
        self.machine = MACHINES[facts.machine]()
        self.desire, self.level = NO_DESIRE, np.zeros(8, np.float32)
        self.confidence, self.hard_brake = Confidence(), HardBrake()
        self.action = Action()
        self.last_id: int | None = None
        self.drops, self.count = 0.0, 0

    def step(self, now: Moment) -> dict[str, dict[str, Any]] | None:
        facts = self.facts
        if now.rpy is not None:
            self.matrices = {
                "road": transform(self.car.road, ROAD_VIEW, now.rpy),
                "wide": transform(self.car.wide, WIDE_VIEW, now.rpy),
            }
            self.calibrated = True
        dropped, percent = self._count_drops(now.frame_id)
        self._push_images(now)
        pulse = self._pulse()
        self.desires.push(pulse)
        if dropped > 0 and facts.drop == "skip":
            return None
        times, host = self._host_inputs(now)
        parsed = parse(self.run({**host, "pulse": pulse}))
        self.action = act(facts, parsed, self._speed(now), times, self.action)
        changing = float(parsed["desire_state"][3] + parsed["desire_state"][4])
        self.desire = self.machine.step(now.driver, changing)
        causes = [meta_column(parsed, name) for name in CAUSES]
        hard = [meta_column(parsed, f"brake{n}MetersPerSecondSquaredProbs") for n in (5, 3)]
        about = About(
            frame_id=now.frame_id,
            frame_id_extra=now.extra_id,
            frame_age=max(0, now.camera_id - now.frame_id),
            drop_percent=percent,
            dropped=dropped,
            eof_ns=now.eof_ns,
            valid=self.calibrated,
            big=facts.big,
            action=self.action,
            confidence=self.confidence.step(now.frame_id, causes),
            hard_brake=self.hard_brake.step(hard[0][0], hard[1][0]),
            lane_change_state=self.machine.state,
            lane_change_direction=self.machine.direction,
            raw=[v for model in self.models for v in model.vector.tolist()] if self.raw else [],
        )
        return messages(parsed, about)

    def _count_drops(self, frame_id: int) -> tuple[int, float]:
        """Missing ids before this one, and the filtered share in percent."""
        last = frame_id - 1 if self.last_id is None else self.last_id
        dropped, self.last_id = max(0, frame_id - last - 1), frame_id
        alpha = DT / (10.0 + DT)
        self.drops = (1 - alpha) * self.drops + alpha * min(dropped, 10)
        if self.count < 10:
            self.drops = 0.0
        self.count += 1
        return dropped, 100 * self.drops / (1 + self.drops)

    def _push_images(self, now: Moment) -> None:
        for name, picture in (("road", now.road), ("wide", now.wide)):
            matrix, mode = self.matrices[name], self.facts.image_mode
            key = (picture.key, mode, matrix.tobytes())
            if key not in self.views:
                self.views[key] = view(picture, matrix, mode)
            self.images[name].push(self.views[key])

    def _pulse(self) -> NDArray[np.float32]:
        """One frame long, where a desire begins; none is no desire."""
        level = np.zeros(8, np.float32)
        if self.desire != NO_DESIRE:
            level[self.desire] = 1.0
        pulse = np.where(level - self.level > 0.99, level, 0).astype(np.float32)
        self.level = level
        return pulse

    def _speed(self, now: Moment) -> float:
        """vEgo, not below zero from October 2024 on."""
        speed = float(np.float32(now.driver.v_ego))
        return max(speed, 0.0) if self.facts.clip_speed else speed

    def _host_inputs(self, now: Moment) -> tuple[tuple[float, float], dict[str, Array]]:
        """When a command takes effect, and what the host tells the models."""
        facts = self.facts
        source = self.car.steer_delay if facts.delay == "steerActuatorDelay" else now.lateral_delay
        lateral = float(np.float32(source)) + facts.extra_delay + facts.lat_tau
        longitudinal = float(np.float32(self.car.longitudinal_delay)) + facts.long_tau
        times = (lateral + facts.frame_delay, longitudinal + facts.frame_delay)
        side = np.zeros((1, 2))
        side[0, int(now.is_rhd)] = 1
        return times, {
            "traffic_convention": side,
            "lateral_control_params": np.array([[self._speed(now), lateral]]),
            "action_t": np.array([times]),
        }

    def run(self, host: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        """All heads of a frame; a later model's head replaces an earlier one's.

        `host`: what the host tells the models, and `pulse`, the desire that was pushed last.
        """
        heads: dict[str, NDArray[np.float32]] = {}
        own = None
        for model in self.models:
            found = model.run(self._given(model, host))
            heads |= found
            if "hidden_state" in found:
                own = found["hidden_state"]
                if self.facts.features_current:
                    self._push_features(own)
        if own is not None and not self.facts.features_current:
            self._push_features(own)
        if "desired_curvature" in heads and self.facts.curvatures:
            self.curvatures.push(
                heads["desired_curvature"][:1] * np.float32(self.facts.curvature_scale)
            )
        return heads

    def _push_features(self, row: NDArray[np.float32]) -> None:
        if self.features is None:
            self.features = Past(row.shape)
        self.features.push(row)

    def _given(self, model: Model, host: Mapping[str, Array]) -> dict[str, Array]:
        """Every input that a model of any revision may have."""
        facts = self.facts
        given = dict(host)
        for name in model.inputs:
            camera = "wide" if name.startswith("big_") else "road"
            if name.removeprefix("big_") in ("img", "input_imgs"):
                given[name] = self.images[camera].pair(facts.image_gap)
            elif name in ("warped", "new_img"):
                given[name] = np.stack([self.images[c].recent[-1] for c in ("road", "wide")])
            elif name in ("desire", "desire_pulse"):
                pulse = host["pulse"]
                given[name] = self.desires.largest(*facts.desire) if facts.desire else pulse
            elif name == "features_buffer":
                given[name] = self._samples(self.features, facts.features, model.inputs[name][0])
            elif name == "prev_desired_curv":
                given[name] = self.curvatures.at(_newest_last(facts.curvatures))
        return given

    def _samples(self, past: Past | None, ages: tuple[int, ...], shape: list[int]) -> Array:
        """Rows by their age in frames; 0 is this frame's own row, if it is there yet."""
        if past is None:
            return np.zeros(shape, np.float32)
        return past.at(ages if self.facts.features_current else _newest_last(ages))


def _newest_last(ages: tuple[int, ...]) -> tuple[int, ...]:
    """Ages relative to a run -> relative to the end of a list whose newest row is a run older."""
    return tuple(age + 1 for age in ages)
