"""Build programs to measure, in worker processes where that helps, within a time limit.

PoCL compiles one program on one core. A worker builds a program, launches it once over nothing, so
that everything is compiled, and hands the binary back.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.pool
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final

import numpy as np

from runtime.errors import RuntimeFault
from runtime.opencl.binding import cl
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import binary_of, build
from scheduler.emit.megakernel import KERNEL_NAME

logger = logging.getLogger(__name__)

# Counters of a launch without records, and more.
_COUNTER_INTS: Final = 1024


def compile_source(source: str, device: Device) -> cl.Program:
    """Return a megakernel, compiled; raise pyopencl.Error if the compiler rejects it."""
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


def load_binary(binary: bytes, device: Device) -> cl.Program:
    """Return the program of another process's binary, or raise pyopencl.Error if it is refused."""
    return build(cl.Program(device.context, [device.handle], [binary]))


def _in_worker(source: str, device: str) -> bytes:
    """Return the binary, empty where there is none: errors of drivers do not always pickle."""
    try:
        return binary_of(compile_source(source, choose_device(device)))
    except (cl.Error, RuntimeFault):
        return b""


class Builders(AbstractContextManager["Builders"]):
    """Builds several programs at once, in `workers` processes; 0 builds them here, one by one."""

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
        """Stop the workers, whatever they do."""
        if self._pool is not None:
            self._pool.terminate()
            self._pool.join()

    def build(self, sources: Sequence[str], deadline: float) -> list[cl.Program | None]:
        """Return the programs in order; None for those not built by the `perf_counter` deadline."""
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
            built.append(load_binary(binary, self.device) if binary else None)
        return built

    def _here(self, source: str) -> cl.Program | None:
        try:
            return compile_source(source, self.device)
        except cl.Error as error:
            logger.info("a candidate does not build: %s", error)
            return None
