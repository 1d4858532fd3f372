"""Runs kernel variants on a device that launches kernels one by one (a GPU), and times them.

    variants a, b     ->     one program each
    a round:                 launches of each in turn, timed by the device's clock

Successive launches of a variant take turns with copies of its packed weights, because in a frame
weights are not in the cache either. The host's cost of a launch is not measured; it does not depend
on the loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import prod
from typing import Final

import numpy as np

from runtime.errors import first_line
from runtime.format.parts import TEXEL, ImageSpec
from runtime.opencl.binding import cl
from runtime.opencl.device import Device
from runtime.opencl.program_cache import build
from runtime.run.memory import make_image, poison_image
from scheduler.errors import LoweringError
from scheduler.ir.node import Node, is_weight
from scheduler.loops.images import Image
from scheduler.loops.pack import PackedWeight
from scheduler.render.kernel_code import KernelCode, Parameter
from scheduler.render.prelude.prelude import prelude_of
from scheduler.tuning.variants import (
    COLD_BYTES,
    MAX_DATA_BYTES,
    RECORDS,
    UNWRITTEN,
    Array,
    Job,
    Turns,
    Variant,
    values_of,
)

logger = logging.getLogger(__name__)

NAME: Final = "variant"
NS_PER_MS: Final = 1e6
# Upper bound of the variants that are in memory together.
MAX_VARIANTS: Final = 64
Memory = cl.Buffer | cl.Image


class Launches:
    """Builds variants in this process, each as a separate program.

    Programs are cached, because the best choice so far is measured repeatedly. Deadlines are in
    seconds of `clock`.
    """

    def __init__(self, device: Device, clock: Callable[[], float]) -> None:
        self._device, self._clock = device, clock
        self._programs: dict[str, cl.Program] = {}
        enable = cl.command_queue_properties.PROFILING_ENABLE
        self._queue = cl.CommandQueue(device.context, properties=enable)

    def prepare(
        self, groups: Sequence[Sequence[Variant]], deadline: float
    ) -> list[LaunchTrial | None]:
        """Return a trial for each group of variants.

        A variant that does not build and run by the deadline is left out. If that is the first
        variant of a group, its trial is None.
        """
        return [self._trial(group, deadline) for group in groups]

    def _trial(self, group: Sequence[Variant], deadline: float) -> LaunchTrial | None:
        trial = LaunchTrial(self._device, self._queue)
        for variant in group:
            late = self._clock() >= deadline
            if (late or not self._try_add(trial, variant)) and variant is group[0]:
                trial.release()
                return None
            if late:
                break
        return trial

    def _try_add(self, trial: LaunchTrial, variant: Variant) -> bool:
        """Add a variant to a trial; return whether it builds and runs."""
        try:
            code = variant.job.render(variant.choice)
            source = prelude_of([code], host_clang=variant.job.nest.spec.host_clang)
            source += code.definition(NAME)
            if source not in self._programs:
                self._programs[source] = build(cl.Program(self._device.context, source))
            # Some drivers compile at the first launch. `add` launches the kernel once.
            trial.add(variant, code, self._programs[source])
        except (cl.Error, LoweringError) as error:
            logger.info("choice %s is left out: %s", variant.choice, first_line(error))
            return False
        return True


class LaunchTrial(Turns):
    """Variants in the device's memory, ready to run on an in-order queue with profiling."""

    def __init__(self, device: Device, queue: cl.CommandQueue) -> None:
        super().__init__([])
        self._device, self._queue = device, queue
        self._codes: list[KernelCode] = []
        self._places: dict[tuple[Job, Node], Memory] = {}
        self._weights: list[Memory] = []
        self._kernels: list[list[cl.Kernel]] = []

    def add(self, variant: Variant, code: KernelCode, program: cl.Program) -> None:
        """Add a variant and run it once; raise pyopencl.Error if the device cannot run it."""
        self._kernels.append(self._bound(variant.job, code, program))
        self._codes.append(code)
        self.variants.append(variant)
        try:
            self.correct.append(self.check(len(self.correct)))
        except cl.Error:
            for of_variants in (self._kernels, self._codes, self.variants):
                of_variants.pop()
            raise

    def release(self) -> None:
        """Free the device memory."""
        for memory in (*self._places.values(), *self._weights):
            memory.release()

    def _spent(self, number: int, count: int) -> float:
        return sum(self._launch(number, count))

    def _launch(self, number: int, count: int) -> list[float]:
        """Run a variant `count` times; return the milliseconds of each launch."""
        code, kernels = self._codes[number], self._kernels[number]
        size, group = (code.launched,), (code.group,)
        events = [
            cl.enqueue_nd_range_kernel(self._queue, kernels[n % len(kernels)], size, group)
            for n in range(count)
        ]
        self._queue.finish()
        return [(event.profile.end - event.profile.start) / NS_PER_MS for event in events]

    def _bound(self, job: Job, code: KernelCode, program: cl.Program) -> list[cl.Kernel]:
        """Return the kernel of a variant once per copy of its weights, at most `RECORDS` times."""
        packed = sum(a.data.nbytes for a in code.arguments if isinstance(a, PackedWeight))
        share = min(COLD_BYTES, MAX_DATA_BYTES // MAX_VARIANTS)
        kernels = []
        for _ in range(max(1, min(RECORDS, share // packed)) if packed else 1):
            kernel = cl.Kernel(program, NAME)
            kernel.set_args(*(self._memory(job, p) for p in code.parameters))
            kernels.append(kernel)
        return kernels

    def _memory(self, job: Job, parameter: Parameter) -> Memory:
        argument, image = parameter.argument, parameter.image
        if isinstance(argument, PackedWeight):
            data = np.asarray(argument.data, order="C")
            self._weights.append(self._allocated(data, argument.source.dtype.name, image))
            return self._weights[-1]
        key = (job, argument)
        if key not in self._places:
            count = prod(argument.shape) if image is None else image.width * image.height * TEXEL
            drawn = not is_weight(argument)
            held: Array = values_of(argument.dtype, count) if drawn else argument.arg.data
            self._places[key] = self._allocated(
                held, argument.dtype.name, image, written=parameter.written
            )
        return self._places[key]

    def _allocated(
        self, data: Array, dtype: str, image: Image | None, written: bool = False
    ) -> Memory:
        raw = np.asarray(data, order="C").reshape(-1).view(np.uint8)
        if image is None:
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            return cl.Buffer(self._device.context, flags, hostbuf=raw)
        texels = ImageSpec(image.width, image.height)
        return make_image(self._device, texels, dtype, None if written else raw)

    def _results(self, number: int) -> list[Array]:
        job, code = self.variants[number].job, self._codes[number]
        written = [p for p in code.parameters if p.written and isinstance(p.argument, Node)]
        places = [self._memory(job, p) for p in written]
        # Overwrite earlier results, which would hide that a variant writes nothing.
        for parameter, place in zip(written, places, strict=True):
            if isinstance(place, cl.Image):
                assert parameter.image is not None  # see `_allocated`
                texels = ImageSpec(parameter.image.width, parameter.image.height)
                poison_image(self._queue, place, texels)
            else:
                cl.enqueue_fill_buffer(self._queue, place, UNWRITTEN, 0, place.size)
        self._launch(number, 1)
        return [self._read(p, place) for p, place in zip(written, places, strict=True)]

    def _read(self, parameter: Parameter, place: Memory) -> Array:
        node, image = parameter.argument, parameter.image
        assert isinstance(node, Node)  # weights are not written
        if isinstance(place, cl.Buffer):
            value = np.empty(prod(node.shape), node.dtype.np)
            cl.enqueue_copy(self._queue, value, place)
            return value
        assert image is not None  # see `_allocated`
        value = np.empty((image.height, image.width, TEXEL), node.dtype.np)
        region = (image.width, image.height, 1)
        cl.enqueue_copy(self._queue, value, place, origin=(0, 0, 0), region=region)
        return value
