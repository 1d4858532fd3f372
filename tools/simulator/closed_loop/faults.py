"""Faults between simulation and daemon, injected to test what the driving metrics can detect.

With each fault the outputs still look plausible, so only the drive reveals it. Faults of the model
are simulated by changing its inputs, so they can be injected into any artifact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.model.driving_model import DrivingProgram
from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.lib.wrapped_program import WrappedProgram
from tools.simulator.closed_loop.daemon_driver import Disturbance
from tools.simulator.closed_loop.device import Pictures
from tools.simulator.render.messages import ReportedValues
from tools.simulator.world.painting.backdrop import Picture

Bytes = NDArray[np.uint8]

# Suffixes of those inputs of a driving program that belong to pictures.
_OF_PICTURES = ("frame", "geometry", "transform")
# Error of the reported mounting angle, rad; half a degree.
_YAW_ERROR_RAD = 0.0087
_MILES_PER_HOUR = 2.23694


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: its name, its description in one line, and a factory that makes it for one drive."""

    name: str
    what: str
    plant: Callable[[], Disturbance]


class LateFeatures(WrappedProgram):
    """A program whose policy receives features that are one frame old.

    Features depend only on pictures. So running on the previous pictures and all other current
    inputs has the effect of a feature history that is updated after the policy has run.
    """

    def __init__(self, program: DrivingProgram) -> None:
        super().__init__(program)
        self._before: dict[str, NDArray[Any]] = {}

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Run with the pictures of the previous frame."""
        newest = {
            name: value.copy()
            for name, value in inputs.items()
            if name.rpartition("_")[2] in _OF_PICTURES
        }
        before, self._before = self._before or newest, newest
        return super().run({**inputs, **before}, entry)

    def reset(self) -> None:
        """Reset the states and forget the previous pictures."""
        self._before = {}
        super().reset()


def _each(change: Callable[[Picture], Picture]) -> Callable[[], Disturbance]:
    """Return a fault that changes each picture separately."""

    def plant() -> Disturbance:
        return Disturbance(
            pictures=lambda pictures: {name: change(one) for name, one in pictures.items()}
        )

    return plant


def _shifted(plane: Bytes) -> Bytes:
    """Return a plane shifted by half a sample to the right and down."""
    wide = plane.astype(np.uint16)
    left = np.concatenate([wide[:, :1], wide[:, :-1]], axis=1)
    pair = wide + left
    above = np.concatenate([pair[:1], pair[:-1]], axis=0)
    return np.asarray((pair + above + 2) >> 2, np.uint8)


def _shift_chroma(picture: Picture) -> Picture:
    return picture._replace(u=_shifted(picture.u), v=_shifted(picture.v))


def _swap_chroma(picture: Picture) -> Picture:
    return picture._replace(u=picture.v, v=picture.u)


def _stretch_luma(picture: Picture) -> Picture:
    """Return a limited-range picture decoded as full range: 16..235 becomes 0..255."""
    luma = (picture.luma.astype(np.int32) - 16) * 255 // 219
    return picture._replace(luma=np.clip(luma, 0, 255).astype(np.uint8))


def _delay_wide() -> Disturbance:
    before: list[Picture] = []

    def late(pictures: Pictures) -> Pictures:
        newest = Picture(*(plane.copy() for plane in pictures[WIDE_STREAM]))
        before.append(newest)
        shown = before.pop(0) if len(before) > 1 else newest
        return {WIDE_STREAM: shown, ROAD_STREAM: pictures[ROAD_STREAM]}

    return Disturbance(pictures=late)


def _misreported(change: Callable[[ReportedValues], ReportedValues]) -> Callable[[], Disturbance]:
    return lambda: Disturbance(reported=change)


def _turned(reported: ReportedValues) -> ReportedValues:
    roll, pitch, yaw = reported.rpy_rad
    return replace(reported, rpy_rad=(roll, pitch, yaw + _YAW_ERROR_RAD))


_ALL = (
    Fault(
        "cameras-swapped",
        "wide and road camera are exchanged",
        lambda: Disturbance(lenses_swapped=True),
    ),
    Fault(
        "features-late",
        "the policy sees features that are one frame old",
        lambda: Disturbance(program=LateFeatures),
    ),
    Fault("chroma-shifted", "chroma is half a sample to the right and down", _each(_shift_chroma)),
    Fault("chroma-swapped", "U and V are exchanged", _each(_swap_chroma)),
    Fault("luma-stretched", "limited-range luma is read as full range", _each(_stretch_luma)),
    Fault("wide-late", "the wide camera's picture is one frame old", _delay_wide),
    Fault(
        "delay-zero",
        "the reported steering delay is 0",
        _misreported(lambda reported: replace(reported, lateral_delay_s=0.0)),
    ),
    Fault("yaw-off", "the calibration is off by half a degree in yaw", _misreported(_turned)),
    Fault(
        "speed-in-miles",
        "the speed is reported in miles per hour",
        _misreported(
            lambda reported: replace(reported, speed_mps=_MILES_PER_HOUR * reported.speed_mps)
        ),
    ),
)
FAULTS: Mapping[str, Fault] = MappingProxyType({one.name: one for one in _ALL})
