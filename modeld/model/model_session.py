"""The driving model in use, with the state that the loop keeps for it between frames.

`ModelSession` holds the model, the filters of its outputs, its lane change machine and the counters
of its histories. When the fallback model takes over, its own session replaces the first one.
"""

from dataclasses import dataclass

from modeld.errors import CameraSizeError
from modeld.frames.frame_sync import FramePair
from modeld.model.driving_model import DrivingModel, DrivingProgram, ModelInputs, ModelResult
from modeld.outputs.parse_outputs import DrivingOutputs
from modeld.outputs.verdict import (
    ActionFilter,
    ConfidenceFilter,
    FrameVerdict,
    HardBrakeFilter,
    rule_in_force,
)
from modeld.service.config import Config
from modeld.vehicle.calibration import Calibration
from modeld.vehicle.desire import Desire, lane_change_machine
from modeld.vehicle.inputs import (
    ActionTimes,
    BusInputs,
    CarParameters,
    DesirePulse,
    HostInputs,
    action_times,
)

# --- Warm-up: counts runs until the model's histories are full (see ADR 0020) -----------------


@dataclass(slots=True)
class WarmUp:
    """Reports once when the model's histories are full."""

    needed: int  # number of runs that fill all histories
    runs: int = 0  # runs since the start, counted up to `needed`

    def ran(self) -> bool:
        """Count a run; return whether it was the one that filled the histories."""
        if self.runs >= self.needed:
            return False
        self.runs += 1
        return self.runs == self.needed

    def restart(self) -> None:
        """Count from 0, because the histories were reset."""
        self.runs = 0


# Runs between the two images that a model sees. Models that store images themselves do not specify
# the gap, so this is the longest known one.
_GAP_INSIDE_MODEL = 4


class ModelSession:
    """A model and the state that the loop keeps for it between frames.

    `not_finite_runs` is the number of consecutive runs with non-finite outputs.
    """

    def __init__(self, config: Config, program: DrivingProgram) -> None:
        """Create the session of a program whose state is at reset.

        Raises ModelInterfaceError if it is not a driving model.
        """
        self.model = DrivingModel(program)
        self.lane_change = lane_change_machine(self.model.interface.lane_change)
        self.warm_up = WarmUp(self.model.history_runs)
        self.not_finite_runs = 0
        self._rule = rule_in_force(
            self.model.interface.action, config.lat_smooth_s, config.long_smooth_s
        )
        self._actions = ActionFilter(self._rule)
        self._pulse = DesirePulse()
        self._host_inputs = HostInputs()
        self._confidence = ConfidenceFilter()
        self._hard_brake = HardBrakeFilter()
        self._torn_runs = 0

    @property
    def name(self) -> str:
        """Names of the model's checkpoints, for logs."""
        return ", ".join(self.model.checkpoints.values())

    @property
    def image_frames(self) -> int:
        """The number of runs that see an image, including the run of its own frame."""
        return (self.model.interface.image.gap or _GAP_INSIDE_MODEL) + 1

    @property
    def clips_speed(self) -> bool:
        """Whether speeds below 0 count as 0."""
        return self._rule.clip_speed

    def refusal(self, frames: FramePair) -> str:
        """Return why the model cannot use the frames, "" if it can; only formats are checked."""
        try:
            self.model.check_frames(frames)
        except CameraSizeError as error:
            return str(error)
        return ""

    def continue_from(self, before: "ModelSession") -> None:
        """Continue from another model's last command and lane change.

        If the other model has a different lane change machine, whose states mean something else,
        the lane change ends.
        """
        self._actions.action = before._actions.action
        if type(self.lane_change) is type(before.lane_change):
            self.lane_change = before.lane_change

    def times(self, lateral_delay_s: float, car: CarParameters) -> ActionTimes:
        """Return the delays until a command takes effect."""
        return action_times(lateral_delay_s, car, self._rule)

    def inputs(
        self, frames: FramePair, bus: BusInputs, times: ActionTimes, calibration: Calibration
    ) -> ModelInputs:
        """Return the model's inputs for a frame; advance the desire's pulse."""
        host = self._host_inputs
        host.update(bus, times)
        return ModelInputs(
            frames=frames,
            main_transform=calibration.main_transform,
            extra_transform=calibration.extra_transform,
            # This is the desire after the previous frame. The lane change machine advances after
            # the model has run.
            desire_pulse=self._pulse.update(self.lane_change.desire),
            traffic_convention=host.traffic_convention,
            lateral_control_params=host.lateral_control_params,
            action_t=host.action_t,
        )

    def verdict(
        self, outputs: DrivingOutputs, bus: BusInputs, times: ActionTimes, frame_id: int
    ) -> FrameVerdict:
        """Return the conclusions from one frame; advance the filters and the lane change."""
        action = self._actions.update(outputs, bus.vehicle.v_ego_mps, times)
        desired = outputs.desire_state
        changing = desired[Desire.LANE_CHANGE_LEFT] + desired[Desire.LANE_CHANGE_RIGHT]
        # The lane change advances with the model's outputs for this frame.
        self.lane_change.update(bus.vehicle, float(changing))
        return FrameVerdict(
            action=action,
            confidence=self._confidence.update(outputs.meta, frame_id),
            hard_brake_predicted=self._hard_brake.update(outputs.meta),
            lane_change_state=self.lane_change.state,
            lane_change_direction=self.lane_change.direction,
        )

    def count_run(self, result: ModelResult) -> bool:
        """Count a run; return whether it filled the histories."""
        if result.finite:
            self.not_finite_runs = 0
            return self.warm_up.ran()
        self.not_finite_runs += 1
        self._forget()
        return False

    def restart(self) -> None:
        """Empty the histories, because time went back and they hold frames of another time."""
        self.model.reset()
        self._forget()

    def _forget(self) -> None:
        self.warm_up.restart()
        # The reset cleared the history of desires, so a lasting desire must be sent again.
        self._pulse.reset()

    def images_intact(self, *, intact: bool) -> bool:
        """Return whether the model's images are from intact frames; call once after each run.

        `intact` says whether the frames of this run are. An image of an overwritten frame stays in
        the model's queue, so the following runs see it, too.
        """
        if intact:
            whole = self._torn_runs == 0
            self._torn_runs = max(0, self._torn_runs - 1)
            return whole
        self._torn_runs = self.image_frames - 1
        return False
