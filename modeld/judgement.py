"""Why messages are valid or not: frames, calibration, vehicle and outputs taken together."""

import logging
from typing import Final

from cereal.pubsub import SubMaster
from modeld.frames.frame_judge import MOVING_MPS, FrameJudge
from modeld.frames.frame_sync import FramePair
from modeld.model.driving_model import ModelResult
from modeld.state.episodes import Episodes
from modeld.vehicle.calibration import Calibration, CalibrationInput
from modeld.vehicle.inputs import BusInputs
from modeld.vehicle.validity import Freshness, Reason, ValidityLog

# Records of the loop keep the name that they have had.
logger: Final = logging.getLogger("modeld.daemon")

DEVICE_FAILED: Final = Reason("device failed", "device failed")
NOT_FINITE: Final = Reason("not finite", "outputs not finite")
OVERWRITTEN: Final = Reason("overwritten", "frames overwritten while they were used")
WIDE_LOST: Final = Reason("wide lost", "wide camera lost")
APART: Final = Reason("apart", "frames of different moments")


class Judgement:
    """Judges each frame of the driving loop: `look` before the run, `settle` after it.

    It keeps the calibration up to date from the bus. Main frames are of the camera "road" or
    "wide".
    """

    def __init__(
        self,
        calibration: Calibration,
        messages: SubMaster,
        episodes: Episodes,
        freshness: Freshness,
        main_name: str,
        *,
        is_timed: bool = True,
    ) -> None:
        self._calibration = CalibrationInput(calibration, messages, episodes, freshness)
        self._transforms = calibration
        self._episodes = episodes
        self._main = FrameJudge(main_name, episodes, is_timed=is_timed)
        self._wide = FrameJudge("wide", episodes, is_timed=is_timed)
        self._log = ValidityLog(logger, episodes.state)

    @property
    def restarted(self) -> bool:
        """Whether the main frame is of a time before that of the frame before it."""
        return self._main.restarted

    def look(self, frames: FramePair, bus: BusInputs, image_frames: int) -> None:
        """Judge the inputs of a run; once for each pair of frames.

        The model sees an image for `image_frames` runs.
        """
        self._calibration.update()
        now_ns, moving = self._episodes.clock.now_ns(), bus.vehicle.v_ego_mps > MOVING_MPS
        self._main.hold = self._wide.hold = image_frames
        self._main.look(frames.main, now_ns, moving=moving)
        if frames.extra is not frames.main:
            self._wide.look(frames.extra, now_ns, moving=moving)

    def settle(
        self, frames: FramePair, reasons: tuple[Reason, ...], result: ModelResult, *, whole: bool
    ) -> bool:
        """Return whether the messages of a run are valid; log and keep the reasons.

        `frames` are those given to `look`; `reasons` are about the car and its messages. `whole`
        means that the model's images are of whole frames.
        """
        now_ns = self._episodes.clock.now_ns()
        uncalibrated = self._calibration.reason(now_ns)
        reasons += self._main.reasons
        if uncalibrated is not None:
            reasons = (uncalibrated, *reasons)
        if frames.extra is not frames.main:
            reasons += self._wide.reasons
        for holds, reason in (
            (result.finite, DEVICE_FAILED if result.failed else NOT_FINITE),
            (whole, OVERWRITTEN),
            # Known of a single camera's frames only once its calibration has come.
            (not self._transforms.sizes.lacks_extra, WIDE_LOST),
            (not frames.apart, APART),
        ):
            if not holds:
                reasons += (reason,)
        self._log.update(reasons, now_ns)
        self._episodes.settle()
        return not reasons
