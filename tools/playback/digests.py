"""A program that also says what it was given: CRC-32 of each input of each run.

Two runs whose outputs differ although their inputs agree differ in the program; where inputs differ
too, the fault is before it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any, cast

from numpy.typing import NDArray

from modeld.driving_model import DrivingProgram
from modeld.monitoring import MonitoringProgram
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.outcome import INPUT_NAMES


class DigestingProgram(WrappedProgram):
    """Notes digests before each run.

    Args:
        program: of either kind.
        names: inputs that it may have.

    Attributes:
        crc: CRC-32 by input of the last run; 0 for inputs that its entry does not take.
        digest_s: seconds that the digests of the last run took, which are within what the daemon
            measures of the model.
    """

    def __init__(
        self, program: DrivingProgram | MonitoringProgram, names: tuple[str, ...] = INPUT_NAMES
    ) -> None:
        # Monitoring asks for no more than its protocol has.
        super().__init__(cast("DrivingProgram", program))
        self._names = names
        self.crc = dict.fromkeys(names, 0)
        self.digest_s = 0.0

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Note the digests, then run."""
        start_ns = time.perf_counter_ns()
        seen: dict[int, int] = {}
        for name in self._names:
            array = inputs.get(name)
            if array is None:
                self.crc[name] = 0
                continue
            # With a single camera both frames are one array.
            place = array.ctypes.data
            if place not in seen:
                seen[place] = zlib.crc32(array.data)
            self.crc[name] = seen[place]
        self.digest_s = (time.perf_counter_ns() - start_ns) * 1e-9
        return super().run(inputs, entry)
