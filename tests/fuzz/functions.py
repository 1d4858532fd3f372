"""Errors of functions of floats, and of kernels written by hand; used by `judge` only."""

from collections.abc import Callable
from typing import Any

import numpy as np

from scheduler.ir import interp
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from tests.fuzz.rounding import (
    EXACT_GRID,
    FUNCTION_ULPS,
    INFINITE,
    Array,
    Known,
    clean,
    is_exact,
    rounding,
    wide,
)


def of_function(node: Node, sources: list[Known], value: Array) -> Array:
    """Return errors of a function of floats: what its argument's do to it, and its own."""
    if node.op is Op.POW:
        known = sources[0].error + sources[1].error == 0
        special = ~np.isfinite(wide(value)) | (value == 0) | (value == 1)
        own = np.where(special, 0.0, FUNCTION_ULPS[Op.POW] * 2 * rounding(value))
        return np.where(known, own, INFINITE)
    (x,) = sources
    apply: Callable[[Any], Any] = interp.FUNCTIONS[node.op]
    centre = wide(x.value)
    middle = np.asarray(apply(centre), np.float64)
    if node.op in (Op.SIN, Op.COS):
        # What may be infinite, or a number beyond halves, has no sine or one.
        spread = np.where(np.isfinite(centre), np.minimum(x.error, 2.0), INFINITE)
    else:
        ends = [np.asarray(apply(centre + d), np.float64) for d in (-x.error, x.error)]
        spread = np.maximum(*(np.abs(end - middle) for end in ends))
        if node.op is Op.GELU:
            spread = spread + 1.13 * x.error + 3e-7 * np.abs(centre)
        if node.op is Op.SQRT:  # below 0 it is no number
            spread = np.where(centre >= x.error, spread, INFINITE)
    spread = np.where(x.error == 0, 0.0, np.where(np.isnan(spread), INFINITE, spread))
    exact = (x.error == 0) & is_exact(node.dtype, middle, value) & (node.op is Op.SQRT)
    own = np.where(exact, 0.0, 2 * FUNCTION_ULPS[node.op] * rounding(value))
    special = (x.error == 0) & ~np.isfinite(wide(value))
    if node.op is Op.LOG:
        own = np.where((x.error == 0) & (centre == 1), 0.0, own)
    overflow = (
        (node.op is Op.EXP)
        & (np.abs(middle) >= np.finfo(node.dtype.np).max / 2)
        & np.isfinite(centre)
    )
    return np.where(overflow & np.isfinite(middle), INFINITE, np.where(special, 0.0, spread + own))


def of_custom(node: Node, sources: list[Known]) -> Known:
    """A kernel by hand: exact where all it reads is and no float is written, else a crude bound."""
    spec = node.src[0].arg
    value = np.asarray(spec.evaluate([s.value for s in sources])[node.arg])
    worst = max((float(s.error.max(initial=0.0)) for s in sources), default=0.0)
    if value.dtype.kind != "f":
        return Known(value, np.full(value.shape, 0.0 if worst == 0 else INFINITE))
    sizes = [s.value.size for s in sources]
    scale = max((float(np.abs(wide(s.value)).max(initial=0.0)) for s in sources), default=1.0)
    unit = EXACT_GRID[value.dtype.name][1]
    error = worst * max(sizes, default=1) + max(sizes, default=1) * unit * max(
        scale, float(np.abs(wide(value)).max(initial=0.0))
    )
    return Known(value, clean(np.full(value.shape, error), value))
