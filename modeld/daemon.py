"""The loop: pair frames, read the bus, run the model, publish what it says.

The only module that knows all the others. ``Daemon`` takes its clock, bus, program and cameras
from outside, so that replay runs the same code; ``run`` opens the real ones.
"""

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from cereal.clock import Clock, MonotonicClock
from cereal.errors import MessageError
from cereal.pubsub import PubMaster, SubMaster
from cereal.schema import reading
from cereal.transport import Transport, ZmqTransport
from modeld.actions import ActionFilter, rule_in_force
from modeld.calibration import Calibration, CameraPlan, sizes_of
from modeld.confidence import ConfidenceFilter, HardBrakeFilter
from modeld.config import Config
from modeld.desire import Desire, lane_change_machine
from modeld.driving_model import (
    DrivingModel,
    DrivingProgram,
    ModelInputs,
    ModelResult,
)
from modeld.drop_filter import DropFilter
from modeld.errors import (
    CameraConfigError,
    CameraSizeError,
)
from modeld.fill_message import (
    FrameInfo,
    FrameVerdict,
    fill_camera_odometry,
    fill_driving_model_data,
    fill_model_v2,
)
from modeld.frame_sync import CameraSource, FramePair, FrameSync
from modeld.inputs import (
    DEMO_CAR,
    SUBSCRIPTIONS,
    ActionTimes,
    BusInputs,
    DesirePulse,
    HostInputs,
    action_times,
    read_bus_inputs,
)
from modeld.loop_log import LoopLog
from modeld.params import UserDelay
from modeld.parse_outputs import DrivingOutputs
from modeld.startup import wait_for_cameras, wait_for_car
from modeld.warm_up import WarmUp

logger = logging.getLogger(__name__)

# Of models that keep their images themselves, not known: as of those with the longest gap known.
_GAP_INSIDE_MODEL: Final = 4
# In the order in which they are sent.
PUBLICATIONS: Final = ("modelV2", "drivingModelData", "cameraOdometry")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one iteration did.

    Attributes:
        frame_id: Id of the main frame.
        dropped: Frames missing just before it.
        published: The messages were sent; False after a drop if the model skips those.
        valid: They were marked valid.
        execution_time_s: Of the model, measured, whatever the clock; 0 if it did not run.
    """

    frame_id: int
    dropped: int
    published: bool
    valid: bool
    execution_time_s: float


class Daemon:
    """The state of the daemon and one iteration of its loop.

    Attributes:
        car: The car being driven; a built-in one until it is set.
        model: The loaded model.
        calibration: Warp matrices and whether they are known yet.
        lane_change: Lane change machine.
    """

    def __init__(
        self,
        config: Config,
        program: DrivingProgram,
        transport: Transport,
        clock: Clock,
        road: CameraSource | None,
        wide: CameraSource | None = None,
    ) -> None:
        """Bind a program to cameras and a bus.

        Args:
            config: Settings.
            program: A driving artifact's program; its state should be at reset.
            transport: The bus.
            clock: Stamps messages, judges their age, and times the model for what is published:
                with a clock that stands still the messages of two runs are the same bytes.
            road: The road camera, or None when only the wide one exists.
            wide: The wide camera, or None when there is only the road camera.

        Raises:
            ModelInterfaceError: The program is not a driving model, or not for these cameras.
            CameraConfigError: There is no camera, or they do not fit the configuration.
        """
        # A car with one camera only drives by that one, whichever it is.
        main = road if road is not None else wide
        if main is None:
            raise CameraConfigError("cameras: expected a road or a wide camera, got none")
        extra = wide if road is not None else None
        plan = CameraPlan(main_is_wide=road is None, single=extra is None, override=config.cameras)
        sizes = sizes_of(main.format, (extra or main).format)
        # A wrong camera in the settings is refused here, not at the first calibration.
        if config.cameras is not None:
            plan.views((config.cameras,), sizes)
        self.car = DEMO_CAR
        self.model = DrivingModel(program)
        self.calibration = Calibration(plan, sizes)
        # Filters and machines keep state from frame to frame, so there is one of each for the
        # daemon's life.
        self.lane_change = lane_change_machine(self.model.interface.lane_change)
        self._config = config
        self._clock = clock
        self._publications = PubMaster(PUBLICATIONS, transport, clock)
        self._messages = SubMaster(SUBSCRIPTIONS, transport, clock)
        self._user_delay = (
            UserDelay(config.parameters()) if config.bus_stack.has_delay_params else None
        )
        self._sync = FrameSync(main, extra, timeout_ms=config.frame_timeout_ms)
        self._drops = DropFilter()
        self._pulse = DesirePulse()
        self._host_inputs = HostInputs()
        self._action_rule = rule_in_force(
            self.model.interface.action, config.lat_smooth_s, config.long_smooth_s
        )
        self._actions = ActionFilter(self._action_rule)
        self._warm_up = WarmUp(self.model.history_runs)
        self._torn_runs = 0
        self._confidence = ConfidenceFilter()
        self._hard_brake = HardBrakeFilter()
        self._log = LoopLog()

    def close(self) -> None:
        """Give up the places on the bus; program, cameras and transport stay the caller's."""
        self._publications.close()
        self._messages.close()

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set.

        That is noticed after one wait for each camera: the frame timeout, and up to 100 ms more
        for the wide camera; besides these, an iteration takes only the model's time.
        """
        while not stop.is_set():
            self.step()

    def step(self) -> StepResult | None:
        """Do one iteration: wait for frames, run, publish.

        Returns:
            None when no pair of frames arrived in time, or none that the model can take.
        """
        frames = self._sync.receive()
        if frames is None:
            return None
        # A camera may come back as another one; what cannot be used is as if it had not come.
        try:
            self.model.check_frames(frames)
        except CameraSizeError as error:
            self._log.refused(error)
            return None
        # A timeout of 0 takes what has arrived: the frames have paced the loop already.
        self._messages.update(0)
        bus = self._read_bus()
        self._update_calibration(frames)
        # Drops are counted by frame ids, so each main frame goes in exactly once, also if it is
        # skipped.
        drop = self._drops.update(frames.main.frame_id)
        times = action_times(bus.lateral_delay_s, self.car, self._action_rule)
        inputs = self._model_inputs(frames, bus, times)
        skipped = drop.dropped > 0 and self.model.skip_on_drop
        if drop.dropped > 0:
            self._log.dropped(drop, frames, skipped=skipped)
        if skipped:
            # The frame still goes into the model's history, so that the next run sees consecutive
            # images.
            self.model.prepare(inputs)
            self._images_whole(frames)
            return StepResult(frames.main.frame_id, drop.dropped, False, False, 0.0)
        # This clock stamps messages and may stand still in a replay; `result` has the time that was
        # measured.
        start_ns = self._clock.now_ns()
        result = self.model.run(inputs)
        elapsed_ns = self._clock.now_ns() - start_ns
        self._count_run(result, frames)
        whole = self._images_whole(frames)
        # Messages go out in any case, as others wait for them; `valid` tells whether to act on
        # them.
        one_moment = not (frames.lacks_extra or frames.apart)
        valid = self.calibration.seen and result.finite and whole and one_moment
        frame = FrameInfo(
            frame_id=frames.main.frame_id,
            frame_id_extra=frames.extra.frame_id,
            # Frames that the camera has delivered since, by its own message; never negative if that
            # is late.
            frame_age=max(0, bus.road_frame_id - frames.main.frame_id),
            frame_drop_percent=drop.percent,
            dropped=drop.dropped,
            timestamp_eof_ns=frames.main.timestamp_eof_ns,
            execution_time_s=elapsed_ns * 1e-9,
            valid=valid,
            big=self.model.interface.big,
        )
        verdict = self._verdict(result.outputs, bus, times, frame)
        self._publish(result, frame, verdict)
        return StepResult(frame.frame_id, drop.dropped, True, valid, result.execution_time_s)

    def _read_bus(self) -> BusInputs:
        bus = read_bus_inputs(self._messages, clip_speed=self._action_rule.clip_speed)
        if self._user_delay is None:
            return bus
        delay_s = self._user_delay.update(bus.lateral_delay_s, self._messages.frame)
        return replace(bus, lateral_delay_s=delay_s)

    def _update_calibration(self, frames: FramePair) -> None:
        main, extra = frames.main.format, frames.extra.format
        self.calibration.fit(sizes_of(main, extra, lacks_extra=frames.lacks_extra))
        messages = self._messages
        # Calibration changes slowly, so warps are computed only when there is a new one.
        if not messages.updated["liveCalibration"]:
            return
        # The intrinsics depend on device and sensor, which are not known before both have been
        # heard.
        if self.calibration.needs_device and not (
            messages.seen["roadCameraState"] and messages.seen["deviceState"]
        ):
            return
        # A damaged list, or a device or sensor newer than our schema, must not end the loop.
        try:
            with reading("liveCalibration, deviceState or roadCameraState"):
                rpy_rad = messages["liveCalibration"].rpyCalib
                device_type = str(messages["deviceState"].deviceType)
                sensor = str(messages["roadCameraState"].sensor)
        except MessageError as error:
            self.calibration.reject(str(error))
            return
        self.calibration.update(rpy_rad, device_type, sensor)

    def _model_inputs(self, frames: FramePair, bus: BusInputs, times: ActionTimes) -> ModelInputs:
        host = self._host_inputs
        host.update(bus, times)
        return ModelInputs(
            frames=frames,
            main_transform=self.calibration.main_transform,
            extra_transform=self.calibration.extra_transform,
            # The pulse looks at the desire of the frame before: the model is asked, then the
            # machine moves on.
            desire_pulse=self._pulse.update(self.lane_change.desire),
            traffic_convention=host.traffic_convention,
            lateral_control_params=host.lateral_control_params,
            action_t=host.action_t,
        )

    def _verdict(
        self, outputs: DrivingOutputs, bus: BusInputs, times: ActionTimes, frame: FrameInfo
    ) -> FrameVerdict:
        """Draw the conclusions of one frame; advances the filters and the lane change."""
        action = self._actions.update(outputs, bus.vehicle.v_ego_mps, times)
        changing = outputs.desire_state[[Desire.LANE_CHANGE_LEFT, Desire.LANE_CHANGE_RIGHT]]
        # The lane change moves after the model has run, on what the model says of this frame.
        self.lane_change.update(bus.vehicle, float(changing.sum()))
        return FrameVerdict(
            action=action,
            confidence=self._confidence.update(outputs.meta, frame.frame_id),
            hard_brake_predicted=self._hard_brake.update(outputs.meta),
            lane_change_state=self.lane_change.state,
            lane_change_direction=self.lane_change.direction,
        )

    def _publish(self, result: ModelResult, frame: FrameInfo, verdict: FrameVerdict) -> None:
        raw = result.raw_bytes() if self._config.send_raw_predictions else None
        # All three are filled before any is sent, so that their stamps are close and none goes
        # alone.
        events = [self._publications.new(service) for service in PUBLICATIONS]
        fill_model_v2(events[0], result.outputs, frame, verdict, raw)
        fill_driving_model_data(events[1], result.outputs, frame, verdict)
        fill_camera_odometry(events[2], result.outputs, frame)
        for service, event in zip(PUBLICATIONS, events, strict=True):
            self._publications.send(service, event)

    def _images_whole(self, frames: FramePair) -> bool:
        """Tell whether the images of the model are of whole frames; once after each run.

        The rings are shared memory: a slow run may be overtaken by the camera's next frames. An
        image made of a torn pair stays in the queue, and is seen again `gap` runs later.
        """
        if self._sync.is_intact():
            whole = self._torn_runs == 0
            self._torn_runs = max(0, self._torn_runs - 1)
            return whole
        self._log.overwritten(frames)
        self._torn_runs = self.model.interface.image.gap or _GAP_INSIDE_MODEL
        return False

    def _count_run(self, result: ModelResult, frames: FramePair) -> None:
        if not result.finite:
            self._log.not_finite(frames)
            self._warm_up.restart()
            # The desire's history went with the reset, so a desire that lasts is sent again.
            self._pulse.reset()
        elif self._warm_up.ran():
            logger.info("histories full after %d runs", self._warm_up.needed)


def start(
    config: Config, program: DrivingProgram, stop: threading.Event, resources: ExitStack
) -> Daemon | None:
    """Connect to bus, cameras and car, in order of what fails first (see ADR 0026).

    Args:
        config: Settings.
        program: Of a driving artifact; stays the caller's.
        stop: Ends all waiting.
        resources: Closes what was opened.

    Returns:
        None when stopped.
    """
    transport = ZmqTransport(address=config.bus_address, stack=config.bus_stack)
    resources.callback(transport.close)
    cameras = wait_for_cameras(config.camera_server, stop)
    # Waiting ends without cameras only when the daemon was stopped.
    if cameras is None:
        return None
    resources.callback(cameras.close)
    daemon = Daemon(config, program, transport, MonotonicClock(), cameras.road, cameras.wide)
    logger.info(
        "cameras: %s%s; models %s; warm-up run took %.1f ms",
        "road" if cameras.road is not None else "",
        " wide" if cameras.wide is not None else "",
        daemon.model.checkpoints,
        daemon.model.warm_up() * 1e3,
    )
    if not config.demo:
        car = wait_for_car(transport, stop, config.parameters())
        if car is None:
            return None
        daemon.car = car
        logger.info("car: %s", car.name)
    return daemon
