"""Plays a drive through the product: the daemon's own loop on a compiled artifact."""

from typing import Any

import numpy as np

from cereal.clock import ManualClock
from cereal.frames import Frame, FrameFormat, MemoryFrameSource
from cereal.pubsub import PubMaster
from cereal.schema import new_event, read_event
from cereal.transport import MemoryTransport
from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config
from modeld.daemon import PUBLICATIONS, Daemon
from modeld.inputs import SUBSCRIPTIONS, read_car_parameters
from runtime.program import Program
from tests.reference_loop.drive import Drive
from tests.reference_loop.loop import Car, Moment
from tests.reference_loop.warps import Lens, Picture


class Product:
    """A daemon, the cameras' ends, and the rest of the car on the same bus."""

    def __init__(
        self, program: Program, car: Car, first: Moment, *, single: bool = False, raw: bool = False
    ) -> None:
        self.clock, transport = ManualClock(), MemoryTransport()
        self.outputs = [transport.subscriber(name) for name in PUBLICATIONS]
        self.bus = PubMaster(SUBSCRIPTIONS, transport, self.clock)
        self.road = MemoryFrameSource(layout(first.road))
        self.wide = None if single else MemoryFrameSource(layout(first.wide))
        cameras = DeviceCameras(_camera(car.road), None if single else _camera(car.wide))
        self.program = program
        # A drive has two calibrations in all.
        config = Config(cameras=cameras, send_raw_predictions=raw, simulation=True)
        self.daemon = Daemon(config, program, transport, self.clock, self.road, self.wide)
        params = new_event("carParams", mono_time_ns=0)
        params.carParams.steerActuatorDelay = car.steer_delay
        params.carParams.longitudinalActuatorDelay = car.longitudinal_delay
        self.daemon.car = read_car_parameters(params.carParams)

    def step(self, now: Moment, sofs_ns: tuple[int, int]) -> dict[str, dict[str, Any]] | None:
        """What is published for a moment, in the reference's form; None where nothing is."""
        self._say(now)
        frames = [(self.road, now.road, now.frame_id, sofs_ns[0])]
        if self.wide is not None:
            frames.append((self.wide, now.wide, now.extra_id, sofs_ns[1]))
        for source, picture, frame_id, sof_ns in frames:
            source.push(Frame(picture.data, layout(picture), frame_id, sof_ns, now.eof_ns))
        self.clock.set_ns(now.eof_ns)
        assert self.daemon.step() is not None
        data = [output.receive(0) for output in self.outputs]
        if data == [None] * len(data):
            return None
        found = {}
        for name, content in zip(PUBLICATIONS, data, strict=True):
            assert content is not None, name
            event = read_event(content)
            body = getattr(event, name)
            found[name] = {"@valid": event.valid, **body.to_dict(verbose=True)}
        raw = found["modelV2"]["rawPredictions"]
        found["modelV2"]["rawPredictions"] = np.frombuffer(raw, np.float32).tolist()
        return found

    def close(self) -> None:
        """Leave the bus; the program stays the caller's."""
        self.daemon.close()

    def _say(self, now: Moment) -> None:
        driver = now.driver
        self._send(
            "carState",
            vEgo=driver.v_ego,
            leftBlinker=driver.left_blinker,
            rightBlinker=driver.right_blinker,
            steeringPressed=driver.steering_pressed,
            steeringTorque=driver.steering_torque,
            leftBlindspot=driver.left_blindspot,
            rightBlindspot=driver.right_blindspot,
        )
        self._send("carControl", latActive=driver.lat_active)
        self._send("driverMonitoringState", isRHD=now.is_rhd)
        self._send("liveDelay", lateralDelay=now.lateral_delay)
        self._send("roadCameraState", frameId=now.camera_id)
        if now.rpy is not None:
            self._send("liveCalibration", rpyCalib=list(now.rpy))

    def _send(self, service: str, **values: Any) -> None:
        event = self.bus.new(service)
        event.valid = True
        for name, value in values.items():
            setattr(getattr(event, service), name, value)
        self.bus.send(service, event)


def layout(picture: Picture) -> FrameFormat:
    """The format of a picture's buffer."""
    return FrameFormat(
        picture.width, picture.height, picture.stride, picture.uv_offset, picture.data.size
    )


def _camera(lens: Lens) -> Camera:
    return Camera(lens.width, lens.height, lens.focal)


def play(
    program: Program, car: Car, drive: Drive, *, single: bool = False, raw: bool = False
) -> list[Any]:
    """Messages of every moment of a drive, from a reset."""
    program.reset()
    product = Product(program, car, drive.moments[0], single=single, raw=raw)
    try:
        return [
            product.step(now, stamps)
            for now, stamps in zip(drive.moments, drive.stamps_ns, strict=True)
        ]
    finally:
        product.close()
