"""A daemon, its car and its cameras as far as they are seen from outside, and a view's process."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cereal.clock import MonotonicClock
from cereal.frames import FrameRingWriter, nv12_format
from cereal.schema import new_event
from cereal.transport import ZmqTransport
from modeld.constants import X_IDXS
from modeld.health.reporter import HealthReporter
from modeld.health.snapshot import ServiceFacts
from modeld.state.loop_state import Fault, LoopState, Phase
from modeld.vehicle.cameras import find_cameras

CAMERA = find_cameras("mici", "os04c10").road
LAYOUT = nv12_format(CAMERA.width, CAMERA.height)
PERIOD_S = 0.05
MS = 1_000_000
DEVICE = ("deviceState", "roadCameraState", "liveCalibration", "carState")
ANSWERS = ("cameraOdometry", "drivingModelData", "modelV2")


def message(service: str, frame_id: int, mono_time_ns: int, *, valid: bool = True) -> bytes:
    """Return what is said of a frame; the road swings with it."""
    event = new_event(service, mono_time_ns=mono_time_ns, valid=valid)
    body = getattr(event, service)
    phase = frame_id / 12
    if service == "deviceState":
        body.deviceType = "mici"
    elif service == "roadCameraState":
        body.sensor, body.frameId = "os04c10", frame_id
    elif service == "liveCalibration":
        body.rpyCalib, body.height, body.calStatus = [0.0, 0.02, 0.01], [1.2], "calibrated"
    elif service == "carState":
        body.vEgo, body.aEgo = 20.0 + math.sin(phase), math.cos(phase)
        body.leftBlinker = frame_id % 40 < 20
    elif service == "cameraOdometry":
        body.trans, body.rot = [20.0, 0.0, 0.0], [0.0, 0.0, 0.02 * math.sin(phase)]
    elif service == "drivingModelData":
        body.laneLineMeta.leftY, body.laneLineMeta.rightY = -1.8, 1.7
    elif service == "modelV2":
        _fill_model(body, frame_id, phase)
    return bytes(event.to_bytes())


def _fill_model(model: Any, frame_id: int, phase: float) -> None:
    ahead = np.array(X_IDXS)
    bend = 4e-4 * math.sin(phase) * ahead**2
    model.frameId, model.modelExecutionTime = frame_id, 0.02 + 0.005 * math.sin(phase)
    model.position.x, model.position.y = ahead.tolist(), bend.tolist()
    model.position.z = [0.0] * len(ahead)
    model.velocity.x = [20.0] * len(ahead)
    for at, line in enumerate(model.init("laneLines", 4)):
        line.x, line.z = ahead.tolist(), [1.2] * len(ahead)
        line.y = (bend + 3.6 * (at - 1.5)).tolist()
    model.laneLineProbs = [0.4, 0.95, 0.9, 0.3]
    for sign, edge in zip((-1, 1), model.init("roadEdges", 2), strict=True):
        edge.x, edge.z = ahead.tolist(), [1.2] * len(ahead)
        edge.y = (bend + 7.5 * sign).tolist()
    lead = model.init("leadsV3", 1)[0]
    lead.x, lead.y, lead.v, lead.prob = [35.0], [0.2], [18.0], 0.9
    model.action.desiredCurvature = 8e-4 * math.sin(phase)
    model.action.desiredAcceleration = math.cos(phase)


def fill_frame(buffer: Any, frame_id: int) -> None:
    luma = buffer[: LAYOUT.stride * LAYOUT.height].reshape(LAYOUT.height, LAYOUT.stride)
    columns = np.arange(LAYOUT.stride)
    luma[:] = np.where((columns + 16 * frame_id) // 64 % 2, 60, 150).astype(np.uint8)
    buffer[LAYOUT.uv_offset :] = 128


@dataclass
class Speaker:
    """Speaks in a thread, as a daemon and its camera would; `answers` says if there is a daemon."""

    bus: str
    server: str = ""
    answers: bool = True
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Speak until told to stop."""
        with ExitStack() as stack:
            transport = ZmqTransport(self.bus)
            stack.callback(transport.close)
            ring = None
            if self.server:
                ring = FrameRingWriter(self.server, "road", LAYOUT)
                stack.callback(ring.close)
            publishers = {name: transport.publisher(name) for name in (*DEVICE, *ANSWERS)}
            state = LoopState(phase=Phase.RUNNING, model="spoken.pkl")
            state.faults[Fault.FRAME_OVERWRITTEN] = 2
            facts = ServiceFacts("driving", device="a device", driver="a driver 1.0")
            reporter = HealthReporter(facts, state, transport, MonotonicClock(), "modeldHealth")
            stack.callback(reporter.close)
            frame_id = 0
            while not self.stop.wait(PERIOD_S):
                frame_id += 1
                now_ns = time.monotonic_ns()
                if ring is not None:
                    fill_frame(ring.next_buffer(), frame_id)
                    ring.publish(frame_id, now_ns - 10 * MS, now_ns)
                for name in DEVICE:
                    publishers[name].send(message(name, frame_id, now_ns))
                if self.answers:
                    self._answer(state, publishers, frame_id, now_ns)
                    if frame_id % 10 == 0:
                        reporter.report(now_ns)

    def _answer(self, state: LoopState, publishers: Any, frame_id: int, now_ns: int) -> None:
        state.frames = state.published = state.valid = state.frame_id = frame_id
        state.published_ns = now_ns
        state.stages.begin(0)
        state.stages.mark("wait", 25 * MS)
        state.stages.mark("model", 45 * MS)
        for name in ANSWERS:
            publishers[name].send(message(name, frame_id, now_ns))


@contextmanager
def speaking(bus: str, server: str = "", *, answers: bool = True) -> Iterator[Speaker]:
    speaker = Speaker(bus, server, answers)
    thread = threading.Thread(target=speaker.run)
    thread.start()
    try:
        yield speaker
    finally:
        speaker.stop.set()
        thread.join()


def drive_log(frames: range, *, answers: bool = True) -> list[bytes]:
    """Return the Events of a drive of 20 frames a second."""
    services = (*DEVICE, *ANSWERS) if answers else DEVICE
    return [
        message(name, frame_id, (1000 + 50 * frame_id) * MS, valid=frame_id % 50 > 3)
        for frame_id in frames
        for name in services
    ]


def unpacked(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return text and picture of a message of the view."""
    (length,) = struct.unpack_from("<I", data)
    return json.loads(data[4 : 4 + length]), data[4 + length :]


class View:
    """A running `modeld view`, of words of its command line beside --json and --port 0."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.cli", "view", "--json", "--port", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, said = self.process.communicate()
            raise AssertionError(said)
        self.about: dict[str, Any] = json.loads(line)
        self.url: str = self.about["url"]
        self.port = int(self.url.rstrip("/").rpartition(":")[2])

    def stop(self, number: int) -> tuple[int, str]:
        """End it by a signal; return its exit code, and what it said."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=30)
        return self.process.returncode, said

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
