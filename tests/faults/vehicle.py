"""All that the car says on the bus, in a thread; each message can stop, freeze or be damaged."""

import threading
import time
from collections.abc import Callable
from typing import Any

from cereal.clock import MonotonicClock
from cereal.pubsub import PubMaster
from cereal.transport import ZmqTransport

TICK_S = 0.01
# Each so many ticks: the rates of the car, carState at half of its 100 Hz.
TICKS = {
    "carState": 2,
    "carControl": 2,
    "driverMonitoringState": 5,
    "roadCameraState": 5,
    "liveCalibration": 25,
    "liveDelay": 25,
    "deviceState": 50,
}


# What they say where nothing is wrong.
ORDINARY: dict[str, dict[str, Any]] = {
    "deviceState": {"deviceType": "pc", "started": True},
    "liveCalibration": {
        "calStatus": "calibrated",
        "calPerc": 100,
        "rpyCalib": [0.0, 0.02, 0.01],
        "rpyCalibSpread": [0.0, 0.0, 0.0],
        "wideFromDeviceEuler": [0.0, 0.0, 0.0],
        "height": [1.22],
    },
    "liveDelay": {"lateralDelay": 0.2, "status": "estimated"},
    "carState": {"vEgo": 20.0, "canValid": True},
    "carControl": {"latActive": True},
}


class Vehicle:
    """Publishers of what the daemon listens to.

    Attributes:
        stopped: services that send nothing.
        frozen: services that send their last message again and again.
        changes: by service, the values of fields that are others than ordinarily.
        junk: by service, bytes that are sent in place of a message.
        frame_id: of the camera's state; asked for each message.
    """

    def __init__(self, bus: str, frame_id: Callable[[], int]) -> None:
        self.stopped: set[str] = set()
        self.frozen: set[str] = set()
        self.changes: dict[str, dict[str, Any]] = {}
        self.junk: dict[str, bytes] = {}
        self.frame_id = frame_id
        self._transport = ZmqTransport(bus)
        self._publisher = PubMaster(tuple(TICKS), self._transport, MonotonicClock())
        self._last: dict[str, bytes] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vehicle", daemon=True)
        self._thread.start()

    def reset(self) -> None:
        """Go back to a healthy car."""
        self.stopped.clear()
        self.frozen.clear()
        self.changes.clear()
        self.junk.clear()

    def close(self) -> None:
        """End the thread and give up the places on the bus."""
        self._stop.set()
        self._thread.join()
        self._publisher.close()
        self._transport.close()

    def _run(self) -> None:
        tick = 0
        due_s = time.monotonic()
        while not self._stop.is_set():
            for service, ticks in TICKS.items():
                if tick % ticks == 0 and service not in self.stopped:
                    self._publisher.send(service, self._message(service))
            tick += 1
            due_s = max(due_s + TICK_S, time.monotonic())
            self._stop.wait(max(0.0, due_s - time.monotonic()))

    def _message(self, service: str) -> bytes:
        junk = self.junk.get(service)
        if junk is not None:
            return junk
        if service in self.frozen and service in self._last:
            return self._last[service]
        event = self._publisher.new(service)
        event.valid = True
        values = {**ORDINARY.get(service, {}), **self.changes.get(service, {})}
        if service == "roadCameraState":
            values["frameId"] = max(0, self.frame_id())
        for name, value in values.items():
            setattr(getattr(event, service), name, value)
        self._last[service] = event.to_bytes()
        return self._last[service]
