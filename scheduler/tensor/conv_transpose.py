"""`TensorTransposed`: transposed convolution without multiplications by inserted zeros.

    zeros between inputs, then conv, k^2 taps       ->      s^2 phases of about (k/s)^2 taps

With stride s, output o depends on input i through tap j if o + before = i*s + j*dilation, where
`before` outputs are cut off at the start. A phase is the outputs o = s*u + v for a fixed v, and the
s outputs of one u are a block. The outputs of a phase use every m-th tap and read consecutive
inputs, so a phase is a convolution with stride 1.

If all phases have the same number of taps and the same inputs (the stride divides the kernel, and
padding does not cut into a block), they are one contraction, with the phase as an additional axis
of the weight. Otherwise (4x4 with stride 2 and padding 1) each phase is a convolution, and the
results are interleaved. Storing cut blocks from one contraction was five times slower (4x4, 128 to
64 channels, 45x80: 15 ms against 3 ms; 2026-11-21, 2 cores, PoCL 3.0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd
from typing import Any, Self, TypeVar

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.tensor.core import rounds_once
from scheduler.tensor.nn import Pair, TensorNeural, as_tuple, pad_pairs

T = TypeVar("T", bound=TensorNeural)


@dataclass(frozen=True, slots=True)
class Phase:
    """The outputs s*u + v of one axis for a fixed v."""

    taps: tuple[int, ...]  # the phase's kernel taps, in the order of their inputs
    low: int  # input index of the first tap for u = 0; can be outside the input


@dataclass(frozen=True, slots=True)
class Axis:
    """One spatial axis of a transposed convolution."""

    size: int  # size of the input
    kernel: int  # number of taps
    stride: int  # distance of outputs of neighbouring inputs with the same tap
    dilation: int  # distance of outputs of neighbouring taps from the same input
    before: int  # outputs cut off at the start
    out: int  # size of the output

    @property
    def blocks(self) -> int:
        """Number of outputs of the longest phase."""
        return -(-self.out // self.stride)

    @property
    def step(self) -> int:
        """Distance of the inputs of neighboring taps of a phase."""
        return self.dilation // gcd(self.dilation, self.stride)

    def phases(self) -> list[Phase]:
        """Return the phases v = 0 ... stride - 1."""
        period = self.stride // gcd(self.dilation, self.stride)
        found = []
        for v in range(self.stride):
            block, residue = divmod(v + self.before, self.stride)
            first = [j for j in range(period) if (j * self.dilation - residue) % self.stride == 0]
            taps = tuple(range(first[0], self.kernel, period))[::-1] if first else ()
            low = block - (taps[0] * self.dilation - residue) // self.stride if taps else 0
            found.append(Phase(taps, low))
        return found

    def alike(self) -> bool:
        """Return whether all phases read the same inputs and have the same number of outputs."""
        first, *others = self.phases()
        return (
            self.out % self.stride == 0
            and len(first.taps) > 0
            and all((len(p.taps), p.low) == (len(first.taps), first.low) for p in others)
        )


class TensorTransposed(TensorNeural):
    """Transposed convolution."""

    __slots__ = ()

    @rounds_once
    def conv_transpose2d(  # noqa: PLR0913, PLR0917  # the operator has seven parameters in every framework
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Pair = 1,
        padding: Any = 0,
        output_padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
    ) -> Self:
        """Return the transpose of `conv2d`, for any number of spatial axes.

        Args:
            weight: (C_in, C_out/groups, *kernel).
            bias: (C_out,) or None.
            stride: one int or one per spatial axis.
            padding: outputs to cut off, in the form of `conv2d`'s padding.
            output_padding: extra size at the end of each spatial axis.
            dilation: one int or one per spatial axis.
            groups: number of channel groups.

        Returns:
            (N, C_out, *out) with
            out = (in-1)*stride - before - after + dilation*(kernel-1) + 1 + output_padding.

        Raises:
            ModelError: channels and groups do not fit, or padding cuts off all outputs.
        """
        spatial = self.ndim - 2
        if self.shape[1] != weight.shape[0] or weight.shape[0] % groups:
            raise ModelError(
                f"conv_transpose: input {self.shape} and weight {weight.shape} do not fit "
                f"groups={groups}"
            )
        steps, spread = as_tuple(stride, spatial), as_tuple(dilation, spatial)
        extra = as_tuple(output_padding, spatial)
        axes = []
        for i, (before, after) in enumerate(pad_pairs(padding, spatial)):
            size, kernel = self.shape[2 + i], weight.shape[2 + i]
            out = (size - 1) * steps[i] - before - after + spread[i] * (kernel - 1) + 1 + extra[i]
            if out < 1:
                raise ModelError(f"conv_transpose: padding {before}, {after} leaves nothing")
            axes.append(Axis(size, kernel, steps[i], spread[i], before, out))
        y = transposed_convolution(self, weight, axes, groups)
        return y if bias is None else y + bias.reshape((1, -1) + (1,) * spatial)


def transposed_convolution(x: T, weight: T, axes: Sequence[Axis], groups: int) -> T:
    """Return the transposed convolution of x (N, C, s...) without bias, (N, C_out, out...).

    The weight is (C, C_out/groups, k...); `axes` has the geometry of each spatial axis.
    """
    if all(a.stride == 1 for a in axes):
        return _one_phase(x, weight, axes, [a.phases()[0] for a in axes], groups)
    if all(a.alike() for a in axes):
        return _contract(x, weight, axes, groups)
    whole = _phase_by_phase(x, weight, axes, groups)
    return whole.shrink([(0, n) for n in whole.shape[:2]] + [(0, a.out) for a in axes])


def _contract(x: T, weight: T, axes: Sequence[Axis], groups: int) -> T:
    """Return the transposed convolution with all phases as one sum of products."""
    rank = len(axes)
    batch, channels = x.shape[:2]
    phases = [a.phases() for a in axes]
    bounds = [_reach(a, p[0]) for a, p in zip(axes, phases, strict=True)]
    shape = (batch, groups * weight.shape[1], *(a.out for a in axes))
    if _outside(axes, bounds):
        return _zeros(x, shape)
    taps = [len(p[0].taps) for p in phases]
    x = _between(x, bounds).windows(taps, (1,) * rank, [a.step for a in axes])
    blocks = [a.blocks for a in axes]
    # Both factors: batch, group, output channel, input channel, blocks, phases, taps.
    x = x.reshape((batch, groups, 1, channels // groups, *blocks, *(1,) * rank, *taps))

    w = weight.reshape((groups, channels // groups, *weight.shape[1:]))
    # Replace each kernel axis by two: the phase, and the tap within it.
    for i, found in enumerate(phases):
        w = w.gather(w.weight(np.array([p.taps for p in found], np.int32)), 3 + 2 * i)
    split = [3 + 2 * i + part for part in (0, 1) for i in range(rank)]
    w = w.permute((0, 2, 1, *split))
    w = w.reshape((1, *w.shape[:3], *(1,) * rank, *w.shape[3:]))

    y = (x * w).sum((3, *range(4 + 2 * rank, 4 + 3 * rank)))
    order = [3 + i + part for i in range(rank) for part in (0, rank)]
    y = y.permute((0, 1, 2, *order))
    return y.reshape(shape)


def _phase_by_phase(x: T, weight: T, axes: Sequence[Axis], groups: int) -> T:
    """Return the interleaved results of separate phases; can be larger than the output."""
    rank = len(axes)
    phases = [a.phases() for a in axes]
    parts = [_one_phase(x, weight, axes, list(chosen), groups) for chosen in product(*phases)]
    # Neighbors in the list differ in the phase of the last axis.
    for i in reversed(range(rank)):
        count = axes[i].stride
        parts = [_interleave(parts[k : k + count], 2 + i) for k in range(0, len(parts), count)]
    return parts[0]


def _one_phase(x: T, weight: T, axes: Sequence[Axis], phases: Sequence[Phase], groups: int) -> T:
    """Return the outputs of one phase of each axis, (N, C_out, blocks...)."""
    channels, per_group = weight.shape[:2]
    shape = (x.shape[0], per_group * groups, *(a.blocks for a in axes))
    bounds = [_reach(a, p) for a, p in zip(axes, phases, strict=True)]
    if not all(p.taps for p in phases) or _outside(axes, bounds):
        return _zeros(x, shape)
    w = weight.reshape((groups, channels // groups, *weight.shape[1:])).transpose(1, 2)
    w = w.reshape((per_group * groups, channels // groups, *weight.shape[2:]))
    for i, p in enumerate(phases):
        # Taps are in falling order, so that their inputs are in rising order.
        step = p.taps[0] - p.taps[1] if len(p.taps) > 1 else 1
        w = w.flip(2 + i)
        first = axes[i].kernel - 1 - p.taps[0]
        key = (slice(None),) * (2 + i)
        w = w[(*key, slice(first, first + step * (len(p.taps) - 1) + 1, step))]
    return _between(x, bounds).conv2d(w, dilation=[a.step for a in axes], groups=groups)


def _reach(axis: Axis, phase: Phase) -> tuple[int, int]:
    """Return the range of input indices of a phase; it can exceed the input."""
    return phase.low, phase.low + axis.blocks + axis.step * (len(phase.taps) - 1)


def _outside(axes: Sequence[Axis], bounds: Sequence[tuple[int, int]]) -> bool:
    return any(low >= a.size or high <= 0 for a, (low, high) in zip(axes, bounds, strict=True))


def _zeros(x: T, shape: tuple[int, ...]) -> T:
    return x.operand(0).cast(x.dtype).broadcast_to(shape)


def _between(x: T, bounds: Sequence[tuple[int, int]]) -> T:
    """Return inputs [low, high) of each spatial axis, with zeros outside the input."""
    pairs = [(-low, high - size) for (low, high), size in zip(bounds, x.shape[2:], strict=True)]
    return x.pad(((0, 0), (0, 0), *pairs))


def _interleave(parts: Sequence[T], axis: int) -> T:
    """Return the parts interleaved along an axis."""
    first = parts[0]
    if len(parts) == 1:
        return first
    nodes = tuple(p.unsqueeze(axis + 1).node for p in parts)
    concat = first.of(make(Op.CAT, first.dtype, nodes, axis + 1))
    shape = list(first.shape)
    shape[axis] *= len(parts)
    return concat.reshape(tuple(shape))
