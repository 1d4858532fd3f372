"""A replay buffer of rendered samples in shared memory: painters write, the training reads.

A *painter* is a process that renders samples. Each has its own slots, and overwrites its oldest
sample. The version of a slot is odd during writing. A reader that sees it change draws another
sample, so neither side locks the other out. `tools.simulator.training.machine.Turns` decides
whether painters work or wait, and painters read the decision here.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.errors import TrainingError
from tools.lib import processes
from tools.lib.processes import Crew, Task
from tools.simulator.training.heads import Bytes, Singles

# Road and wide view, each with two frames of six channels, the older one first.
IMAGES_SHAPE = (2, 12, 128, 256)
_IMAGES_BYTES = 2 * 12 * 128 * 256
# Largest share of the available memory for a buffer.
_MOST_SHARE = 0.7
# Number of attempts to read a slot that is not being written, before giving up.
_TRIES = 1000
# Niceness of painters, so that samples in progress do not delay learning.
_NICE = 19
# Interval at which waiting painters check for their turn, in seconds.
_WAIT_S = 0.01
_GONE = (
    "train: expected the rendering processes to go on, found one dead; is there enough memory? "
    "--workers 1 uses the least"
)


class Sample(NamedTuple):
    """A rendered training sample.

    Attributes:
        images: (2, 12, 128, 256) uint8.
        target: (size,) float32, NaN without ground truth.
        kind: index of the class of scenery.
    """

    images: Bytes
    target: Singles
    kind: int


class Batch(NamedTuple):
    """A batch of samples: images (n, 2, 12, 128, 256), targets (n, size), kinds (n,)."""

    images: Bytes
    targets: Singles
    kinds: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The location and the size of a replay buffer.

    Attributes:
        path: path of the memory, for processes of the same user.
        slots: number of samples, a multiple of `painters`.
        painters: number of writing processes.
        target_size: number of values in a target.
    """

    path: Path
    slots: int
    painters: int
    target_size: int

    @property
    def bytes(self) -> int:
        """The size of the buffer in bytes."""
        return 8 * (1 + self.painters) + self.slots * (8 + 8 + 4 * self.target_size + _IMAGES_BYTES)


class Replay:
    """The replay buffer, mapped by the training and by all painters."""

    def __init__(self, plan: ReplayPlan) -> None:
        """Map the memory of a plan, which `open_replay` has created."""
        self.plan = plan
        with plan.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), plan.bytes)
        start = 0

        def array(dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
            nonlocal start
            count = int(np.prod(shape))
            found: NDArray[Any] = np.frombuffer(self._map, dtype, count, start).reshape(shape)
            start += count * np.dtype(dtype).itemsize
            return found

        self._is_enough = array(np.int64, (1,))
        self._produced = array(np.int64, (plan.painters,))
        self._versions = array(np.int64, (plan.slots,))
        self._kinds = array(np.int64, (plan.slots,))
        self._targets = array(np.float32, (plan.slots, plan.target_size))
        self._images = array(np.uint8, (plan.slots, *IMAGES_SHAPE))

    @property
    def produced(self) -> int:
        """The number of samples written so far, overwritten ones included."""
        return int(self._produced.sum())

    @property
    def held(self) -> int:
        """The number of available samples."""
        each = self.plan.slots // self.plan.painters
        return int(np.minimum(self._produced, each).sum())

    @property
    def is_enough(self) -> bool:
        """Whether painters must wait, because there are enough samples."""
        return bool(self._is_enough[0])

    @is_enough.setter
    def is_enough(self, value: bool) -> None:
        self._is_enough[0] = value

    def put(self, painter: int, sample: Sample) -> None:
        """Write a sample over the painter's oldest one."""
        each = self.plan.slots // self.plan.painters
        done = int(self._produced[painter])
        slot = painter * each + done % each
        self._versions[slot] += 1
        self._images[slot] = sample.images
        self._targets[slot] = sample.target
        self._kinds[slot] = sample.kind
        self._versions[slot] += 1
        self._produced[painter] = done + 1

    def draw(self, rng: np.random.Generator, count: int) -> Batch:
        """Return random samples, with replacement.

        Raises:
            TrainingError: no slot could be read.
        """
        batch = Batch(
            np.empty((count, *IMAGES_SHAPE), np.uint8),
            np.empty((count, self.plan.target_size), np.float32),
            np.empty(count, np.int32),
        )
        each = self.plan.slots // self.plan.painters
        filled = np.minimum(self._produced, each)
        ends = np.cumsum(filled)
        for index in range(count):
            for _ in range(_TRIES):
                number = int(rng.integers(ends[-1]))
                painter = int(np.searchsorted(ends, number, side="right"))
                slot = painter * each + number - int(ends[painter] - filled[painter])
                if self._copy(slot, batch, index):
                    break
            else:
                raise TrainingError(
                    f"{self.plan.path}: expected a sample that can be read, found all "
                    "of them being written; run it again"
                )
        return batch

    def targets(self) -> Singles:
        """Return the targets of all available samples, (n, size)."""
        each = self.plan.slots // self.plan.painters
        filled = np.minimum(self._produced, each).tolist()
        parts = [self._targets[p * each : p * each + n] for p, n in enumerate(filled)]
        return np.concatenate(parts).astype(np.float32)

    def _copy(self, slot: int, batch: Batch, index: int) -> bool:
        before = int(self._versions[slot])
        if before % 2:
            return False
        batch.images[index] = self._images[slot]
        batch.targets[index] = self._targets[slot]
        batch.kinds[index] = self._kinds[slot]
        return int(self._versions[slot]) == before


@contextmanager
def open_replay(slots: int, painters: int, target_size: int) -> Iterator[Replay]:
    """Create an empty buffer, whose memory is always released at the end of the block.

    `slots` are rounded up to a multiple of the painters, which open the `plan` of the result.

    Raises:
        TrainingError: there is not enough memory.
    """
    # An anonymous file: nothing remains, not even after SIGKILL.
    handle = os.memfd_create("modeld-replay")
    try:
        path = Path(f"/proc/{os.getpid()}/fd/{handle}")
        plan = ReplayPlan(path, -(-slots // painters) * painters, painters, target_size)
        free = _available_bytes()
        # Check first, because using memory that does not exist would kill other processes.
        if plan.bytes > _MOST_SHARE * free:
            raise TrainingError(
                f"--slots: expected memory for {plan.slots} samples, {plan.bytes / 2**30:.1f} GiB, "
                f"found {free / 2**30:.1f} GiB available; use fewer slots"
            )
        os.truncate(handle, plan.bytes)
        yield Replay(plan)
    finally:
        os.close(handle)


def _available_bytes() -> int:
    """Return the memory that is available without swapping, in bytes."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return 1024 * int(rest.split()[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


# --- Painters ------------------------------------------------------------------------------------

Source = Callable[[int], Iterable[Sample]]
"""Returns the samples of the world with a number; can be pickled."""


@dataclass(frozen=True, slots=True)
class PaintingPlan:
    """The plan shared by all painters.

    Attributes:
        replay: buffer that receives the samples.
        source: function that renders the samples of a world.
        first: number of the first world.
    """

    replay: ReplayPlan
    source: Source
    first: int = 0


def fill(
    plan: PaintingPlan,
    painter: int,
    is_stopped: Callable[[], bool],
    send: Callable[[Any], None],
) -> None:
    """Render until stopped, and wait while there are enough samples; main function of a process.

    Args:
        plan: plan of all painters.
        painter: index of this process; with n painters it renders every n-th world.
        is_stopped: returns whether to stop.
        send: called with the number of each finished world.
    """
    os.nice(_NICE)
    replay = Replay(plan.replay)
    number = plan.first + painter
    while not is_stopped():
        for sample in plan.source(number):
            replay.put(painter, sample)
            while replay.is_enough and not is_stopped():
                time.sleep(_WAIT_S)
            if is_stopped():
                return
        send(number)
        number += plan.replay.painters


@contextmanager
def open_crew(task: Task, arguments: Sequence[tuple[Any, ...]]) -> Iterator[Crew]:
    """Start worker processes for a training, one per row of arguments; they end with the block.

    If one fails or dies, the crew raises a TrainingError.

    Args:
        task: function of a module, called with a row of arguments, `is_stopped` and `send`.
        arguments: arguments of each process, which can be pickled.
    """
    with processes.open_crew(
        partial(_with_short_error, task), arguments, TrainingError(_GONE)
    ) as found:
        yield found


def _with_short_error(task: Task, *arguments: Any) -> None:
    """Run a task, and turn any exception into a TrainingError with one line."""
    try:
        task(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, in the training's words
        raise TrainingError(
            f"train: a rendering process failed: {type(error).__name__}: {error}"
        ) from None
