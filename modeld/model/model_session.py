"""One driving model in use, with the filters and machines whose state goes with it."""

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

# --- Counting until the histories of a model that has just started are full (see ADR 0020) ----


@dataclass(slots=True)
class WarmUp:
    """Reports once when the model has seen enough frames."""

    needed: int  # runs until no history holds zeros of the start any more
    runs: int = 0  # since the start, not counted further than `needed`

    def ran(self) -> bool:
        """Count a run; return whether it was the one that filled the histories."""
        if self.runs >= self.needed:
            return False
        self.runs += 1
        return self.runs == self.needed

    def restart(self) -> None:
        """Start again, as the histories were reset."""
        self.runs = 0


# Models that keep their images themselves do not tell: assume the longest known gap.
_GAP_INSIDE_MODEL = 4


class ModelSession:
    """State that the loop keeps from frame to frame because of its model.

    `not_finite_runs` counts consecutive runs whose outputs were not finite.
    """

    def __init__(self, config: Config, program: DrivingProgram) -> None:
        """Begin with a program at reset; raise ModelInterfaceError if it is no driving model."""
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
        """Checkpoints of the models, for a person."""
        return ", ".join(self.model.checkpoints.values())

    @property
    def image_frames(self) -> int:
        """For how many frames an image is seen by the model, its own included."""
        return (self.model.interface.image.gap or _GAP_INSIDE_MODEL) + 1

    @property
    def clips_speed(self) -> bool:
        """Whether speeds below 0 count as 0."""
        return self._rule.clip_speed

    def refusal(self, frames: FramePair) -> str:
        """Return why the model cannot use frames, "" if it can; it only compares formats."""
        try:
            self.model.check_frames(frames)
        except CameraSizeError as error:
            return str(error)
        return ""

    def continue_from(self, before: "ModelSession") -> None:
        """Take over another model's last command, and its lane change if it has the same machine.

        The states of the other machine mean something else, so its lane change ends.
        """
        self._actions.action = before._actions.action
        if type(self.lane_change) is type(before.lane_change):
            self.lane_change = before.lane_change

    def times(self, lateral_delay_s: float, car: CarParameters) -> ActionTimes:
        """Return when a command takes effect."""
        return action_times(lateral_delay_s, car, self._rule)

    def inputs(
        self, frames: FramePair, bus: BusInputs, times: ActionTimes, calibration: Calibration
    ) -> ModelInputs:
        """Return the inputs of a frame; advances the desire's pulse."""
        host = self._host_inputs
        host.update(bus, times)
        return ModelInputs(
            frames=frames,
            main_transform=calibration.main_transform,
            extra_transform=calibration.extra_transform,
            # The pulse looks at the desire of the frame before: the model is asked, then the
            # machine moves on.
            desire_pulse=self._pulse.update(self.lane_change.desire),
            traffic_convention=host.traffic_convention,
            lateral_control_params=host.lateral_control_params,
            action_t=host.action_t,
        )

    def verdict(
        self, outputs: DrivingOutputs, bus: BusInputs, times: ActionTimes, frame_id: int
    ) -> FrameVerdict:
        """Draw the conclusions of one frame; advances the filters and the lane change."""
        action = self._actions.update(outputs, bus.vehicle.v_ego_mps, times)
        desired = outputs.desire_state
        changing = desired[Desire.LANE_CHANGE_LEFT] + desired[Desire.LANE_CHANGE_RIGHT]
        # The lane change moves after the model has run, on the model's outputs for this frame.
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
        """Begin with empty histories: what they hold is of another time than what comes now."""
        self.model.reset()
        self._forget()

    def _forget(self) -> None:
        self.warm_up.restart()
        # The desire's history went with the reset, so a desire that lasts is sent again.
        self._pulse.reset()

    def images_whole(self, *, intact: bool) -> bool:
        """Return whether the images of the model are of whole frames; once after each run.

        An image made of a torn pair (not `intact`) stays in the queue, and is seen again `gap` runs
        later.
        """
        if intact:
            whole = self._torn_runs == 0
            self._torn_runs = max(0, self._torn_runs - 1)
            return whole
        self._torn_runs = self.image_frames - 1
        return False
