"""The main loop of driver monitoring.

Each iteration receives a frame of the driver camera, runs the model and publishes the driver's
state. Only the driver camera paces the loop; it does not wait for a calibration, and the last
calibration is the only state between frames (ADR 0083). ``Monitoring`` is given its clock, bus,
program and camera; ``start`` opens the real ones.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

import runtime
from cereal.cameras import CameraSource
from cereal.clock import Clock, MonotonicClock
from cereal.errors import MessageError
from cereal.frames import Frame, FrameFormat
from cereal.pubsub import PubMaster, SubMaster
from cereal.schema import reading
from cereal.transport import Transport
from modeld.errors import CameraSizeError, ModelInterfaceError
from modeld.frames.camera_input import CameraInput
from modeld.frames.frame_judge import FrameJudge
from modeld.frames.frame_log import LoopLog, no_frame
from modeld.judgement import NOT_FINITE, OVERWRITTEN
from modeld.outputs.driver_state import (
    MonitoringFrame,
    MonitoringOutputs,
    MonitoringParser,
    fill_driver_state,
    nobody,
)
from modeld.outputs.parse_outputs import check_vector
from modeld.service.config import Config
from modeld.startup import ServiceParts, wait_for_driver_camera
from modeld.state.episodes import Episodes
from modeld.state.loop_state import NS_PER_MS, LoopState, Phase, RunGuard
from modeld.vehicle.calibration import ANGLE_COUNT, CALIBRATION_REFUSED, read_angles
from modeld.vehicle.cameras import driver_transform, find_driver_camera
from modeld.vehicle.inputs import GarbageWatch
from modeld.vehicle.validity import Reason, ValidityLog
from runtime.errors import ArtifactError
from runtime.format.interfaces import MonitoringInterface, parse_monitoring_interface

logger = logging.getLogger(__name__)

PUBLICATION: Final = "driverStateV2"
SUBSCRIPTIONS: Final = ("liveCalibration",)
ENTRY: Final = "run"
NO_FRAME: Final = no_frame("driver")


class MonitoringProgram(Protocol):
    """The part of ``runtime.Program`` that the loop uses."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The artifact's metadata."""

    def entry_inputs(self, entry: str | None = None) -> tuple[runtime.TensorSpec, ...]:
        """Return the inputs of an entry."""

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Run an entry; the next run overwrites the returned arrays."""


@dataclass(frozen=True, slots=True)
class MonitoringStep:
    """The result of one iteration."""

    frame_id: int
    published: bool  # False if the program cannot use the frame
    valid: bool  # the message was marked valid
    execution_time_s: float = field(default=0.0, compare=False)  # measured time of the model run


class Monitoring:
    """The state of driver monitoring and one iteration of its loop.

    Attributes:
        calibration: ``rpyCalib`` of the last calibration, (1, 3) float32, rad; zeros before one.
        transform: Model pixels to camera pixels for the last frame format, (3, 3) float32.
        state: Progress of the loop, which other threads may read.
        guard: Marks in `state` when the model is running.
        take_over: None, because driver monitoring has no fallback model.
    """

    def __init__(
        self,
        config: Config,
        program: MonitoringProgram,
        transport: Transport,
        clock: Clock,
        camera: CameraSource,
        *,
        state: LoopState | None = None,
    ) -> None:
        """Bind a program to the driver camera and a bus.

        The camera should conflate, that is deliver only its newest frame. The clock stamps messages
        and times the run; with one that stands still, two runs publish identical bytes. Raises
        ModelInterfaceError if the program is not a driver monitoring model.
        """
        interface = check_monitoring(program.metadata)
        self.state = LoopState() if state is None else state
        self.state.model = interface.model.checkpoint
        self.guard = RunGuard(self.state)
        self.take_over: Callable[[str], None] | None = None
        self.calibration = np.zeros((1, ANGLE_COUNT), np.float32)
        self.transform = np.zeros((3, 3), np.float32)
        self._input = CameraInput("driver", _frame_capacity(program))
        self._format: FrameFormat | None = None
        self._output = f"{interface.model.role}_outputs"
        self._width = interface.model.width
        self._parser = MonitoringParser(interface)
        self._program = program
        self._config = config
        self._clock = clock
        self._camera = camera
        self._publications = PubMaster((PUBLICATION,), transport, clock)
        self._messages = SubMaster(SUBSCRIPTIONS, transport, clock)
        self._episodes = Episodes(clock, logger, self.state)
        self._garbage = GarbageWatch(self._messages, self._episodes)
        # The model has no history, so a wrong frame order is logged but invalidates no message.
        self._judge = FrameJudge("driver", self._episodes, hold=0, is_timed=not config.simulation)
        self._validity = ValidityLog(logger, self.state)
        self._log = LoopLog(self._episodes)
        self._is_ending: Callable[[], bool] = lambda: False

    def close(self) -> None:
        """Close publishers and subscribers. The caller closes program, camera and transport."""
        self._publications.close()
        self._messages.close()

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set. A stop is noticed within the frame timeout."""
        self.state.phase = Phase.RUNNING
        self._is_ending = stop.is_set
        while not stop.is_set():
            self.step()

    def step(self) -> MonitoringStep | None:
        """Do one iteration: wait for a frame, run the model, publish.

        Returns None if no frame arrived in time.
        """
        state, stages = self.state, self.state.stages
        stages.begin(time.monotonic_ns())
        frame = self._camera.receive(self._config.frame_timeout_ms)
        state.iterated_ns = time.monotonic_ns()
        if frame is None:
            if self._is_ending():
                return None
            wait_ms = self._config.frame_timeout_ms
            text = f"no frame from the driver camera within {wait_ms} ms"
            self._episodes.happen(NO_FRAME, text, waited_ns=wait_ms * NS_PER_MS)
            return None
        self._episodes.end(NO_FRAME)
        # A timeout of 0 reads only messages that have arrived; the camera already paces the loop.
        self._messages.update(0)
        stages.mark("wait", state.iterated_ns)
        self._garbage.look()
        self._take_calibration()
        # A camera process can restart with another frame format. Unusable frames are skipped.
        try:
            payload = self._input.payload(frame)
        except CameraSizeError as error:
            self._log.refused(error)
            return MonitoringStep(frame.frame_id, published=False, valid=False)
        self._take_format(frame.format)
        # The picture must always change: the driver moves, and the sensor has noise.
        self._judge.look(frame, self._clock.now_ns(), moving=True)
        state.awaiting_ns = state.awaiting_ns or state.iterated_ns
        state.frames += 1
        state.frame_id = frame.frame_id
        stages.mark("inputs", time.monotonic_ns())
        valid, execution_time_s = self._run(frame, payload)
        state.published_ns = time.monotonic_ns()
        state.awaiting_ns = 0
        state.published += 1
        state.valid += valid
        stages.mark("publish", state.published_ns)
        return MonitoringStep(frame.frame_id, True, valid, execution_time_s)

    def _take_calibration(self) -> None:
        if not self._messages.updated["liveCalibration"]:
            return
        # A damaged list must not end the loop. The last usable angles are kept, because NaN inputs
        # would make the outputs useless.
        try:
            with reading("liveCalibration"):
                self.calibration[0] = read_angles(self._messages["liveCalibration"].rpyCalib)
        except MessageError as error:
            self._episodes.happen(CALIBRATION_REFUSED, f"calibration not used: {error}")

    def _take_format(self, form: FrameFormat) -> None:
        """Update `transform` if the frame format has changed."""
        if form != self._format:
            self.transform[...] = driver_transform(find_driver_camera(form.width, form.height))
            self._format = form
            logger.info("driver camera: %dx%d", form.width, form.height)

    def _run(self, frame: Frame, payload: NDArray[np.uint8]) -> tuple[bool, float]:
        """Run the model and publish; return whether the message is valid, and the run time in s."""
        start_ns, began_ns = self._clock.now_ns(), time.monotonic_ns()
        with self.guard.running():
            results = self._program.run(
                {
                    "driver_frame": payload,
                    "driver_geometry": self._input.geometry,
                    "driver_transform": self.transform,
                    "calib": self.calibration,
                },
                entry=ENTRY,
            )
        measured_ns = time.monotonic_ns()
        self.state.stages.mark("model", measured_ns)
        ran_ns = self._clock.now_ns()
        vector = results[self._output]
        finite = bool(np.isfinite(vector).all())
        outputs = self._parser.parse(vector) if finite else self._report_not_finite(frame)
        end_ns = self._clock.now_ns()
        valid = self._settle(frame, finite=finite)
        facts = MonitoringFrame(
            frame_id=frame.frame_id,
            execution_time_s=(end_ns - start_ns) * 1e-9,
            program_time_s=(ran_ns - start_ns) * 1e-9,
            valid=valid,
        )
        event = self._publications.new(PUBLICATION)
        raw = vector.tobytes() if self._config.send_raw_predictions else None
        fill_driver_state(event, outputs, facts, raw)
        self._publications.send(PUBLICATION, event)
        return facts.valid, (measured_ns - began_ns) * 1e-9

    def _settle(self, frame: Frame, *, finite: bool) -> bool:
        """Return whether the message about a frame is valid; log and keep the reasons if not."""
        reasons: tuple[Reason, ...] = self._judge.reasons
        if not finite:
            reasons += (NOT_FINITE,)
        # Frames are in shared memory, so the camera process can overwrite one during a slow run.
        if not self._camera.is_intact():
            self._log.overwritten(frame)
            reasons += (OVERWRITTEN,)
        self._validity.update(reasons, self._clock.now_ns())
        self._episodes.settle()
        return not reasons

    def _report_not_finite(self, frame: Frame) -> MonitoringOutputs:
        self._log.not_finite(frame.frame_id, "nobody is reported, message marked invalid")
        return nobody()


def try_monitoring(program: MonitoringProgram) -> None:
    """Run a program once on a gray frame, because its first run is slow.

    Raises ModelInterfaceError if it is not a driver monitoring model, or if the width of its output
    differs from the metadata.
    """
    interface = check_monitoring(program.metadata)
    results = program.run(
        {
            "driver_frame": np.full(_frame_capacity(program), 128, np.uint8),
            "driver_geometry": np.array([2, 2, 2, 4], np.int32),
            "driver_transform": np.zeros((3, 3), np.float32),
            "calib": np.zeros((1, ANGLE_COUNT), np.float32),
        },
        entry=ENTRY,
    )
    model = interface.model
    check_vector(results, f"{model.role}_outputs", model.width, ENTRY)


def check_monitoring(metadata: Mapping[str, Any]) -> MonitoringInterface:
    """Return the interface in an artifact's metadata.

    Raises ModelInterfaceError if it is not that of a driver monitoring model.
    """
    try:
        return parse_monitoring_interface(metadata.get("interface"))
    except ArtifactError as error:
        raise ModelInterfaceError(str(error)) from error


def _frame_capacity(program: MonitoringProgram) -> int:
    for spec in program.entry_inputs(ENTRY):
        if spec.name == "driver_frame" and len(spec.shape) == 1:
            return spec.shape[0]
    raise ModelInterfaceError(
        f"artifact entry {ENTRY!r}: expected an input driver_frame (capacity,), found none; "
        "recompile the artifact"
    )


def start(
    config: Config, service: ServiceParts, stop: threading.Event, resources: ExitStack
) -> Monitoring | None:
    """Wait for the driver camera; return the loop, or None when stopped.

    `stop` ends the wait. Everything that is opened is added to `resources`, to be closed there.
    """
    episodes = Episodes(MonotonicClock(), logger, service.state)
    camera = wait_for_driver_camera(service.cameras, stop, episodes)
    if camera is None:
        return None
    resources.callback(camera.close)
    monitoring = Monitoring(
        config,
        service.program,
        service.transport,
        MonotonicClock(),
        camera,
        state=service.state,
    )
    resources.callback(monitoring.close)
    logger.info("driver camera: %dx%d", camera.format.width, camera.format.height)
    return monitoring
