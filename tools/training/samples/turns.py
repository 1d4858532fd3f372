"""Gives the cores to painters or to the network; samples are learnt from twice at most.

Threads of a network wait for each other, and one that shares its core makes all of them slow. So
painters wait while there is enough to learn from, and learning waits when there is not.
"""

from __future__ import annotations

from tools.training.samples.replay import Replay

# How often samples are learnt from, in the mean over all that were painted.
MOST_USES = 2.0
# Once painters have their turn, it lasts until there are new samples for so many steps.
TURN_STEPS = 4


class Turns:
    """Counts used samples, and makes the painters wait."""

    def __init__(self, replay: Replay, batch: int) -> None:
        """Begin with nothing learnt from.

        Painters look in `replay` whether there is enough.
        """
        self._replay, self._batch, self._used = replay, batch, 0

    @property
    def uses(self) -> float:
        """How often samples were learnt from so far, in the mean."""
        return self._used / self._replay.produced

    def take(self) -> bool:
        """Take the samples of one step and return True, or take nothing and let painters work."""
        replay = self._replay
        ahead = MOST_USES * replay.produced - self._used
        if ahead < self._batch * (1 if replay.is_enough else TURN_STEPS):
            replay.is_enough = False
            return False
        replay.is_enough = True
        self._used += self._batch
        return True

    def give(self) -> None:
        """Let painters work until samples are taken again."""
        self._replay.is_enough = False
