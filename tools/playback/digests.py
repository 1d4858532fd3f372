"""A program that also says what it was given, and what it gave: CRC-32 by input and run.

Two runs whose outputs differ although their inputs agree differ in the program; where inputs differ
too, the fault is before it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from modeld.model.driving_model import DrivingProgram
from modeld.monitoring import MonitoringProgram
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.outcome import INPUT_NAMES, OUTPUTS


class DigestingProgram(WrappedProgram):
    """Notes digests of each run.

    Args:
        program: of either kind.
        names: inputs that it may have; and `OUTPUTS`, where those are to be noted.

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
        """Note the digests of the inputs, run, note that of the outputs."""
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
        before_ns = time.perf_counter_ns()
        results = super().run(inputs, entry)
        after_ns = time.perf_counter_ns()
        if OUTPUTS in self.crc:
            crc = 0
            for name in sorted(results):
                crc = zlib.crc32(np.asarray(results[name], order="C").data, crc)
            self.crc[OUTPUTS] = crc
        self.digest_s = (before_ns - start_ns + time.perf_counter_ns() - after_ns) * 1e-9
        return results
