"""The messages of the simulated car, made from the simulation."""

from __future__ import annotations

from collections.abc import Callable

from modeld.startup import ROAD_STREAM, WIDE_STREAM
from tools.closed_loop.simulation import Simulation
from tools.drives.drive import Message
from tools.render.car_messages import (
    CarReport,
    Control,
    Motion,
    Told,
    fill_camera_state,
    message_of,
)

# What the simulated car's device is: the smallest current one, so that it runs anywhere.
DEVICE, SENSOR = "mici", "os04c10"
# Before a picture is announced, it was read out, which takes that sensor 11 ms.
ENDED_BEFORE_NS = 1_000_000
EXPOSED_BEFORE_NS = 12_000_000
STATE_SERVICES = {WIDE_STREAM: "wideRoadCameraState", ROAD_STREAM: "roadCameraState"}

Falsify = Callable[[Told], Told]


class CarMessages:
    """Builds the messages of one drive.

    `falsify` changes what is told.
    """

    def __init__(self, simulation: Simulation, falsify: Falsify | None = None) -> None:
        self._simulation = simulation
        self._falsify = falsify

    def car_params(self, time_ns: int) -> list[Message]:
        """Return carParams."""
        return self._report().of_start(time_ns)

    def of_tick(self, time_ns: int) -> list[Message]:
        """Return carState and carControl."""
        return self._report().of_tick(time_ns)

    def of_frame(self, time_ns: int) -> list[Message]:
        """Return the messages of a frame, slower ones now and then; all with the first frame."""
        return self._report().of_frame(self._simulation.frame, time_ns)

    def _report(self) -> CarReport:
        simulation, car, trial = self._simulation, self._simulation.car, self._simulation.trial
        body, action, model = simulation.body, simulation.action, car.model
        told = Told(trial.told_rpy_rad(simulation.time_s), model.lateral_delay_s, car.speed_mps)
        return CarReport(
            motion=Motion(
                speed_mps=car.speed_mps,
                acceleration_mps2=car.acceleration_mps2,
                curvature_1pm=car.curvature_1pm,
                rpy_rad=(body.roll_rad, body.pitch_rad, car.heading_rad),
                steering_angle_deg=model.steering_angle_deg(car.curvature_1pm),
                blinker=simulation.blinker,
                nudge=simulation.nudge,
            ),
            wanted=Control(
                is_engaged=simulation.is_engaged,
                acceleration_mps2=action.acceleration_mps2,
                curvature_1pm=action.curvature_1pm,
                steering_angle_deg=model.steering_angle_deg(action.curvature_1pm),
            ),
            told=told if self._falsify is None else self._falsify(told),
            rpy_rad=trial.rpy_rad,
            height_m=trial.height_m,
            set_speed_mps=simulation.set_speed_mps,
            device=DEVICE,
            model=model,
        )


def camera_message(stream: str, frame_id: int, now_ns: int) -> Message:
    """Return the state that announces a frame."""
    exposed_ns = (now_ns - EXPOSED_BEFORE_NS, now_ns - ENDED_BEFORE_NS)
    return message_of(
        STATE_SERVICES[stream],
        now_ns,
        lambda state: fill_camera_state(state, frame_id, exposed_ns, SENSOR),
    )
