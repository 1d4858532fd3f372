"""Runs artifacts: buffers allocated and arguments bound at load, then one tight loop a frame.

A program belongs to one thread at a time. The hot path is `Program.run`: it allocates nothing but
the event objects of pyopencl, logs nothing, and copies each input and output exactly once.
"""

import logging
import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from runtime.artifact import Artifact, from_memory, read_artifact
from runtime.device import Device, choose_device
from runtime.entry import BoundEntry, TensorSpec, bind_entry, bind_launches
from runtime.errors import ArtifactError, InputError, RuntimeFault, first_line
from runtime.guard import check_finite, checks_enabled
from runtime.manifest import Manifest
from runtime.memory import DeviceMemory
from runtime.opencl import cl
from runtime.profile import KernelTime, Span, summarize
from runtime.program_cache import ProgramCache, binary_of, shared_cache
from runtime.stats import ProgramStats, make_stats

logger = logging.getLogger(__name__)


class Program:
    """A loaded artifact, ready to run on one device; made by `load_program` or `run_once`."""

    def __init__(
        self, artifact: Artifact, device: Device, cache: ProgramCache, *, warm_up: bool = False
    ) -> None:
        started_ns = time.perf_counter_ns()
        self._artifact: Artifact | None = artifact
        self._manifest = artifact.manifest
        self._device = device
        self._queue = _open_queue(device)
        _log_target(artifact, device)
        built_before = cache.built_from_source
        target = self._manifest.target
        programs = [cache.build(spec, target) for spec in self._manifest.programs]
        self._programs = programs
        self._memory = DeviceMemory(artifact, device, self._queue)
        buffers = self._memory.buffers
        launches = bind_launches(self._manifest, programs, buffers)
        self._entries: dict[str, BoundEntry] = {
            entry.name: bind_entry(entry, self._manifest, launches, buffers)
            for entry in self._manifest.entries
        }
        self._default = self._manifest.entries[0].name
        self._check = checks_enabled()
        # Events of copies must outlive the copies: pyopencl waits where one is dropped early.
        self._pending: list[cl.Event] = []
        built = cache.built_from_source - built_before
        self.stats = make_stats(self._manifest, device.info.name, built)
        if warm_up:
            self._warm_up()
        self.reset()
        self.stats.load_ms = (time.perf_counter_ns() - started_ns) / 1e6

    def _warm_up(self) -> None:
        """Launch every kernel once, on zero inputs, so that the first frame is like the others.

        Drivers finish compiling and loading a kernel at its first launch (PoCL: 22 ms each). Whole
        entries run, in order, because a kernel may index with what another one computed.
        """
        launched: set[int] = set()
        for spec in self._manifest.entries:
            if launched.issuperset(spec.launches):
                continue
            launched.update(spec.launches)
            self._execute(self._entries[spec.name], None, self._queue, None)

    def binaries(self) -> list[bytes]:
        """Return the device binary of each program of the manifest, b"" where the driver has none.

        On PoCL this compiles each kernel once more, for any work-group size: 40 ms a kernel.
        """
        return [binary_of(program) for program in self._programs]

    # --- what it is ---------------------------------------------------------------------------

    @property
    def manifest(self) -> Manifest:
        """The checked manifest."""
        return self._manifest

    @property
    def metadata(self) -> dict[str, Any]:
        """The model's own metadata, as the compiler wrote it; {} for plain models."""
        return self._manifest.metadata

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points; the first is the default."""
        return tuple(self._entries)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs of the default entry."""
        return self.entry_inputs(self._default)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the default entry."""
        return self.entry_outputs(self._default)

    def entry_inputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Inputs of `entry`: what `run` must be given.

        Raises:
            InputError: there is no such entry.
        """
        return tuple(slot.spec for slot in self._entry(entry).inputs)

    def entry_outputs(self, entry: str | None = None) -> tuple[TensorSpec, ...]:
        """Outputs of `entry`: what `run` returns.

        Raises:
            InputError: there is no such entry.
        """
        return tuple(slot.spec for slot in self._entry(entry).outputs)

    def _entry(self, name: str | None) -> BoundEntry:
        found = self._entries.get(self._default if name is None else name)
        if found is None:
            if self._artifact is None:
                raise RuntimeFault(f"{self._manifest.name}: the program is closed")
            raise InputError(
                f"{self._manifest.name}: no entry {name!r}; it has: {', '.join(self._entries)}"
            )
        return found

    # --- running ------------------------------------------------------------------------------

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> dict[str, NDArray[Any]]:
        """Run one entry: write the inputs, replay its launches, read the outputs.

        Args:
            inputs: for each input of the entry, an array of exactly its dtype and shape,
                C-contiguous; nothing is converted. They may be reused once `run` returns.
            entry: None for the first entry.

        Returns:
            The outputs by name. The dictionary and its arrays belong to the entry and are
            overwritten by its next run: copy what must stay.

        Raises:
            InputError: an input is missing, unknown, or of another dtype, shape or layout.
            RuntimeFault: the device failed, or an output is not finite under RUNTIME_CHECK=1.
        """
        started_ns = time.perf_counter_ns()
        bound = self._entry(entry)
        bound.check_inputs(inputs)
        if self._check:
            self._memory.poison()
        self._execute(bound, inputs, self._queue, None)
        stats = self.stats
        stats.runs += 1
        stats.last_run_ms = (time.perf_counter_ns() - started_ns) / 1e6
        if self._check:
            check_finite(bound.results, bound.name)
        return bound.results

    def _execute(
        self,
        bound: BoundEntry,
        inputs: Mapping[str, NDArray[Any]] | None,
        queue: cl.CommandQueue,
        events: list[cl.Event] | None,
    ) -> None:
        """Do one frame; without `inputs` they stay what they are on the device."""
        pending = self._pending
        copy, enqueue = cl.enqueue_copy, cl.enqueue_nd_range_kernel
        where = "writing the inputs"
        try:
            if inputs is not None:
                for slot in bound.inputs:
                    array = inputs[slot.name]
                    pending.append(copy(queue, slot.buffer, array, is_blocking=False))
            for launch in bound.launches:
                where = launch.name
                event = enqueue(queue, launch.kernel, launch.global_size, launch.local_size)
                if events is not None:
                    events.append(event)
            where = "reading the outputs"
            for out in bound.outputs:
                pending.append(copy(queue, out.array, out.buffer, is_blocking=False))
            queue.finish()
        except cl.Error as error:
            raise RuntimeFault(
                f"{self._device.info.name}: entry {bound.name!r}, {where}: {first_line(error)}"
            ) from error
        finally:
            pending.clear()

    def profile(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None, iterations: int = 20
    ) -> list[KernelTime]:
        """Measure each launch of an entry with the device's own clock; state advances as in `run`.

        Returns:
            One time per launch, in launch order.
        """
        bound = self._entry(entry)
        spans = self.spans(inputs, entry, iterations)
        work = [(launch.origin, launch.flops, launch.bytes_moved) for launch in bound.launches]
        return summarize(spans, work)

    def spans(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None, iterations: int = 1
    ) -> list[list[Span]]:
        """Run an entry `iterations` times and return when each launch was queued, began, ended.

        Raises:
            InputError: as `run`, or `iterations` is not positive.
        """
        if iterations < 1:
            raise InputError(f"iterations: expected at least 1, got {iterations}")
        bound = self._entry(entry)
        bound.check_inputs(inputs)
        queue = _open_queue(self._device, profiling=True)
        result = []
        for _ in range(iterations):
            events: list[cl.Event] = []
            self._execute(bound, inputs, queue, events)
            result.append(
                [
                    Span(n, launch.name, e.profile.queued, e.profile.start, e.profile.end)
                    for n, (launch, e) in enumerate(zip(bound.launches, events, strict=True))
                ]
            )
        return result

    # --- state --------------------------------------------------------------------------------

    def reset(self) -> None:
        """Set all state to its reset values, as after loading.

        Raises:
            RuntimeFault: the device failed, or the program is closed.
        """
        self._entry(None)
        try:
            self._memory.reset()
        except cl.Error as error:
            raise RuntimeFault(
                f"{self._device.info.name}: resetting state: {first_line(error)}"
            ) from error

    def state(self, name: str) -> NDArray[Any]:
        """Return a copy of state buffer `name`, of its declared dtype and shape.

        Raises:
            InputError: there is no such state.
        """
        self._entry(None)
        for index, spec in enumerate(self._manifest.buffers):
            if spec.kind == "state" and spec.name == name:
                array = np.empty(spec.shape, spec.dtype)
                cl.enqueue_copy(self._queue, array, self._memory.buffers[index])
                return array
        names = ", ".join(b.name for b in self._manifest.buffers if b.kind == "state")
        raise InputError(f"{self._manifest.name}: no state {name!r}; it has: {names or 'none'}")

    def close(self) -> None:
        """Give back device memory and the mapped file; nothing but `close` may follow."""
        if self._artifact is None:
            return
        self._queue.finish()
        self._entries.clear()
        self._memory.release()
        self._artifact = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _open_queue(device: Device, *, profiling: bool = False) -> cl.CommandQueue:
    try:
        if not profiling:
            return cl.CommandQueue(device.context)
        enable = cl.command_queue_properties.PROFILING_ENABLE
        return cl.CommandQueue(device.context, properties=enable)
    except cl.Error as error:
        raise RuntimeFault(
            f"{device.info.name}: cannot make a command queue: {first_line(error)}"
        ) from error


def _log_target(artifact: Artifact, device: Device) -> None:
    target, info = artifact.manifest.target, device.info
    has_binaries = any(spec.binary for spec in artifact.manifest.programs)
    if has_binaries and (target.device, target.driver) != (info.name, info.driver):
        logger.info(
            "%s: compiled on %s (%s), this is %s (%s): its kernels are built from source",
            artifact.manifest.name,
            target.device,
            target.driver,
            info.name,
            info.driver,
        )


def load_program(path: str | os.PathLike[str], device: Device | str | None = None) -> Program:
    """Load an artifact onto a device.

    Args:
        path: the artifact, made by `modeld compile`.
        device: an opened device, a name as for `choose_device`, or None for the best one.

    Raises:
        ArtifactError: the file is missing, damaged, or does not fit the device.
        NoDeviceError: no device is usable. BuildError: a kernel does not build on it.
    """
    started_ns = time.perf_counter_ns()
    artifact = read_artifact(path)
    opened = device if isinstance(device, Device) else choose_device(device)
    try:
        cache = ProgramCache(opened)
        program = Program(artifact, opened, cache, warm_up=True)
        cache.save()
    except ArtifactError as error:
        raise ArtifactError(f"{path}: {error}") from error
    program.stats.load_ms = (time.perf_counter_ns() - started_ns) / 1e6
    return program


def run_once(
    manifest: Mapping[str, Any],
    data: bytes | memoryview,
    inputs: Mapping[str, NDArray[Any]],
    device: Device | str | None = None,
) -> dict[str, NDArray[Any]]:
    """Run the first entry of an artifact that is in memory, once; outputs are the caller's.

    Programs are built through a cache shared by the process, so realizing the same kernels again
    costs no compilation.

    Args:
        manifest: as for `write_artifact` (`sha256`, `data_size` are filled in).
        data: weights and reset values.
        inputs: as for `Program.run`.
        device: as for `load_program`.

    Raises:
        ArtifactError, NoDeviceError, BuildError, InputError, RuntimeFault: as the two above.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    with Program(from_memory(manifest, data), opened, shared_cache(opened)) as program:
        return dict(program.run(inputs))


def build_binaries(
    manifest: Mapping[str, Any], data: bytes | memoryview, device: Device | str | None = None
) -> list[bytes]:
    """Return the device binaries that the compiler puts into an artifact, one per program.

    They are taken after every kernel was launched once, so that loading them compiles nothing. The
    manifest's `target` must then name `device.info.name` and `device.info.driver`.

    Raises:
        ArtifactError, NoDeviceError, BuildError, RuntimeFault: as `load_program`.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    cache = ProgramCache(opened)
    artifact = from_memory(manifest, data)
    with Program(artifact, opened, cache, warm_up=True) as program:
        return program.binaries()


__all__ = ["Program", "ProgramStats", "build_binaries", "load_program", "run_once"]
