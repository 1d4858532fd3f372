"""The rule turns a gather with known, evenly spaced indices into a slice.

gather(x, [3, 4, 5])       ->  shrink(x, 3:6)
gather(x, [-1])            ->  shrink(x, last)
gather(x, [9, 7, 5])       ->  flip(shrink(x, 5:10:2))
gather(x, [2, 2, 2])       ->  expand(shrink(x, 2:3))
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import interp
from scheduler.ir.boxes import MOVES
from scheduler.ir.build import expanded, like, peel, reshaped
from scheduler.ir.node import Node, is_weight
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rule

# Longer lists of indices stay lists: they are weights, and a run of this length is seldom gathered.
MAX_INDICES = 65536


def _known(node: Node) -> NDArray[Any] | None:
    """Return the values of an index tensor that is movement over something constant."""
    if prod(node.shape) > MAX_INDICES:
        return None
    _, leaf = peel(node, MOVES)
    if not is_weight(leaf) and leaf.op not in (Op.IOTA, Op.CONST):
        return None
    return interp.evaluate([node])[0].astype(np.int64).reshape(-1)


def _run(node: Node) -> Node | None:
    data, index = node.src
    axis, size = node.arg, data.shape[node.arg]
    rows = _known(index)
    if rows is None or rows.size == 0 or rows.min() < -size or rows.max() >= size:
        return None
    rows = np.where(rows < 0, rows + size, rows)
    # One step between all rows, of any sign, or none: then it is one row repeated.
    steps = np.unique(np.diff(rows))
    if steps.size > 1:
        return None
    step = int(steps[0]) if steps.size else 1
    low, high = int(rows.min()), int(rows.max())
    bounds = [(0, s, 1) for s in data.shape]
    bounds[axis] = (low, high + 1, abs(step) or 1)
    result = like(node, Op.SHRINK, (data,), tuple(bounds))
    if step < 0:
        result = like(node, Op.FLIP, (result,), (axis,))
    if step == 0:
        shape = (*data.shape[:axis], rows.size, *data.shape[axis + 1 :])
        result = expanded(result, shape)
    return reshaped(result, node.shape)


RULES = (Rule("gather of a run", (Op.GATHER,), _run),)
