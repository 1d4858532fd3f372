"""Records frames of the drives for the timing gate: inputs and states, equal for both sides.

The time of a kernel can depend on its inputs (PoCL's kernels branch), so random inputs do not
represent a drive. Some frames of the drives are recorded with the states before them. Each can then
be run separately and repeatedly, in any process and by any program with such inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from modeld.daemon import StepResult
from modeld.service.config import Config
from runtime.files.user_file import whole_file
from runtime.run.program import Program
from tools.drives.drive import Moment
from tools.drives.open_drive import DriveOptions, open_drive
from tools.lib.given_data import write_npz
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.model import check_fits, load_model
from tools.timing.run_parts import Stepper

Array = NDArray[Any]
T = TypeVar("T")

# Number of frames over all drives. Each takes an eighth of the gate's runs, and 8 MiB of a file.
FRAMES: Final = 8
# Maximum number of drives to play for recording.
MOST_DRIVES: Final = 4


class TimedFrame(NamedTuple):
    """One recorded run of an entry."""

    name: str  # name of the drive and id of the frame
    inputs: Mapping[str, Array]  # copies of the inputs, by name
    states: Mapping[str, Array]  # states before the run, by name


def sample_frames(
    drives: Sequence[tuple[str, str]],
    options: DriveOptions,
    model: Path,
    device: str | None,
    entry: str,
) -> list[TimedFrame]:
    """Play drives and record frames that are spread over them.

    `drives`: text for `open_drive` and name of each drive. `options`: options for opening them.
    `model`: driving artifact that runs them. `device`: OpenCL device; None: the best. `entry`: the
    entry whose runs are recorded.

    Raises:
        ToolError: a drive or the artifact cannot be used.
        RuntimeFault: the artifact does not run on this device.
    """
    chosen = spread(drives, MOST_DRIVES)
    found: list[TimedFrame] = []
    with load_model(model, device) as loaded:
        for text, name in chosen:
            sampler = Sampler(loaded.program, entry, FRAMES // len(chosen), name)
            with closing(open_drive(text, options)) as drive:
                check_fits(loaded.path, loaded.artifact, drive.info)
                _play(drive, sampler)
            found += sampler.frames()
    return found


def _play(drive: Any, sampler: Sampler) -> None:
    from tools.playback.run_drive import PlaybackOptions, play
    from tools.playback.session import Programs

    def note(_moment: Moment, result: StepResult | None) -> None:
        if result is not None:
            sampler.note(result.frame_id)

    config = Config(demo=True, send_raw_predictions=False)
    options = PlaybackOptions(config=config, on_moment=note)
    play(drive, Programs(sampler), lambda _data: None, options)


class Sampler(WrappedProgram):
    """A driving program that records some of its runs, spread evenly over all of them.

    It keeps every n-th run. When it has twice as many as wanted, it drops every second one and
    doubles n, so the length of the drive need not be known.

    `entry`: the entry whose runs are recorded. `wanted`: number of runs, at least 1. `drive`: name
    of the drive.
    """

    def __init__(self, program: Program, entry: str, wanted: int, drive: str) -> None:
        super().__init__(program)
        self._stepper = Stepper(program)
        self._entry, self._wanted, self._drive = entry, wanted, drive
        self._kept: list[TimedFrame] = []
        self._now: TimedFrame | None = None
        self._seen, self._every = 0, 1

    def run(self, inputs: Mapping[str, Array], entry: str | None = None) -> Mapping[str, Array]:
        """Run the program; copy inputs and states if this run is to be recorded."""
        if (entry or self.entries[0]) == self._entry:
            if self._seen % self._every == 0:
                copies = {name: np.array(array) for name, array in inputs.items()}
                self._now = TimedFrame("", copies, self._stepper.states())
            self._seen += 1
        return super().run(inputs, entry)

    def note(self, frame_id: int) -> None:
        """Record the run just made under the name of its frame."""
        if self._now is None:
            return
        self._kept.append(self._now._replace(name=f"{self._drive} frame {frame_id}"))
        self._now = None
        if len(self._kept) == 2 * self._wanted:
            self._kept = self._kept[::2]
            self._every *= 2

    def frames(self) -> list[TimedFrame]:
        """Return the recorded frames, at most as many as wanted."""
        return spread(self._kept, self._wanted)


def spread(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` items, evenly spread over all."""
    if len(items) <= count:
        return list(items)
    return [items[(2 * place + 1) * len(items) // (2 * count)] for place in range(count)]


def write_frames(path: Path, frames: Sequence[TimedFrame]) -> None:
    """Write frames to a file for the timing processes."""
    arrays = dict(_named(frames))
    arrays["names"] = np.array([frame.name for frame in frames])
    with whole_file(path) as file:
        write_npz(file, arrays)


def _named(frames: Sequence[TimedFrame]) -> Iterator[tuple[str, Array]]:
    for number, frame in enumerate(frames):
        for kind, arrays in (("inputs", frame.inputs), ("states", frame.states)):
            for name, array in arrays.items():
                yield f"{number}/{kind}/{name}", array


def read_frames(path: Path) -> list[TimedFrame]:
    """Read the frames that `write_frames` wrote."""
    with np.load(path) as file:
        frames = [TimedFrame(str(name), {}, {}) for name in file["names"]]
        for key in file.files:
            if key != "names":
                number, kind, name = key.split("/", 2)
                getattr(frames[int(number)], kind)[name] = file[key]
    return frames
