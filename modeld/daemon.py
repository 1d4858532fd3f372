"""The main loop of the driving daemon.

Each iteration pairs camera frames, reads the bus, runs the model and publishes its outputs.
``Daemon`` is given its clock, bus, program and cameras, so replay runs the same code. ``start``
opens the real ones and builds the daemon.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from cereal.cameras import CameraSource
from cereal.clock import Clock, MonotonicClock
from cereal.pubsub import PubMaster, SubMaster
from cereal.transport import Transport
from modeld.errors import CameraConfigError, CameraSizeError
from modeld.frames.frame_judge import DropFilter
from modeld.frames.frame_log import LoopLog, SyncLog
from modeld.frames.frame_sync import FramePair, FrameSync
from modeld.judgement import Judgement
from modeld.model.driving_model import DrivingModel, DrivingProgram, ModelInputs, ModelResult
from modeld.model.model_session import ModelSession
from modeld.outputs.fill_message import (
    FrameInfo,
    fill_camera_odometry,
    fill_driving_model_data,
)
from modeld.outputs.verdict import FrameVerdict, rule_in_force
from modeld.service.config import Config
from modeld.startup import ServiceParts, wait_for_cameras, wait_for_car
from modeld.state.episodes import Episodes
from modeld.state.loop_state import Fault, LoopState, Phase, RunGuard
from modeld.vehicle.calibration import Calibration, CameraPlan, sizes_of
from modeld.vehicle.desire import LaneChangeMachine
from modeld.vehicle.inputs import DEMO_CAR, SUBSCRIPTIONS, BusInputs, BusReader
from modeld.vehicle.model_params import PERIOD_MS, CarWatch, UserDelay, log_differences
from modeld.vehicle.params import Params
from modeld.vehicle.validity import Freshness
from runtime.errors import RuntimeFault

logger = logging.getLogger(__name__)

# Published services, in the order of sending.
PUBLICATIONS: Final = ("modelV2", "drivingModelData", "cameraOdometry")


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one iteration."""

    frame_id: int  # id of the main frame
    dropped: int  # number of frames missing just before it
    published: bool  # False if the model was skipped because frames were dropped
    valid: bool  # the messages were marked valid
    execution_time_s: float  # measured time of the model run; 0 if it did not run


class Daemon:
    """The state of the daemon and one iteration of its loop.

    Attributes:
        car: The car being driven; a built-in one until it is set.
        car_watch: Detects the car of the next drive; inactive until it is set.
        state: Progress of the loop, which other threads may read.
        guard: Marks in `state` when the model is running.
    """

    def __init__(  # noqa: PLR0913 -- the parts of a loop, each from outside
        self,
        config: Config,
        program: DrivingProgram,
        transport: Transport,
        clock: Clock,
        road: CameraSource | None,
        wide: CameraSource | None = None,
        *,
        late_wide: CameraSource | None = None,
        fallback: DrivingProgram | None = None,
        state: LoopState | None = None,
    ) -> None:
        """Bind a program to cameras and a bus.

        Args:
            config: Settings.
            program: The program of a driving artifact, with its state at reset.
            transport: The bus.
            clock: Stamps messages, determines their age and times the model for the published
                execution time. With a clock that stands still, two runs publish identical bytes.
            road: The road camera, or None if only the wide one exists.
            wide: The wide camera, or None if only the road camera exists.
            late_wide: The wide camera to use if the device turns out to have one, without `wide`.
            fallback: Program of the model that takes over when `program` fails, or None.
            state: Receives the loop's progress; None: a new one.

        Raises:
            ModelInterfaceError: A program is not a driving model, or does not fit these cameras.
            CameraConfigError: There is no camera.
        """
        # With a single camera, that one is the main camera, road or wide.
        main = road if road is not None else wide
        if main is None:
            raise CameraConfigError("cameras: expected a road or a wide camera, got none")
        extra = wide if road is not None else None
        plan = CameraPlan(main_is_wide=road is None, single=extra is None, override=config.cameras)
        self.car = DEMO_CAR
        self.car_watch = CarWatch(None)
        # Cameras that do not fit the settings are not an error here; their frames are refused.
        self.calibration = Calibration(plan, sizes_of(main.format, (extra or main).format))
        self.state = LoopState() if state is None else state
        self.guard = RunGuard(self.state)
        # Filters and state machines keep state across frames, so each is created once per daemon or
        # once per model.
        self._session = ModelSession(config, program)
        self._fallback = None if fallback is None else ModelSession(config, fallback)
        self.state.model = self._session.name
        self._config = config
        self._clock = clock
        self._publications = PubMaster(PUBLICATIONS, transport, clock)
        self._messages = SubMaster(SUBSCRIPTIONS, transport, clock)
        episodes = Episodes(clock, logger, self.state)
        main_name = "wide" if plan.main_is_wide else "road"
        self._sync = FrameSync(
            main, extra, SyncLog(episodes, main_name), timeout_ms=config.frame_timeout_ms
        )
        is_timed = not config.simulation
        freshness = Freshness(self._messages, enabled=is_timed)
        users = config.bus_stack.has_delay_params
        delay = UserDelay(Params(config.parameters())).update if users else None
        self._bus = BusReader(self._messages, episodes, freshness=freshness, delay_to_use=delay)
        self._judgement = Judgement(
            self.calibration, self._messages, episodes, freshness, main_name, is_timed=is_timed
        )
        self._drops = DropFilter()
        self._log = LoopLog(episodes)
        self._late_wide = late_wide
        self._expect_wide()

    @property
    def model(self) -> DrivingModel:
        """The model in use."""
        return self._session.model

    @property
    def lane_change(self) -> LaneChangeMachine:
        """The lane change machine in use."""
        return self._session.lane_change

    @property
    def take_over(self) -> Callable[[str], None] | None:
        """Function that switches to the fallback model; None if there is none or it is in use."""
        return None if self._fallback is None else self._fall_back

    def _fall_back(self, reason: str) -> None:
        """Use the fallback model from the next frame on, until this daemon ends.

        Called between frames, or by another thread after it has given up the current run.
        """
        session = self._fallback
        assert session is not None  # only `take_over` hands this method out
        session.continue_from(self._session)
        self._session, self._fallback = session, None
        self.state.model, self.state.fallback = session.name, reason
        logger.error("model given up: %s; switching to the fallback model %s", reason, session.name)

    def close(self) -> None:
        """Close publishers and subscribers. The caller closes program, cameras and transport."""
        self._publications.close()
        self._messages.close()

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set.

        A stop is noticed after at most one wait per camera: the frame timeout, plus up to 100 ms
        for the wide camera. The rest of an iteration takes only the model's run time.

        Raises:
            RuntimeFault: The device failed, and there is no fallback model.
            RunAbandonedError: Another thread has given up this one's run.
        """
        self.state.phase = Phase.RUNNING
        self._sync.log.is_ending = stop.is_set
        while not stop.is_set():
            self.step()

    def step(self) -> StepResult | None:
        """Do one iteration: wait for frames, run the model, publish.

        Returns None if no usable pair of frames arrived in time. Raises as `run_forever`.
        """
        state, stages = self.state, self.state.stages
        stages.begin(time.monotonic_ns())
        frames = self._sync.receive()
        state.iterated_ns = time.monotonic_ns()
        if frames is None or not self._usable(frames):
            # No frame waits for its messages, not even one that was only prepared earlier.
            state.awaiting_ns = 0
            return None
        # A timeout of 0 reads only messages that have arrived; the frames already pace the loop.
        self._messages.update(0)
        stages.mark("wait", state.iterated_ns)
        state.awaiting_ns = state.awaiting_ns or state.iterated_ns
        self._bus.clip_speed = self._session.clips_speed
        bus = self._bus.read(self._clock.now_ns())
        self.car = self.car_watch.update(self.car, self._messages.frame)
        self._judge(frames, bus)
        # Drops are counted by frame id, so every main frame must be counted once, even if the model
        # skips it.
        drop = self._drops.update(frames.main.frame_id)
        session = self._session
        times = session.times(bus.lateral_delay_s, self.car)
        inputs = session.inputs(frames, bus, times, self.calibration)
        stages.mark("inputs", time.monotonic_ns())
        state.frames += 1
        state.frame_id = frames.main.frame_id
        skipped = drop.dropped > 0 and self.model.skip_on_drop
        if drop.dropped > 0:
            self._log.dropped(drop, frames.main.frame_id, skipped=skipped)
        if skipped:
            self._prepare(inputs, frames)
            return StepResult(frames.main.frame_id, drop.dropped, False, False, 0.0)
        # This clock stamps messages and may stand still in a replay. The measured time is in
        # `result`.
        start_ns = self._clock.now_ns()
        result = self._run(inputs, frames)
        elapsed_ns = self._clock.now_ns() - start_ns
        stages.mark("model", time.monotonic_ns())
        intact = self._images_intact(frames)
        valid = self._judgement.settle(
            frames, self.car.reasons + bus.reasons, result, intact=intact
        )
        frame = FrameInfo(
            frame_id=frames.main.frame_id,
            frame_id_extra=frames.extra.frame_id,
            # Number of newer frames according to the camera's own message. That message can be
            # late, hence the bound.
            frame_age=max(0, bus.road_frame_id - frames.main.frame_id),
            frame_drop_percent=drop.percent,
            dropped=drop.dropped,
            timestamp_eof_ns=frames.main.timestamp_eof_ns,
            execution_time_s=elapsed_ns * 1e-9,
            valid=valid,
            big=session.model.interface.big,
        )
        verdict = session.verdict(result.outputs, bus, times, frame.frame_id)
        # Messages are sent even if invalid, because subscribers wait for them; `valid` says whether
        # to act on them.
        self._publish(result, frame, verdict)
        state.published_ns = time.monotonic_ns()
        state.awaiting_ns = 0
        state.published += 1
        state.valid += valid
        stages.mark("publish", state.published_ns)
        return StepResult(frame.frame_id, drop.dropped, True, valid, result.execution_time_s)

    def _usable(self, frames: FramePair) -> bool:
        """Return whether model and configuration can use the frames; if so, adapt to their sizes.

        A camera process can restart with another frame size. Unusable frames count as missing.
        """
        main, extra = frames.main.format, frames.extra.format
        sizes = sizes_of(main, extra, lacks_extra=frames.lacks_extra)
        try:
            self.model.check_frames(frames)
            self.calibration.check(sizes)
        except (CameraSizeError, CameraConfigError) as error:
            self._log.refused(error)
            return False
        self.calibration.fit(sizes)
        if self._fallback is not None and (problem := self._fallback.refusal(frames)):
            # This fallback could not publish anything. Without it, a fault ends the process, which
            # is then restarted.
            self._fallback = None
            self._log.no_fallback(problem)
        return True

    def _judge(self, frames: FramePair, bus: BusInputs) -> None:
        """Compare frames with earlier ones; reset the model's histories if their time goes back."""
        judgement = self._judgement
        judgement.look(frames, bus, self._session.image_frames)
        self._expect_wide()
        if judgement.restarted:
            try:
                with self.guard.running():
                    self._session.restart()
            except RuntimeFault as error:
                self._give_up(error)

    def _expect_wide(self) -> None:
        """Expect the wide camera as soon as the device is known to have one, see ADR 0020."""
        if self._late_wide is not None and self.calibration.has_wide:
            self._sync.expect_extra(self._late_wide)
            self.calibration.expect_extra()
            self._late_wide = None

    def _prepare(self, inputs: ModelInputs, frames: FramePair) -> None:
        """Add a frame to the histories without inference, so the next run has no gap in them."""
        try:
            with self.guard.running():
                self.model.prepare(inputs)
        except RuntimeFault as error:
            self._give_up(error)
        self._images_intact(frames)

    def _run(self, inputs: ModelInputs, frames: FramePair) -> ModelResult:
        """Run the model; if the device fails, fall back and return the last outputs."""
        session = self._session
        try:
            with self.guard.running():
                result = session.model.run(inputs)
        except RuntimeFault as error:
            self._give_up(error)
            return session.model.failed()
        if session.count_run(result):
            logger.info("model history filled (%d frames)", session.warm_up.needed)
        self.state.warm_up_left = session.warm_up.needed - session.warm_up.runs
        if not result.finite:
            self._log.not_finite(frames.main.frame_id, "state reset, messages marked invalid")
            limit = self._config.non_finite_limit
            if self._fallback is not None and session.not_finite_runs >= limit:
                self._fall_back(f"outputs of {limit} runs in a row are not finite")
        return result

    def _give_up(self, error: RuntimeFault) -> None:
        """Switch to the fallback model after a device error; without one, raise the error."""
        self.state.count(Fault.DEVICE_ERROR)
        if self._fallback is None:
            raise error
        self._fall_back(str(error))

    def _publish(self, result: ModelResult, frame: FrameInfo, verdict: FrameVerdict) -> None:
        raw = result.raw_bytes() if self._config.send_raw_predictions else None
        # The result has the message of the model that ran; the model in use may already differ.
        model_v2 = result.message.fill(self._clock.now_ns(), frame, verdict, raw)
        brief, odometry = (self._publications.new(service) for service in PUBLICATIONS[1:])
        fill_driving_model_data(brief, result.outputs, frame, verdict)
        fill_camera_odometry(odometry, result.outputs, frame)
        # Send only after all three are filled, so their stamps are close and none is sent alone.
        for service, event in zip(PUBLICATIONS, (model_v2, brief, odometry), strict=True):
            self._publications.send(service, event)

    def _images_intact(self, frames: FramePair) -> bool:
        """Return whether the model's images are from intact frames; call once after each run.

        Frames are in shared memory, so the camera process can overwrite one during a slow run.
        """
        intact = self._sync.is_intact()
        if not intact:
            self._log.overwritten(frames.main, frames.extra)
        return self._session.images_intact(intact=intact)


def start(
    config: Config, service: ServiceParts, stop: threading.Event, resources: ExitStack
) -> Daemon | None:
    """Wait for cameras, then for the car (ADR 0020); return the daemon, or None when stopped.

    `stop` ends the waiting. Everything that is opened is added to `resources`, to be closed there.
    """
    episodes = Episodes(MonotonicClock(), logger, service.state)
    cameras = wait_for_cameras(service.cameras, stop, episodes)
    # There are no cameras only if `stop` was set.
    if cameras is None:
        return None
    resources.callback(cameras.close)
    daemon = Daemon(
        config,
        service.program,
        service.transport,
        MonotonicClock(),
        cameras.road,
        cameras.wide,
        late_wide=cameras.late_wide,
        fallback=service.fallback,
        state=service.state,
    )
    resources.callback(daemon.close)
    logger.info("cameras: %s; models %s", cameras.names, daemon.model.checkpoints)
    if not config.demo:
        params = Params(config.parameters(), period_ms=PERIOD_MS)
        car = wait_for_car(service.transport, stop, episodes, params)
        if car is None:
            return None
        daemon.car = car
        daemon.car_watch = CarWatch(params)
        logger.info("car: %s", car.name)
        action = daemon.model.interface.action
        rule = rule_in_force(action, config.lat_smooth_s, config.long_smooth_s)
        log_differences(params, service.program.manifest.models, rule)
    return daemon
