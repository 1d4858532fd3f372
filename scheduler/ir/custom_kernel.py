"""A CustomKernel is a hand-written OpenCL kernel: its source, its outputs and its checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.quantities import count_text
from scheduler.errors import ModelError
from scheduler.ir.custom_source import Source, read_source
from scheduler.ir.dtype import DType, as_dtype
from scheduler.ir.node import Node
from scheduler.ir.ops import Op

Array = NDArray[Any]
Reference = Callable[..., Array | Sequence[Array]]

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_PARAMETER = re.compile(r"(in|out)(\d+)")
# Work-items and elements are counted with int.
_MAX_COUNT = 2**31 - 1
# Vector widths of OpenCL C that registers have.
LANES = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class CustomKernel:
    """An OpenCL C kernel written by hand; immutable, compared by its fields.

    Attributes:
        name: an identifier; what messages and tables call it.
        source: body of the kernel. Its parameters are `in0`, `in1`, ... and `out0`, `out1`, ...,
            row-major pointers of the stored type (a half is `half`, a bool one `uchar`). The
            statement `EPILOGUE(value, index);`, at most one, stores an element of the first output
            at a flat index; then `out0` itself is not named.
        outputs: shape and type of each; all of them are written by one launch.
        items: work-items, each a work-group of its own; `get_global_id(0)` counts them.
        reference: the same in numpy: input arrays -> output arrays (or the only one). The
            interpreter needs it; the compiler does not.
        flops: of one launch, for tables.
        lanes: elements that `EPILOGUE(value, index);` stores: its value is a vector of so many, for
            consecutive elements of the last axis from `index` on, which they divide.

    Raises:
        ModelError: a field makes no sense; the message names the kernel.
    """

    name: str
    source: str
    outputs: Sequence[tuple[Sequence[int], DType | Any]]
    items: int
    reference: Reference | None = field(default=None, repr=False)
    flops: int = 0
    lanes: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ModelError(
                f"custom kernel {self.name[:64]!r}: expected an identifier of up to 64 characters"
            )
        outputs = tuple((tuple(map(int, s)), as_dtype(d)) for s, d in self.outputs)
        object.__setattr__(self, "outputs", outputs)
        fits = [min(s, default=1) > 0 and prod(s) <= _MAX_COUNT for s, _ in outputs]
        if not fits or not all(fits):
            raise ModelError(f"{self._where}: each output must have elements, found {outputs}")
        if not 0 < self.items <= _MAX_COUNT or self.flops < 0:
            raise ModelError(
                f"{self._where}: expected at least one work-item and no negative flops, "
                f"found {self.items} and {self.flops}"
            )
        last = (1, *self.outputs[0][0])[-1]
        if self.lanes not in LANES or last % self.lanes:
            raise ModelError(
                f"{self._where}: expected lanes out of {LANES} that divide the last axis of the "
                f"first output, {last}; found {self.lanes}"
            )
        self._check_outputs(read_source(self.name, self.source))

    def __str__(self) -> str:
        return self.name

    @property
    def _where(self) -> str:
        return f"custom kernel {self.name}"

    @property
    def has_slot(self) -> bool:
        """Whether an epilogue can be computed where the first output is stored."""
        return read_source(self.name, self.source).slot is not None

    def _check_outputs(self, source: Source) -> None:
        unknown = sorted(_numbered("out", source) - set(range(len(self.outputs))))
        if unknown:
            has = count_text(len(self.outputs), "output")
            raise ModelError(f"{self._where}: names out{unknown[0]}; it has {has}")
        if source.slot is not None and 0 in _numbered("out", source):
            raise ModelError(
                f"{self._where}: uses EPILOGUE and names out0; what is stored there may have "
                "another type, so write it through EPILOGUE only"
            )

    def check_inputs(self, count: int) -> None:
        """Check that the source names no input beyond those given.

        Raises:
            ModelError: it does.
        """
        unknown = sorted(_numbered("in", read_source(self.name, self.source)) - set(range(count)))
        if unknown:
            given = count_text(count, "input")
            raise ModelError(f"{self._where}: names in{unknown[0]}, but is given {given}")

    def evaluate(self, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Return the outputs as the reference computes them.

        Raises:
            ModelError: there is no reference, or what it returns does not fit `outputs`.
        """
        if self.reference is None:
            raise ModelError(
                f"{self._where}: the interpreter cannot run OpenCL C; give reference=, a numpy "
                "function, or compute it on a device"
            )
        found = self.reference(*inputs)
        arrays = [found] if isinstance(found, np.ndarray | np.generic) else list(found)
        shapes = [np.shape(a) for a in arrays]
        if shapes != [shape for shape, _ in self.outputs]:
            raise ModelError(
                f"{self._where}: its reference returned shapes {shapes}, expected "
                f"{[shape for shape, _ in self.outputs]}"
            )
        return tuple(np.asarray(a, d.np) for a, (_, d) in zip(arrays, self.outputs, strict=True))


def _numbered(prefix: str, source: Source) -> set[int]:
    """Return the numbers of the parameters of one kind that a source names."""
    found = (_PARAMETER.fullmatch(name) for name in source.names)
    return {int(m[2]) for m in found if m is not None and m[1] == prefix}


def storage_of(source: Node) -> Node:
    """Return the node whose storage is bound for an input: a reshape has that of what is below."""
    while source.op is Op.RESHAPE:
        source = source.src[0]
    return source


def stored_for_custom(order: Sequence[Node]) -> set[Node]:
    """Return what has to be stored because custom kernels read or write it.

    Args:
        order: nodes of a graph.
    """
    launches = [n for n in order if n.op is Op.CUSTOM]
    inputs = {storage_of(s) for n in launches for s in n.src}
    return {n for n in inputs if n.op is not Op.BUFFER} | {n for n in order if n.op is Op.RESULT}
