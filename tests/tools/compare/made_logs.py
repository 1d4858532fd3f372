"""Outputs of a daemon written by hand: smooth functions of the frame id, changed where asked."""

import functools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from cereal.schema import new_event, read_event
from tests.cereal.shared import write_log

__all__ = ["drive", "move_lines", "unchanged", "write_log", "write_pair"]

Change = Callable[[str, int, Any], None]
"""Gets the service, the frame id and the Event's builder; changes what it likes."""

SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")
FRAME_NS = 50_000_000


def unchanged(_service: str, _frame_id: int, _event: Any) -> None:
    """Change nothing."""


def drive(
    frames: Iterable[int],
    change: Change = unchanged,
    services: Iterable[str] = SERVICES,
    valid_from: int = 0,
) -> list[bytes]:
    """Return the Events of some frames, three for each, in the order of the daemon.

    Args:
        frames: frame ids.
        change: called with every Event before it is written.
        services: which of them.
        valid_from: frames before this one are not calibrated.
    """
    events = []
    for frame_id in frames:
        for service in services:
            data = _as_it_is(service, frame_id, frame_id >= valid_from)
            if change is not unchanged:
                event = read_event(data).as_builder()
                change(service, frame_id, event)
                data = event.to_bytes()
            events.append(data)
    return events


@functools.cache
def _as_it_is(service: str, frame_id: int, valid: bool) -> bytes:
    event = new_event(service, mono_time_ns=frame_id * FRAME_NS + 20_000_000, valid=valid)
    body = getattr(event, service)
    if service not in ("carState", "carControl"):
        body.frameId = frame_id
    if service == "modelV2":
        _fill_model(frame_id, body)
    elif service == "drivingModelData":
        body.laneLineMeta.leftY = -1.8 + 0.1 * math.sin(frame_id / 20)
        body.modelExecutionTime = 0.01 + 1e-3 * math.sin(frame_id)
    elif service == "cameraOdometry":
        body.trans = [15.0 + 0.1 * math.sin(frame_id / 10), 0.01, 0.0]
        body.timestampEof = frame_id * FRAME_NS
    elif service == "driverStateV2":
        body.leftDriverData.faceProb = 0.5 + 0.4 * math.sin(frame_id / 30)
    elif service == "carState":
        body.vEgo = 15.0 + frame_id
    return bytes(event.to_bytes())


def _fill_model(frame_id: int, model: Any) -> None:
    phase = frame_id / 25 + np.arange(33) / 10
    model.timestampEof = frame_id * FRAME_NS
    model.modelExecutionTime = 0.01 + 1e-3 * math.sin(frame_id)
    model.position.x = (15.0 * np.arange(33) / 10 + np.sin(phase)).tolist()
    model.position.y = np.sin(phase).tolist()
    for index, line in enumerate(model.init("laneLines", 4)):
        line.y = (index - 1.5 + 0.2 * np.sin(phase)).tolist()
    model.laneLineProbs = [0.5 + 0.1 * index for index in range(4)]
    model.confidence = "green"
    model.action.desiredCurvature = 1e-3 * math.sin(frame_id / 50)


def write_pair(place: Path, left: Iterable[bytes], right: Iterable[bytes]) -> tuple[Path, Path]:
    return write_log(place / "left.rlog", left), write_log(place / "right.rlog", right)


def move_lines(service: str, frame_id: int, event: Any) -> None:
    """Move a point of a lane line by a quarter of a metre, from frame 120 on."""
    if service == "modelV2" and frame_id >= 120:
        event.modelV2.laneLines[2].y[5] += 0.25
