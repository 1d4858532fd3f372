"""Plays a drive through the daemon with two programs in parallel, until their results differ.

Both get the same inputs in the same order. The daemon uses the outputs of the first only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modeld.daemon import StepResult
from modeld.service.config import Config
from runtime.run.program import Program
from tools.drives.drive import Moment
from tools.drives.open_drive import DriveOptions, open_drive
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.model import LoadedModel, check_fits
from tools.regress.explain.launch_values import Difference, compare_arrays
from tools.timing.run_parts import Stepper

Array = NDArray[Any]


class Part(NamedTuple):
    """One output or state in which two programs differ."""

    name: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Case:
    """The frame at which a drive was stopped.

    Attributes:
        outputs, states_after: outputs and states whose bits differ from the second program's.
    """

    frame_id: int  # frame id of the main camera
    entry: str  # the entry that ran, ``run`` or ``prepare``
    inputs: Mapping[str, Array]  # copies of the inputs
    states: Mapping[str, Array]  # states of the first program before the frame
    outputs: Sequence[Part]
    states_after: Sequence[Part]

    def differs(self, rounding: float) -> bool:
        """Whether a difference exceeds rounding errors."""
        return any(part.difference.exceeds(rounding) for part in self.parts)

    @property
    def parts(self) -> list[Part]:
        """All outputs and states that differ."""
        return [*self.outputs, *self.states_after]


class _StopError(Exception):
    """The wanted frame has been reached; ends the drive."""


class ParallelProgram(WrappedProgram):
    """A driving program that runs a second one on the same inputs and compares the results.

    `first`: the program whose outputs are returned. `second`: the other program, or None to compare
    nothing.
    """

    def __init__(self, first: Program, second: Program | None) -> None:
        super().__init__(first)
        self._second = second
        self._steppers = [Stepper(program) for program in (first, second) if program is not None]
        # The latest run: its entry, its inputs, and the first program's states before it.
        self._run: tuple[str, Mapping[str, Array], dict[str, Array]] | None = None
        self._outputs: list[Part] = []

    def run(self, inputs: Mapping[str, Array], entry: str | None = None) -> Mapping[str, Array]:
        """Run both programs; return the outputs of the first."""
        name = entry or self.entries[0]
        self._run = name, inputs, self._steppers[0].states()
        results = super().run(inputs, name)
        self._outputs = []
        if self._second is not None:
            self._outputs = _parts(results, self._second.run(inputs, name))
        return results

    def reset(self) -> None:
        """Reset the state buffers of both programs."""
        super().reset()
        if self._second is not None:
            self._second.reset()

    def case(self, frame_id: int) -> Case:
        """Return the run just made as a case."""
        assert self._run is not None
        entry, inputs, before = self._run
        after = [stepper.states() for stepper in self._steppers]
        return Case(
            frame_id,
            entry,
            {name: np.array(array) for name, array in inputs.items()},
            before,
            self._outputs,
            _parts(after[0], after[-1]) if len(after) > 1 else [],
        )

    def differs(self, rounding: float) -> bool:
        """Whether the results of the run just made differ by more than rounding errors."""
        if self._second is None:
            return False
        if any(part.difference.exceeds(rounding) for part in self._outputs):
            return True
        one, other = (stepper.states() for stepper in self._steppers)
        return any(part.difference.exceeds(rounding) for part in _parts(one, other))


def _parts(one: Mapping[str, Array], other: Mapping[str, Array]) -> list[Part]:
    """Return the arrays whose bits differ, omitting those without a namesake of equal shape."""
    found = []
    for name in one:
        right = other.get(name)
        if right is None or right.shape != one[name].shape:
            continue
        apart = compare_arrays(one[name].ravel(), right.ravel())
        if apart.elements:
            found.append(Part(name, apart))
    return found


def play_until(
    text: str,
    options: DriveOptions,
    model: LoadedModel,
    beside: Program | None,
    stop: tuple[int, float],
) -> Case | None:
    """Play a drive to the first frame after which the results of two programs differ.

    `text`: the drive, as text for `open_drive`. `options`: options for opening it. `model`: the
    program whose outputs the daemon uses. `beside`: a second program on the same inputs, or None to
    stop only by frame id. `stop`: the last frame id, at which play stops in any case, and the
    relative difference up to which values count as equal. Returns the frame; None if the drive
    ended before.

    Raises:
        ToolError: the drive cannot be read, or the program does not fit it.
    """
    from tools.playback.run_drive import PlaybackOptions, play
    from tools.playback.session import Programs

    last_frame, rounding = stop
    pair = ParallelProgram(model.program, beside)
    found: list[Case] = []

    def check_frame(_moment: Moment, result: StepResult | None) -> None:
        if result is not None and (result.frame_id >= last_frame or pair.differs(rounding)):
            found.append(pair.case(result.frame_id))
            raise _StopError

    drive = open_drive(text, options)
    try:
        check_fits(model.path, model.artifact, drive.info)
        config = Config(demo=True, send_raw_predictions=False)
        play(
            drive,
            Programs(pair),
            lambda _data: None,
            PlaybackOptions(config=config, on_moment=check_frame),
        )
    except _StopError:
        pass
    finally:
        drive.close()
    return found[0] if found else None
