"""A hand-written kernel for running sums and products along an axis.

    (outer, n, inner)    one work-item for each `outer` and up to 16 neighbours of `inner`

Every element is read and written once, where sums by definition read each block as often as it is
long. Blocks of 32 are accumulated on their own, so that rounding errors do not grow with n alone
and the processor has several blocks under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

_BLOCK, _COLUMNS = 32, 16

_SOURCE = """
const int item = get_global_id(0);
const int first = item % {groups} * {columns};
const int width = {width};
const long start = (long)(item / {groups}) * {size} * {inner} + first;
{kind} before[{columns}];
for (int c = 0; c < {columns}; ++c) before[c] = {neutral};
for (int begin = 0; begin < {size}; begin += {block}) {{
  const int end = min(begin + {block}, {size});
  {kind} own[{columns}];
  for (int c = 0; c < {columns}; ++c) own[c] = {neutral};
  for (int i = begin; i < end; ++i) {{
    const long at = start + (long)({step}) * {inner};
    for (int c = 0; c < width; ++c) {{
      const {kind} x = in0[at + c];
      {store}
    }}
  }}
  for (int c = 0; c < {columns}; ++c) before[c] = ({word})before[c] {op} ({word})own[c];
}}
"""
_OWN = "own[c] = ({word})own[c] {op} ({word})x;"
_OUT = "out0[at + c] = ({word})before[c] {op} ({word})own[c];"


@dataclass(frozen=True, slots=True)
class Running:
    """The kind of a running result.

    Attributes:
        product: products instead of sums.
        exclusive: of what comes before an element only.
        reverse: from the end on.
    """

    product: bool
    exclusive: bool
    reverse: bool

    def __call__(self, x: NDArray[Any]) -> NDArray[Any]:
        """Return the same in numpy, along axis 1 of three."""
        x = x[:, ::-1] if self.reverse else x
        if self.exclusive:
            first = np.full_like(x[:, :1], int(self.product))
            x = np.concatenate([first, x[:, :-1]], 1)
        found = (np.cumprod if self.product else np.cumsum)(x, 1, dtype=x.dtype)
        return np.asarray(found[:, ::-1] if self.reverse else found, order="C")


def run_along(x: Tensor, axis: int, how: Running) -> Tensor:
    """Return what has been accumulated at each element of x: no halves, and not empty."""
    outer, size, inner = prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :])
    columns = min(_COLUMNS, inner)
    groups = -(-inner // columns)
    op = "*" if how.product else "+"
    source = _SOURCE.format(
        kind=x.dtype.cl,
        groups=groups,
        columns=columns,
        width=columns if inner % columns == 0 else f"min({columns}, {inner} - first)",
        inner=inner,
        size=size,
        block=_BLOCK,
        neutral=int(how.product),
        step=f"{size - 1} - i" if how.reverse else "i",
        store="\n      ".join([_OUT, _OWN] if how.exclusive else [_OWN, _OUT]).format(
            op=op, word=x.dtype.arithmetic
        ),
        word=x.dtype.arithmetic,
        op=op,
    )
    shape = (outer, size, inner)
    kernel = CustomKernel("running", source, [(shape, x.dtype)], outer * groups, how, x.size)
    return custom_kernel(kernel, x.reshape(shape))[0].reshape(x.shape)
