"""Decides whether the messages of a frame are valid.

A message is valid if there is no reason against it. Reasons come from the frames, the calibration,
the car and its messages, and the model's outputs.
"""

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

# Log records of the loop have this name, whichever module writes them.
logger: Final = logging.getLogger("modeld.daemon")

DEVICE_FAILED: Final = Reason("device failed", "device failed")
NOT_FINITE: Final = Reason("not finite", "outputs not finite")
OVERWRITTEN: Final = Reason("overwritten", "frames overwritten while they were used")
WIDE_LOST: Final = Reason("wide lost", "wide camera lost")
APART: Final = Reason("apart", "frames of different moments")


class Judgement:
    """Judges each frame of the driving loop: call `look` before the model run, `settle` after it.

    It also updates the calibration from the bus. `main_name` is the name of the main camera, "road"
    or "wide".
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
        """Whether the time of the main frames went back with the last one."""
        return self._main.restarted

    def look(self, frames: FramePair, bus: BusInputs, image_frames: int) -> None:
        """Judge the inputs of a run. Call once for each pair of frames.

        `image_frames` is the number of runs that see an image.
        """
        self._calibration.update()
        now_ns, moving = self._episodes.clock.now_ns(), bus.vehicle.v_ego_mps > MOVING_MPS
        self._main.hold = self._wide.hold = image_frames
        self._main.look(frames.main, now_ns, moving=moving)
        if frames.extra is not frames.main:
            self._wide.look(frames.extra, now_ns, moving=moving)

    def settle(
        self, frames: FramePair, reasons: tuple[Reason, ...], result: ModelResult, *, intact: bool
    ) -> bool:
        """Return whether the messages of a run are valid; log and keep the reasons if not.

        `frames` is the pair given to `look`. `reasons` concern the car and its messages. `intact`
        says whether the model's images are from intact frames.
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
            (intact, OVERWRITTEN),
            # With a single camera, this is known only once its calibration has arrived.
            (not self._transforms.sizes.lacks_extra, WIDE_LOST),
            (not frames.apart, APART),
        ):
            if not holds:
                reasons += (reason,)
        self._log.update(reasons, now_ns)
        self._episodes.settle()
        return not reasons
