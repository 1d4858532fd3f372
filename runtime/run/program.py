"""A loaded artifact on a device, ready to run.

Buffers are allocated and kernel arguments are set when it is loaded. `Program.run`, called once per
frame, then allocates nothing except pyopencl's event objects, logs nothing, and copies each input
and output exactly once. Only one thread at a time may use a program.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, Self

from numpy.typing import NDArray

from runtime.errors import BuildError, InputError, RuntimeFault, first_line
from runtime.format.artifact import Artifact
from runtime.format.manifest import Manifest, is_strict
from runtime.opencl.binding import cl
from runtime.opencl.device import Device, DeviceInfo
from runtime.opencl.program_cache import ProgramCache, binary_of
from runtime.opencl.recording_api import RecordingError
from runtime.opencl.steps import Step
from runtime.run.entry import Binder, BoundEntry, Inputs, TensorSpec, programs_needed
from runtime.run.megakernel import Megakernel
from runtime.run.memory import DeviceMemory, States
from runtime.run.profile import KernelTime, Span, make_stats, summarize
from runtime.run.submission import (
    check_finite,
    checks_enabled,
    drain,
    megakernel_enabled,
    open_first_queue,
    open_queue,
    recorded_entries,
)

logger = logging.getLogger(__name__)


class Program:
    """An artifact loaded onto a device, made by `load_program` or `run_once`."""

    def __init__(
        self,
        artifact: Artifact,
        device: Device,
        cache: ProgramCache,
        *,
        warm_up: bool = False,
        priority: str | None = None,
    ) -> None:
        started_ns = time.perf_counter_ns()
        self._is_open = True
        self._manifest = artifact.manifest
        self._device = device
        self._cache = cache
        self._queue, self.priority_refusal = open_first_queue(device, priority)
        _log_target(artifact, device)
        # The cache counts the programs of all callers. The difference is the number built here.
        built_before = cache.built_from_source
        self._memory = DeviceMemory(artifact, device, self._queue)
        self._states = States(self._manifest, self._memory, self._queue)
        self._programs: list[cl.Program | None] = [None] * len(self._manifest.programs)
        self._megakernel = self._make_megakernel(cache)
        # Sorted, so that logs and caches do not depend on the order of a set.
        for index in sorted(programs_needed(self._manifest, as_one=self._megakernel is not None)):
            if self._programs[index] is None:
                spec = self._manifest.programs[index]
                self._programs[index] = cache.build(spec, self._manifest.target)
        self._binder = Binder(self._manifest, self._programs, self._memory, self._megakernel)
        self._entries: dict[str, BoundEntry] = {
            entry.name: self._binder.bind(entry) for entry in self._manifest.entries
        }
        self._single_steps: dict[str, tuple[Step, ...]] = {}
        self._unfinished = True  # no run has completed yet, so the counters are not set
        self._default = self._manifest.entries[0].name
        self._check = checks_enabled()
        # Events must outlive their copies, because pyopencl waits when an event is dropped early.
        self._pending: list[cl.Event] = []
        built = cache.built_from_source - built_before
        self.stats = make_stats(self._manifest, device.info.name, device.info.driver, built)
        if warm_up:
            self._warm_up()
            self._entries = recorded_entries(
                self._entries, self._binder, device, self._queue, self._run_idle
            )
        self.workers = device.workers()  # can be identified only after kernels have run
        # The warm-up ran on zero inputs and advanced the states, so reset them.
        self.reset()
        self.stats.load_ms = (time.perf_counter_ns() - started_ns) / 1e6

    def _make_megakernel(self, cache: ProgramCache) -> Megakernel | None:
        """Build the megakernel, if the artifact has one and the device is a PoCL CPU.

        Its work-groups wait for each other. PoCL runs them as host threads that take turns; other
        drivers do not guarantee that, so a wait might never end.
        """
        manifest, memory = self._manifest, self._memory
        # The megakernel addresses all buffers by their offsets in two pieces.
        if manifest.megakernel is None or memory.memory is None or memory.data is None:
            return None
        if not (self._device.info.is_pocl and megakernel_enabled()):
            return None
        index = manifest.megakernel.program
        try:
            program = cache.build(manifest.programs[index], manifest.target)
        except BuildError as error:
            # The other programs contain the same kernels, and their errors are clearer.
            logger.warning("%s: kernels are launched one by one: %s", manifest.name, error)
            return None
        self._programs[index] = program
        return Megakernel(
            manifest, program, self._device, memory.memory, memory.data, memory.places
        )

    def _warm_up(self) -> None:
        """Launch every kernel once on zero inputs: drivers finish compiling then (PoCL: 22 ms).

        Whole entries run, in order, because a kernel may use results of another one as indices.
        """
        launched: set[int] = set()
        for spec in self._manifest.entries:
            # Skip an entry whose kernels have all been launched as part of others.
            if launched.issuperset(spec.launches):
                continue
            launched.update(spec.launches)
            bound = self._entries[spec.name]
            self._run_idle(bound)

    def _run_idle(self, bound: BoundEntry) -> None:
        self._execute(bound, bound.steps, None, self._queue, None)

    def binaries(self) -> list[bytes]:
        """Return each program's device binary; b"" for programs that this device does not need.

        On PoCL this compiles each kernel once more, for any work-group size: 40 ms per kernel.
        """
        return [b"" if program is None else binary_of(program) for program in self._programs]

    # --- Properties ---------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The checked manifest."""
        return self._manifest

    @property
    def device(self) -> DeviceInfo:
        """The device that the program runs on."""
        return self._device.info

    @property
    def metadata(self) -> dict[str, Any]:
        """The model's metadata, as written by the compiler; {} for plain models."""
        return self._manifest.metadata

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points; the first is the default."""
        return tuple(self._entries)

    def submissions(self, entry: str | None = None) -> int:
        """Return the number of commands in a run of `entry`; raise InputError if it is missing."""
        return sum(step.submissions for step in self._entry(entry).steps)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs of the default entry."""
        return self.entry_inputs(self._default)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs of the default entry."""
        return self.entry_outputs(self._default)

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Return the inputs that `run` needs for `entry`; raise InputError if it is missing."""
        return tuple(slot.spec for slot in self._entry(entry).inputs)

    def entry_outputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Return the outputs that `run` returns for `entry`; raise InputError if it is missing."""
        return tuple(slot.spec for slot in self._entry(entry).outputs)

    def _entry(self, name: str | None) -> BoundEntry:
        found = self._entries.get(self._default if name is None else name)
        if found is None:
            if not self._is_open:
                raise RuntimeFault(f"{self._manifest.name}: the program is closed")
            raise InputError(
                f"{self._manifest.name}: no entry {name!r}; it has: {', '.join(self._entries)}"
            )
        return found

    # --- Running ------------------------------------------------------------------------------

    def run(self, inputs: Inputs, entry: str | None = None) -> dict[str, NDArray[Any]]:
        """Run one entry: write the inputs, run its launches, read the outputs.

        Args:
            inputs: For each input of the entry, a C-contiguous array of exactly its dtype and
                shape; nothing is converted. For a partial input the array may be shorter: only its
                bytes are copied, and the rest on the device is unchanged. Arrays may be reused once
                `run` returns. An input can also be a `pyopencl.Buffer` of the device's context that
                holds the complete input, which kernels read directly.
            entry: None for the first entry.

        Returns:
            The outputs by name. The dictionary and its arrays belong to the entry, and its next run
                overwrites them: copy them to keep them.

        Raises:
            InputError: an input is missing, unknown, or has another dtype, shape or layout.
            RuntimeFault: the device failed, or an output is not finite under RUNTIME_CHECK=1.
        """
        started_ns = time.perf_counter_ns()
        bound = self._entry(entry)
        bound.check_inputs(inputs)
        # Fill the arena with NaN first, so that a value left over from an earlier run cannot be
        # mistaken for a result.
        if self._check:
            self._memory.poison()
        self._execute(bound, bound.steps, inputs, self._queue, None)
        stats = self.stats
        stats.runs += 1
        duration_ns = time.perf_counter_ns() - started_ns
        stats.last_run_ms = duration_ns / 1e6
        if self.workers is not None:
            self.workers.ran(duration_ns)
        if self._check:
            check_finite(bound.results, bound.name)
            if self._megakernel is not None and not self._megakernel.idle(self._queue):
                raise RuntimeFault(
                    f"entry {bound.name!r}: the megakernel left counters that are not zero"
                )
        return bound.results

    def _execute(
        self,
        bound: BoundEntry,
        steps: tuple[Step, ...],
        inputs: Inputs | None,
        queue: cl.CommandQueue,
        events: list[cl.Event] | None,
    ) -> None:
        """Run the steps once. `inputs` None leaves the inputs on the device unchanged."""
        pending = self._pending
        where = "writing the inputs"
        try:
            if self._unfinished:
                self._recover(queue)
            # The flag is cleared only once the outputs have been read, so it stays set after any
            # exception.
            self._unfinished = True
            if inputs is not None:
                bound.write(inputs, queue, pending)
            for step in steps:
                where = step.name
                # The arguments were set at loading, so a step is a single driver call.
                event = step.enqueue(queue)
                if events is not None and event is not None:
                    events.append(event)
            where = "reading the outputs"
            bound.read(queue, pending)
            self._unfinished = False
        except (cl.Error, RecordingError) as error:
            raise RuntimeFault(
                f"{self._device.info.name}: entry {bound.name!r}, {where}: {first_line(error)}"
            ) from error
        finally:
            # The caller's arrays and the events must stay until the device is done with them, also
            # after an error.
            if self._unfinished:
                drain(queue)
            pending.clear()

    def _recover(self, queue: cl.CommandQueue) -> None:
        """Prepare the device for a run after an aborted one. Its queue is empty by then.

        Otherwise nonzero counters would make workers skip tasks or wait forever.
        """
        if self._megakernel is not None:
            self._megakernel.clear(queue)
            queue.finish()
        self._unfinished = False

    def profile(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None, iterations: int = 20
    ) -> list[KernelTime]:
        """Measure each launch of an entry, in order, by the device's clock.

        States advance as in `run`. Launches that `run` joins are run separately, by the same code.
        """
        bound = self._entry(entry)
        spans = self.spans(inputs, entry, iterations)
        work = [(launch.origin, launch.flops, launch.bytes_moved) for launch in bound.launches]
        return summarize(spans, work)

    def spans(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None, iterations: int = 1
    ) -> list[list[Span]]:
        """Run an entry `iterations` times; return the queue, start and end times of each launch.

        Raises InputError as `run` does, or if `iterations` is not positive.
        """
        if iterations < 1:
            raise InputError(f"iterations: expected at least 1, got {iterations}")
        bound = self._entry(entry)
        bound.check_inputs(inputs)
        # Profiling is a property of a queue and slows down launches, so `run` uses another queue.
        queue = open_queue(self._device, profiling=True)
        steps = self._steps_of(bound)
        result = []
        for _ in range(iterations):
            events: list[cl.Event] = []
            self._execute(bound, steps, inputs, queue, events)
            result.append(
                [
                    Span(n, step.name, e.profile.queued, e.profile.start, e.profile.end)
                    for n, (step, e) in enumerate(zip(steps, events, strict=True))
                ]
            )
        return result

    def _steps_of(self, bound: BoundEntry) -> tuple[Step, ...]:
        """Return the steps of an entry with one launch each, for timing."""
        # If the counts are equal, no step joins launches.
        if len(bound.steps) == len(bound.launches):
            return bound.steps
        spec = self._manifest.entry(bound.name)
        assert spec is not None  # it has been bound
        if bound.name not in self._single_steps:
            self._single_steps[bound.name] = self._binder.single_steps(spec)
        return self._single_steps[bound.name]

    # --- States -------------------------------------------------------------------------------

    def reset(self) -> None:
        """Set all states to their reset values, as after loading.

        Raises RuntimeFault if the device failed, or the program is closed.
        """
        self._entry(None)
        try:
            self._recover(self._queue)
            self._memory.reset()
        except cl.Error as error:
            raise RuntimeFault(
                f"{self._device.info.name}: resetting state: {first_line(error)}"
            ) from error

    def state(self, name: str) -> NDArray[Any]:
        """Return a copy of a state; see `States.read`."""
        self._entry(None)
        return self._states.read(name)

    def set_state(self, name: str, value: NDArray[Any]) -> None:
        """Write a state; see `States.write`."""
        self._entry(None)
        self._states.write(name, value)

    def close(self) -> None:
        """Release the device memory and the artifact's. Afterwards only `close` may be called."""
        if not self._is_open:
            return
        # The device reads the artifact's memory, so its work must be done before that is released.
        self._queue.finish()
        self._cache.launched()
        # Kernels and recordings use the buffers, so release the entries before the memory.
        for bound in self._entries.values():
            bound.release()
        self._entries.clear()
        self._single_steps.clear()
        if self._megakernel is not None:
            self._megakernel.release()
        self._memory.release()
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _log_target(artifact: Artifact, device: Device) -> None:
    target, info = artifact.manifest.target, device.info
    has_binaries = any(spec.binary for spec in artifact.manifest.programs)
    # With another device or driver a binary is no error, but the kernels have to be compiled.
    if has_binaries and (target.device, target.driver) != (info.name, info.driver):
        logger.info(
            "%s: compiled on %s (%s), this is %s (%s): its kernels are built from source",
            artifact.manifest.name,
            target.device,
            target.driver,
            info.name,
            info.driver,
        )
    if is_strict(artifact.manifest.metadata) and not info.fuses:
        logger.warning(
            "%s: strict numerics need a CPU with fused multiply-add, and PoCL; on %s the last bits "
            "of its results may differ",
            artifact.manifest.name,
            info.name,
        )
