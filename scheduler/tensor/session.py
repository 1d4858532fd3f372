"""The session is what the tensors of a process remember from call to call: they are eager.

`realize` moves every live tensor, computes no value twice and compiles no graph twice. All tensors
share `SESSION`. It is the only state of `scheduler/` that a call leaves behind for the next one;
whoever compiles files (`compile_plain`, `compile_driving`, `onnx_backend`) takes nothing from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from numpy.random import Generator, default_rng

from scheduler.cache.schedules import ScheduleCache
from scheduler.tensor.handles import Handles
from scheduler.tensor.value_cache import ValueCache


@dataclass(slots=True)
class Session:
    """Live tensors, values that were computed, schedules (in memory alone), a random sequence."""

    handles: Handles = field(default_factory=Handles)
    values: ValueCache = field(default_factory=ValueCache)
    schedules: ScheduleCache = field(default_factory=ScheduleCache)
    random: Generator = field(default_factory=lambda: default_rng(0))

    def clear(self) -> None:
        """Forget values and schedules; tensors that live are still moved with their storage."""
        self.values, self.schedules = ValueCache(), ScheduleCache()


SESSION: Final = Session()
