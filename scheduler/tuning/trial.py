"""Runs kernel variants on a CPU device, checks their results, and times them.

    variants a, b, c     ->     one megakernel; records a a a a b b b b c c c c
    a round:                    one launch over the records of each, in turn

A megakernel runs all launches of an entry as one; a record in its table is one kernel with its
arguments. All workers share a variant's work-items, as in an artifact. Each record reads another
copy of its weights, as in a frame. Activations stay in the cache from the previous record.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.pool
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.errors import RuntimeFault
from runtime.format.parts import RECORD_WORDS
from runtime.opencl.binding import cl
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import binary_of, build
from scheduler.emit.megakernel import KERNEL_NAME, Function, megakernel_source
from scheduler.ir.node import Node, is_weight
from scheduler.loops.pack import PackedWeight
from scheduler.render.kernel_code import KernelCode
from scheduler.tuning.variants import (
    COLD_BYTES,
    MAX_DATA_BYTES,
    RECORDS,
    UNWRITTEN,
    Job,
    Turns,
    Variant,
    values_of,
)

logger = logging.getLogger(__name__)

Array = NDArray[Any]
START_LAUNCHES: Final = 20  # empty launches that measure the cost of starting a launch
MAX_START_SHARE: Final = 0.5  # largest share of a measured time to subtract as that cost
_COUNTER_INTS: Final = 1024  # size of the counters for a launch without records
_LINE_INTS: Final = 16  # ints per cache line
_ALIGNMENT: Final = 256  # bytes; each part begins at a multiple


class _Memory:
    """The layout and initial content of a buffer, before it is made."""

    def __init__(self) -> None:
        self.size = 0
        self.parts: list[tuple[int, Array]] = []

    def put(self, data: Array) -> int:
        at = self.reserve(data.nbytes)
        self.parts.append((at, data))
        return at

    def reserve(self, size: int) -> int:
        at = self.size
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT + _ALIGNMENT
        return at

    def buffer(self, context: cl.Context) -> cl.Buffer:
        raw = np.zeros(max(self.size, _ALIGNMENT), np.uint8)
        for at, data in self.parts:
            raw[at : at + data.nbytes] = np.asarray(data, order="C").reshape(-1).view(np.uint8)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        return cl.Buffer(context, flags, hostbuf=raw)


def make_trials(
    builders: Builders, groups: Sequence[Sequence[Variant]], deadline: float
) -> list[Trial | None]:
    """Return a trial for each group of variants, or None if it was not built by the deadline."""
    rendered = [[v.job.render(v.choice) for v in group] for group in groups]
    programs = builders.build([_source(codes) for codes in rendered], deadline)
    return [
        None if program is None else Trial(builders, group, codes, program)
        for group, codes, program in zip(groups, rendered, programs, strict=True)
    ]


def _source(codes: Sequence[KernelCode]) -> str:
    return megakernel_source([Function(f"f{i}", code) for i, code in enumerate(codes)])


class Trial(Turns):
    """Variants in the device's memory, ready to run as records of one program."""

    def __init__(
        self,
        builders: Builders,
        variants: Sequence[Variant],
        rendered: Sequence[KernelCode],
        program: cl.Program,
    ) -> None:
        super().__init__(variants)
        self._workers = builders.device.info.compute_units
        context = builders.device.context
        self._queue = cl.CommandQueue(context)
        self._memory, self._data = _Memory(), _Memory()
        self._places: dict[tuple[Job, Node], int] = {}
        # First, because it lays out the buffers.
        heads, words = self._records(rendered)
        table = np.array([*heads, *words], np.int64)
        lines = 1 + RECORDS * (self._workers + 1)
        zeros = np.zeros(lines * _LINE_INTS, np.int32)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._buffers = (
            self._memory.buffer(context),
            self._data.buffer(context),
            cl.Buffer(context, flags, hostbuf=table),
            cl.Buffer(context, flags, hostbuf=zeros),
        )
        self._kernel = cl.Kernel(program, KERNEL_NAME)
        # The shortest launch is the least disturbed one.
        self._start_ms = min(self._launch(0, 0) for _ in range(START_LAUNCHES))
        self.correct = [self.check(number) for number in range(len(self.variants))]

    def release(self) -> None:
        """Free the device memory."""
        for buffer in self._buffers:
            buffer.release()

    def _spent(self, number: int, count: int) -> float:
        """Return the milliseconds of `count` records of a variant, without the cost of a launch.

        At most MAX_START_SHARE of the time is subtracted, or a disturbed measurement of that cost
        could make a kernel look infinitely fast.
        """
        whole = self._launch(number * RECORDS, count)
        return whole - min(self._start_ms, MAX_START_SHARE * whole)

    def _launch(self, first: int, count: int) -> float:
        """Run `count` records from `first` on; return the milliseconds."""
        self._kernel.set_args(*self._buffers, np.int32(first), np.int32(first + count))
        started = time.perf_counter_ns()
        cl.enqueue_nd_range_kernel(self._queue, self._kernel, (self._workers,), (1,))
        self._queue.finish()
        return (time.perf_counter_ns() - started) / 1e6

    def _records(self, rendered: Sequence[KernelCode]) -> tuple[list[int], list[int]]:
        heads: list[int] = []
        words: list[int] = []
        # The argument words follow the heads of all records, as in the table of an artifact.
        before = RECORD_WORDS * RECORDS * len(rendered)
        for number, (variant, code) in enumerate(zip(self.variants, rendered, strict=True)):
            copies = self._copies(code, len(rendered))
            placed = [self._arguments(variant.job, code) for _ in range(copies)]
            for n in range(RECORDS):
                heads += (number, code.items, before + len(words))
                words += placed[n % copies]
        return heads, words

    def _copies(self, code: KernelCode, variants: int) -> int:
        size = sum(a.data.nbytes for a in code.arguments if isinstance(a, PackedWeight))
        share = min(COLD_BYTES, MAX_DATA_BYTES // variants)
        return max(1, min(RECORDS, share // max(1, size)))

    def _arguments(self, job: Job, code: KernelCode) -> list[int]:
        """Return the argument words of one record, with a new copy of its packed weights."""
        words = [self._place(job, node) for node in code.storage]
        for argument in code.arguments:
            if isinstance(argument, PackedWeight):
                # The lowest bit marks an offset into the data, see `runtime.run.memory.IN_DATA`.
                words.append(self._data.put(argument.data) + 1)
            else:
                words.append(self._place(job, argument))
        return words

    def _place(self, job: Job, node: Node) -> int:
        """Return the word for a node that a job reads or writes; the job's variants share it."""
        key = (job, node)
        if key not in self._places:
            if is_weight(node):
                self._places[key] = self._data.put(node.arg.data) + 1
            elif node in job.nest.outputs:
                self._places[key] = self._memory.reserve(prod(node.shape) * node.dtype.itemsize)
            else:
                self._places[key] = self._memory.put(values_of(node.dtype, prod(node.shape)))
        return self._places[key]

    def _results(self, number: int) -> list[Array]:
        job = self.variants[number].job
        results = []
        # Overwrite earlier results, which would hide that a variant writes nothing.
        for node in dict.fromkeys(job.nest.outputs):
            size, at = prod(node.shape) * node.dtype.itemsize, self._places[job, node]
            cl.enqueue_fill_buffer(self._queue, self._buffers[0], UNWRITTEN, at, size)
        self._launch(number * RECORDS, 1)
        for node in dict.fromkeys(job.nest.outputs):
            value = np.empty(prod(node.shape), node.dtype.np)
            cl.enqueue_copy(
                self._queue, value, self._buffers[0], src_offset=self._places[job, node]
            )
            results.append(value)
        self._queue.finish()
        return results


# --- Building programs in worker processes, within a time limit -------------------------------
# PoCL compiles a program on one core. A worker builds a program, launches it once without records
# so that everything is compiled, and returns the binary.


def _compile_source(source: str, device: Device) -> cl.Program:
    """Return a compiled megakernel; raise pyopencl.Error if the compiler rejects it."""
    program = build(cl.Program(device.context, source))
    queue = cl.CommandQueue(device.context)
    zeros = np.zeros(_COUNTER_INTS, np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    empty = [cl.Buffer(device.context, flags, hostbuf=zeros) for _ in range(4)]
    kernel = cl.Kernel(program, KERNEL_NAME)
    kernel.set_args(*empty, np.int32(0), np.int32(0))
    cl.enqueue_nd_range_kernel(queue, kernel, (device.info.compute_units,), (1,))
    queue.finish()
    return program


def _load_binary(binary: bytes, device: Device) -> cl.Program:
    """Return a program from a worker's binary; raise pyopencl.Error if the driver rejects it."""
    return build(cl.Program(device.context, [device.handle], [binary]))


def _in_worker(source: str, device: str) -> bytes:
    """Return the binary of a program; empty on failure, because driver errors may not pickle."""
    try:
        return binary_of(_compile_source(source, choose_device(device)))
    except (cl.Error, RuntimeFault):
        return b""


class Builders(AbstractContextManager["Builders"]):
    """Builds programs in parallel, in `workers` processes; 0 builds them in this process."""

    def __init__(self, device: Device, workers: int) -> None:
        self.device = device
        self._pool: multiprocessing.pool.Pool | None = None
        if workers > 0:
            self._pool = multiprocessing.get_context("spawn").Pool(workers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Terminate the workers."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def build(self, sources: Sequence[str], deadline: float) -> list[cl.Program | None]:
        """Return the programs in order, with None for those not built by the deadline.

        The deadline is in seconds of `time.perf_counter`.
        """
        if self._pool is None:
            return [self._here(s) if time.perf_counter() < deadline else None for s in sources]
        index = self.device.info.index
        pending = [self._pool.apply_async(_in_worker, (s, index)) for s in sources]
        built: list[cl.Program | None] = []
        for job in pending:
            try:
                binary = job.get(max(0.0, deadline - time.perf_counter()))
            except multiprocessing.TimeoutError:
                binary = b""
            built.append(_load_binary(binary, self.device) if binary else None)
        return built

    def _here(self, source: str) -> cl.Program | None:
        try:
            return _compile_source(source, self.device)
        except cl.Error as error:
            logger.info("a candidate does not build: %s", error)
            return None
