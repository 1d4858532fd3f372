"""A hand-written kernel that sorts rows for their first k: one work-item sorts one row.

k up to 16    a list of the k largest so far; nearly all elements only look at its end
larger k      counting by leading bits says which elements can be among the k first; those are
              sorted digit by digit, the lowest one first (radix sort; Knuth, The Art of Computer
              Programming 3, 5.2.5)

Both take time in proportion to the row, where comparing all pairs takes its square. A row has one
processor for itself, so this is for those with few strong cores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

MAX_LIST = 16  # largest k of the list, chosen by hand
# Leading bits that are counted: 2048 counters are 8 KiB, a quarter of a first cache.
_LEADING = 11

_LIST = """
const int row = get_global_id(0);
const __global {key}* keys = in0 + (long)row * {size};
{key} best[{k}];
int places[{k}];
int held = 0;
for (int j = 0; j < {size}; ++j) {{
  const {key} x = keys[j];
  if (held == {k} && best[{k} - 1] >= x) continue;
  int i = held < {k} ? held++ : {k} - 1;
  for (; i > 0 && best[i - 1] < x; --i) {{
    best[i] = best[i - 1];
    places[i] = places[i - 1];
  }}
  best[i] = x;
  places[i] = j;
}}
for (int i = 0; i < {k}; ++i) out0[row * {k} + i] = places[i];
"""

# Keys are turned round, so that the largest comes first and equal ones stay in order.
_RADIX = """
const int row = get_global_id(0);
const __global {key}* keys = in0 + (long)row * {size};
__global {word}* from = out1 + (long)row * {size};
__global {word}* to = out2 + (long)row * {size};
__global int* from_at = out3 + (long)row * {size};
__global int* to_at = out4 + (long)row * {size};
int counts[{leading}];
for (int i = 0; i < {leading}; ++i) counts[i] = 0;
for (int j = 0; j < {size}; ++j) ++counts[~(({word})keys[j] ^ {sign}) >> {shift}];
int last = 0;
for (int sum = counts[0]; sum < {k}; sum += counts[last]) ++last;
int held = 0;
for (int j = 0; j < {size}; ++j) {{
  const {word} x = ~(({word})keys[j] ^ {sign});
  if ((int)(x >> {shift}) > last) continue;
  from[held] = x;
  from_at[held++] = j;
}}
for (int low = 0; low < {bits}; low += 8) {{
  for (int i = 0; i < 256; ++i) counts[i] = 0;
  for (int i = 0; i < held; ++i) ++counts[(from[i] >> low) & 255];
  if (counts[(from[0] >> low) & 255] == held) continue;
  for (int i = 0, sum = 0; i < 256; ++i) {{
    const int own = counts[i];
    counts[i] = sum;
    sum += own;
  }}
  for (int i = 0; i < held; ++i) {{
    const int slot = counts[(from[i] >> low) & 255]++;
    to[slot] = from[i];
    to_at[slot] = from_at[i];
  }}
  __global {word}* values = from; from = to; to = values;
  __global int* places = from_at; from_at = to_at; to_at = places;
}}
for (int i = 0; i < {k}; ++i) out0[row * {k} + i] = from_at[i];
"""


@dataclass(frozen=True, slots=True)
class _Reference:
    """The same in numpy; scratch memory holds nothing that anybody reads."""

    k: int
    scratch: tuple[str, ...]

    def __call__(self, keys: NDArray[Any]) -> list[NDArray[Any]]:
        places = np.argsort(~keys, axis=1, kind="stable")[:, : self.k]
        return [places.astype(np.int32), *(np.zeros(keys.shape, name) for name in self.scratch)]


def sorted_places(keys: Tensor, k: int) -> Tensor:
    """Return places (int32, (rows, k)) of the k largest keys (rows, n), falling; ties by place."""
    rows, size = keys.shape
    if keys.dtype.itemsize < 4:
        keys = keys.cast(dt.int32)
    wide, signed = keys.dtype.itemsize == 8, not keys.dtype.is_unsigned
    bits = 64 if wide else 32
    word = dt.uint64 if wide else dt.uint32
    text, scratch = (_LIST, ()) if k <= MAX_LIST else (_RADIX, (word, word, dt.int32, dt.int32))
    source = text.format(
        key=keys.dtype.cl,
        word=word.cl,
        sign=f"(({word.cl}){int(signed)} << {bits - 1})",
        size=size,
        k=k,
        bits=bits,
        leading=1 << _LEADING,
        shift=bits - _LEADING,
    )
    kernel = CustomKernel(
        "sorted_places",
        source,
        [((rows, k), dt.int32), *(((rows, size), kind) for kind in scratch)],
        rows,
        _Reference(k, tuple(kind.np.name for kind in scratch)),
        rows * size,
    )
    return custom_kernel(kernel, keys)[0]
