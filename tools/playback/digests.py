"""A driving program that also says what it was given: CRC-32 of each input of each run.

Two runs whose outputs differ although their inputs agree differ in the program; where inputs differ
too, the fault is before it.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from modeld.driving_model import DrivingProgram
from runtime.entry import TensorSpec
from tools.playback.outcome import INPUT_NAMES


class DigestingProgram:
    """Wraps a driving program; otherwise the same.

    Attributes:
        crc: CRC-32 by input of the last run; 0 for inputs that its entry does not take.
        digest_s: seconds that the digests of the last run took, which are within what the daemon
            measures of the model.
    """

    def __init__(self, program: DrivingProgram) -> None:
        self._program = program
        self.crc = dict.fromkeys(INPUT_NAMES, 0)
        self.digest_s = 0.0

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points."""
        return self._program.entries

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The artifact's metadata."""
        return self._program.metadata

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Inputs of an entry."""
        return self._program.entry_inputs(entry)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Note the digests, then run."""
        start_ns = time.perf_counter_ns()
        seen: dict[int, int] = {}
        for name in INPUT_NAMES:
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
        return self._program.run(inputs, entry)

    def reset(self) -> None:
        """Reset the state buffers."""
        self._program.reset()
