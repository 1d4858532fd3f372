"""Watches the loss of a training: the line that says it diverged, and what to do."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from tools.errors import TrainingError

# Steps whose losses are remembered.
_MEMORY = 400
# So many must be known before one can be far above them.
_LEAST = 100
# A loss is far above the median when it is so many times further above it than the losses usually
# are around it; noise of batches was 8 at most in trainings that went well.
FAR = 30.0
RESUME = "continue from the last checkpoint with --resume and half the --learning-rate"
# So many of the last losses must be far above: one batch of odd samples is none.
_IN_A_ROW = 10


class Watch:
    """Judges one loss after the other.

    Args:
        advice: what to do where it diverges.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice
        self._losses: deque[float] = deque(maxlen=_MEMORY)
        self._far = 0

    def see(self, stage: str, step: int, loss: float) -> None:
        """Take the loss of a step.

        Raises:
            TrainingError: it is not a finite number, or losses are far above their median.
        """
        if not math.isfinite(loss):
            raise self._error(stage, step, f"{loss}")
        if len(self._losses) >= _LEAST:
            middle = median(self._losses)
            usual = median(abs(value - middle) for value in self._losses)
            limit = middle + FAR * max(usual, 1e-3 * abs(middle), 1e-6)
            self._far = self._far + 1 if loss > limit else 0
            if self._far >= _IN_A_ROW:
                raise self._error(
                    stage, step, f"{loss:.4g} for {self._far} steps, {middle:.4g} before"
                )
            if loss > limit:
                return
        self._losses.append(loss)

    def _error(self, stage: str, step: int, found: str) -> TrainingError:
        return TrainingError(
            f"{stage} stage, step {step}: expected a loss that falls, found {found}: the training "
            f"diverged; {self._advice}"
        )
