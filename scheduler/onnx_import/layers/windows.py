"""Padding of windowed operators (Conv, ConvTranspose, pooling): attributes to explicit widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Attributes of a windowed operator, one entry per spatial axis."""

    kernel: tuple[int, ...]  # window sizes
    strides: tuple[int, ...]  # steps between windows
    dilations: tuple[int, ...]  # steps between the elements of a window
    pads: Pairs  # (before, after) widths
    ceil_extra: tuple[int, ...]  # after, added by ceil_mode for a last partial window

    @property
    def padding(self) -> Pairs:
        """Return all (before, after) widths, those of ceil_mode included."""
        return tuple((b, e + x) for (b, e), x in zip(self.pads, self.ceil_extra, strict=True))


def read_window(ctx: NodeContext, spatial: Sequence[int], kernel: Sequence[int]) -> Window:
    """Read strides, dilations, pads, auto_pad and ceil_mode of a node for spatial axes."""
    rank = len(spatial)
    if len(kernel) != rank:
        raise ModelError(f"kernel_shape {list(kernel)} does not fit {rank} spatial axes")
    strides = per_axis(ctx, "strides", rank)
    dilations = per_axis(ctx, "dilations", rank)
    pads = _pads(ctx, spatial, kernel, strides, dilations)
    extra = []
    for i in range(rank):
        reach = dilations[i] * (kernel[i] - 1) + 1
        padded = spatial[i] + sum(pads[i])
        if padded < reach:
            raise ModelError(
                f"the kernel reaches over {reach} elements, but spatial axis {i} with its padding "
                f"has {padded}"
            )
        extra.append(
            _ceil_extra(padded, reach, strides[i], spatial[i] + pads[i][0])
            if ctx.integer("ceil_mode", 0)
            else 0
        )
    return Window(tuple(kernel), strides, dilations, pads, tuple(extra))


def per_axis(ctx: NodeContext, name: str, rank: int, default: int = 1) -> tuple[int, ...]:
    """Return a per-axis attribute, `default` everywhere if it is not there."""
    values = ctx.ints_attribute(name)
    if values is None:
        return (default,) * rank
    if len(values) != rank or any(v < default for v in values):
        raise ModelError(f"{name} {values} does not fit {rank} spatial axes")
    return tuple(values)


def explicit_pads(ctx: NodeContext, rank: int) -> Pairs:
    """Return the `pads` attribute as (before, after) per axis, zeros if it is not there."""
    values = ctx.ints_attribute("pads") or [0] * (2 * rank)
    if len(values) != 2 * rank:
        raise ModelError(f"pads {values} does not fit {rank} spatial axes")
    return tuple(zip(values[:rank], values[rank:], strict=True))


def auto_pad(ctx: NodeContext) -> str:
    """Return the auto_pad attribute."""
    mode: str = ctx.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"):
        raise ModelError(
            f"auto_pad must be NOTSET, SAME_UPPER, SAME_LOWER or VALID, found {mode!r}"
        )
    return mode


def _pads(
    ctx: NodeContext,
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> Pairs:
    mode = auto_pad(ctx)
    if mode == "NOTSET":
        return explicit_pads(ctx, len(spatial))
    if mode == "VALID":
        return ((0, 0),) * len(spatial)
    pairs = []
    for size, k, stride, dilation in zip(spatial, kernel, strides, dilations, strict=True):
        # SAME: as many outputs as strided inputs, the odd element after (UPPER) or before (LOWER).
        count = -(-size // stride)
        total = max(0, (count - 1) * stride + dilation * (k - 1) + 1 - size)
        small, large = total // 2, total - total // 2
        pairs.append((small, large) if mode == "SAME_UPPER" else (large, small))
    return tuple(pairs)


def _ceil_extra(padded: int, reach: int, stride: int, data_end: int) -> int:
    """Return how far the last window of ceil_mode reaches beyond the padded input."""
    count = -(-(padded - reach) // stride) + 1
    # A window that would start in the padding after the data does not count.
    if (count - 1) * stride >= data_end:
        count -= 1
    return max(0, (count - 1) * stride + reach - padded)
