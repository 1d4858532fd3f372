"""Plays a drive through the product: the daemon's own loop on a compiled artifact."""

from typing import Any

import numpy as np

from cereal.frames import Frame, FrameFormat, MemoryFrameSource
from cereal.schema import new_event
from modeld.daemon import PUBLICATIONS, Daemon
from modeld.service.config import Config
from modeld.vehicle.cameras import Camera, DeviceCameras
from modeld.vehicle.inputs import read_car_parameters
from runtime.run.program import Program
from tests.modeld import bench
from tests.reference_loop.drive import Drive
from tests.reference_loop.loop import Car, Moment
from tests.reference_loop.warps import Lens, Picture


class Product(bench.Car):
    """A daemon, the cameras' ends, and the rest of the car on the same bus."""

    def __init__(self, program: Program, car: Car, first: Moment, *, single: bool, raw: bool):
        super().__init__(now_ns=0)
        self.road = MemoryFrameSource(layout(first.road))
        self.wide = None if single else MemoryFrameSource(layout(first.wide))
        cameras = DeviceCameras(_camera(car.road), None if single else _camera(car.wide))
        # A drive has two calibrations in all.
        config = Config(cameras=cameras, send_raw_predictions=raw, simulation=True)
        self.daemon = Daemon(config, program, self.transport, self.clock, self.road, self.wide)
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
        said = self.hear()
        assert list(said) in ([], list(PUBLICATIONS))
        if not said:
            return None
        found = {
            name: {"@valid": event.valid, **getattr(event, name).to_dict(verbose=True)}
            for name, event in said.items()
        }
        raw = found["modelV2"]["rawPredictions"]
        found["modelV2"]["rawPredictions"] = np.frombuffer(raw, np.float32).tolist()
        return found

    def _say(self, now: Moment) -> None:
        driver = now.driver
        self.send(
            "carState",
            vEgo=driver.v_ego,
            leftBlinker=driver.left_blinker,
            rightBlinker=driver.right_blinker,
            steeringPressed=driver.steering_pressed,
            steeringTorque=driver.steering_torque,
            leftBlindspot=driver.left_blindspot,
            rightBlindspot=driver.right_blindspot,
        )
        self.send("carControl", latActive=driver.lat_active)
        self.send("driverMonitoringState", isRHD=now.is_rhd)
        self.send("liveDelay", lateralDelay=now.lateral_delay)
        self.send("roadCameraState", frameId=now.camera_id)
        if now.rpy is not None:
            self.send("liveCalibration", rpyCalib=list(now.rpy))


def layout(picture: Picture) -> FrameFormat:
    size = picture.width, picture.height
    return FrameFormat(*size, picture.stride, picture.uv_offset, picture.data.size)


def _camera(lens: Lens) -> Camera:
    return Camera(lens.width, lens.height, lens.focal)


def play(
    program: Program, car: Car, drive: Drive, *, single: bool = False, raw: bool = False
) -> list[Any]:
    """Messages of every moment of a drive, from a reset; the program stays the caller's."""
    program.reset()
    product = Product(program, car, drive.moments[0], single=single, raw=raw)
    try:
        moments = zip(drive.moments, drive.stamps_ns, strict=True)
        return [product.step(now, stamps) for now, stamps in moments]
    finally:
        product.daemon.close()
