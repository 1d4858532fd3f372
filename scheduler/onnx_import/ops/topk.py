"""Translator of TopK: each element counts those before it, or a hand-written kernel sorts rows.

Counting suits devices with many weak cores, `sorted_places` the others. Counting compares all
pairs, so the k first of each block of a long axis are the candidates of the next round, in the
order of their places among equal values. n = 8400, k = 100: 70 million comparisons at once, 9
million with blocks of 512.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DEFAULT
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value, normal_axis
from scheduler.onnx_import.ops.index import ramp
from scheduler.tensor.custom_kernel import CustomKernel, alternatives, custom_kernel
from scheduler.tensor.tensor import Tensor

# --- A hand-written kernel that sorts rows for their first k: one work-item sorts one row -----
#
# k up to 16    a list of the k largest so far; nearly all elements only look at its end
# larger k      counting by leading bits says which elements can be among the k first; those are
#               sorted digit by digit, the lowest one first (radix sort; Knuth, The Art of Computer
#               Programming 3, 5.2.5)
#
# Both take time in proportion to the row, on one strong core.

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

# The largest comes first then, and equal ones stay in order.
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


# Adds that counting may cost before rows are sorted instead: four launches where work-items each
# have a core; far more on SIMT devices, where one work-item that sorts is slow.
_LAUNCH = DEFAULT.costs.launch
_COUNTING = 4 * _LAUNCH
_SIMT_COUNTING = 2**28  # chosen by hand
# A row this long is sorted in parts, if they leave out most of it and few rows are there to share.
_LONG_ROW, _PARTS = 2**15, 8
# Of a comparison with its tie, and of one visit of a pick, in adds.
_COMPARE, _PICK = 5, 2
_KEYS = {dt.float32: dt.int32, dt.float64: dt.int64}


def topk(ctx: NodeContext) -> list[Value]:
    """Translate TopK: values and int64 indices of the k largest or smallest along an axis, sorted.

    Equal values come in the order of their places. NaN counts as the largest value, as in numpy.
    """
    x = ctx.tensor(0)
    if ctx.opset < 10:
        k = ctx.integer("k", -1)
    else:
        k = ctx.ints(1, "k, which decides the shape of the result,")[0]
    axis = normal_axis(ctx.integer("axis", -1), x.ndim)
    size = x.shape[axis]
    if not 0 <= k <= size:
        raise ModelError(f"k = {k} is outside [0, {size}], the size of axis {axis}")
    order = [*(i for i in range(x.ndim) if i != axis), axis]
    lead = tuple(x.shape[i] for i in order[:-1])
    if prod(lead) * k == 0:
        shape = tuple(k if i == axis else s for i, s in enumerate(x.shape))
        return [Tensor.zeros(shape, dtype=d) for d in (x.dtype, dt.int64)]
    rows = x.permute(order).reshape((prod(lead), size))
    keys = sort_keys(rows)
    places = first_places(keys if ctx.integer("largest", 1) else ~keys, k)
    back = [order.index(i) for i in range(x.ndim)]
    return [
        found.reshape((*lead, k)).permute(back)
        for found in (_at(rows, places), places.cast(dt.int64))
    ]


def sort_keys(x: Tensor) -> Tensor:
    """Return integers in the order of the values: -inf < ... < -0 = 0 < ... < inf < NaN."""
    if x.dtype is dt.float16:  # computed with as float32: a device has no bits of it to look at
        x = x.float()
    if x.dtype not in _KEYS:
        return x.int() if x.dtype is dt.bool_ else x
    whole = _KEYS[x.dtype]
    bits = x.bitcast(whole)
    largest = int(dt.max_value(whole))
    # Negative floats have falling magnitudes: all bits but the sign are inverted.
    ordered = (bits < 0).where(bits ^ largest, bits)
    ordered = x.eq(0).where(0, ordered)
    return x.ne(x).where(ordered.operand(largest), ordered).cast(whole)


def first_places(keys: Tensor, k: int) -> Tensor:
    """Return places (int32, (rows, k)) of the k largest keys (rows, n), falling; ties by place."""
    most = (_COUNTING, _SIMT_COUNTING)
    serial, simt = (_counted_or_sorted(keys, k, comparisons) for comparisons in most)
    return alternatives(serial, simt)


def _counted_or_sorted(keys: Tensor, k: int, most: int) -> Tensor:
    """Return the places, found by comparisons if they cost at most `most` adds."""
    rows, size = keys.shape
    if k == 1:
        return keys.argmax(1, keepdim=True)
    cost, block = _plan(rows, size, k)
    first = _ranked
    if cost > most:
        if size < _LONG_ROW or rows >= _PARTS or 8 * _PARTS * k > size:
            return sorted_places(keys.contiguous(), k)
        block, first = -(-size // _PARTS), sorted_places
    elif not block:
        return _ranked(keys, k)
    count = -(-size // block)
    padded = keys.pad([(0, 0), (0, count * block - size)], int(dt.min_value(keys.dtype)))
    inner = first(padded.reshape((rows * count, block)), k).reshape((rows, count, k))
    places = (inner + ramp(count, 1, 3) * block).reshape((rows, count * k)).contiguous()
    # What was padded is the smallest key and comes last: it is never among the k first.
    candidates = _at(padded, places)
    return _at(places, _counted_or_sorted(candidates, k, most))


def _ranked(keys: Tensor, k: int) -> Tensor:
    size = keys.shape[1]
    mine, other = keys.unsqueeze(2), keys.unsqueeze(1)
    earlier = ramp(size, 2, 3) < ramp(size, 1, 3)
    before = (other > mine) | (other.eq(mine) & earlier)
    rank = before.sum(2).contiguous()
    here = rank.unsqueeze(1).eq(ramp(k, 1, 3))
    return here.where(ramp(size, 2, 3), 0).sum(2).contiguous()


def _at(x: Tensor, places: Tensor) -> Tensor:
    """Return elements of (rows, n) at places (rows, k) within each row."""
    rows, size = x.shape
    if rows == 1:
        return x.reshape((size,)).gather(places.reshape((-1,)), 0).reshape(places.shape)
    return x.reshape((rows * size,)).gather(places + ramp(rows, 0, 2) * size, 0)


@lru_cache(maxsize=1024)
def _plan(rows: int, size: int, k: int) -> tuple[int, int]:
    """Return the cost in adds, and the block to cut into (0: compare all at once)."""
    best = rows * size * (size * _COMPARE + k * _PICK) + 3 * _LAUNCH, 0
    block = 2 ** int(np.ceil(np.log2(2 * k)))
    while block < size:
        count = -(-size // block)
        own = rows * count * block * (block * _COMPARE + k * _PICK) + 3 * _LAUNCH
        if own < best[0]:
            best = min(best, (own + _plan(rows, count * k, k)[0], block))
        block *= 2
    return best
