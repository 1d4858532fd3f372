"""Translator of TopK, by counting or by a hand-written sort.

Counting finds the rank of each element as the number of elements before it in the order. It suits
devices with many weak cores; other devices count only if that is cheap, and otherwise sort rows
with a hand-written kernel (`sorted_places`). Counting compares all pairs, so a long axis is split
into blocks, and the first k of each block are the candidates of the next round. For n = 8400 and
k = 100, rounds of 33, 13 and 6 blocks of 256 and a last one of 600 candidates need 3.8 million
comparisons instead of 71 million. Equal values stay in the order of their indices.
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

# --- A hand-written kernel that sorts rows for their first k, with one work-item per row ------
#
# k up to 16    a sorted list of the k largest so far; most elements are compared with its end only
# larger k      a histogram of leading bits selects the candidates, and a radix sort by bytes sorts
#               them (Knuth, The Art of Computer Programming 3, 5.2.5)
#
# Both take time proportional to the row, on one strong core.

MAX_LIST = 16  # largest k for the list, chosen by hand
# Leading bits in the histogram: 2048 counters are 8 KiB, a quarter of a first-level cache.
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

# 1. Count the keys by their leading bits, inverted so that the largest key is the smallest word.
# 2. Find `last`, the leading bits up to which there are at least k words.
# 3. Copy the words up to `last` and their places to scratch memory (out1 and out3).
# 4. Sort them by each byte, lowest first, between two pairs of scratch arrays. Equal words stay in
#    order. A byte that is the same in all words is skipped.
# 5. Write the first k places.
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
    """Reference implementation of `sorted_places` in numpy."""

    k: int
    scratch: tuple[str, ...]  # numpy types of the kernel's scratch outputs, which are zeros here

    def __call__(self, keys: NDArray[Any]) -> list[NDArray[Any]]:
        places = np.argsort(~keys, axis=1, kind="stable")[:, : self.k]
        return [places.astype(np.int32), *(np.zeros(keys.shape, name) for name in self.scratch)]


def sorted_places(keys: Tensor, k: int) -> Tensor:
    """Return the places, int32 (rows, k), of the k largest keys in each row of (rows, n).

    Keys are in falling order, and equal keys in order of place.
    """
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


# The most that counting can cost, in adds; beyond it, rows are sorted. On SIMT devices the limit is
# far higher, because a sort by one work-item is slow there.
_LAUNCH = DEFAULT.costs.launch
_COUNTING = 4 * _LAUNCH
_SIMT_COUNTING = 2**28  # chosen by hand
# A row at least this long is sorted in this number of parts, each by its own work-item, if there
# are fewer rows than parts and k is small.
_LONG_ROW, _PARTS = 2**15, 8
# Cost in adds of a comparison with its tie-break, and of one element read to select a rank.
_COMPARE, _PICK = 5, 2
_KEYS = {dt.float32: dt.int32, dt.float64: dt.int64}


def topk(ctx: NodeContext) -> list[Value]:
    """Translate TopK: the k largest or smallest values along an axis, sorted, and int64 indices.

    Equal values are in the order of their indices. NaN is the largest value, as in numpy.
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
        for found in (_take(rows, places), places.cast(dt.int64))
    ]


def sort_keys(x: Tensor) -> Tensor:
    """Return integers in the order of the values: -inf < ... < -0 = 0 < ... < inf < NaN."""
    if x.dtype is dt.float16:  # devices compute fp16 in float32
        x = x.float()
    if x.dtype not in _KEYS:
        return x.int() if x.dtype is dt.bool_ else x
    whole = _KEYS[x.dtype]
    bits = x.bitcast(whole)
    largest = int(dt.max_value(whole))
    # Negative floats compare in reverse as integers, so invert their bits below the sign.
    ordered = (bits < 0).where(bits ^ largest, bits)
    ordered = x.eq(0).where(0, ordered)
    return x.ne(x).where(ordered.operand(largest), ordered).cast(whole)


def first_places(keys: Tensor, k: int) -> Tensor:
    """Return the same as `sorted_places`, by counting or sorting, whichever suits the device."""
    most = (_COUNTING, _SIMT_COUNTING)
    serial, simt = (_counted_or_sorted(keys, k, comparisons) for comparisons in most)
    return alternatives(serial, simt)


def _counted_or_sorted(keys: Tensor, k: int, most: int) -> Tensor:
    """Return the places, by counting if it costs at most `most` adds, else by sorting.

    If rows are split, it takes the first k of each block, then calls itself on these candidates.
    """
    rows, size = keys.shape
    if k == 1:
        return keys.argmax(1, keepdim=True)
    cost, block = _counting_plan(rows, size, k)
    first = _ranked
    if cost > most:
        # Parts leave `_PARTS * k` candidates; at most an eighth of the row makes parts worthwhile.
        if size < _LONG_ROW or rows >= _PARTS or 8 * _PARTS * k > size:
            return sorted_places(keys.contiguous(), k)
        block, first = -(-size // _PARTS), sorted_places
    elif not block:
        return _ranked(keys, k)
    count = -(-size // block)
    padded = keys.pad([(0, 0), (0, count * block - size)], int(dt.min_value(keys.dtype)))
    inner = first(padded.reshape((rows * count, block)), k).reshape((rows, count, k))
    places = (inner + ramp(count, 1, 3) * block).reshape((rows, count * k)).contiguous()
    # Padding is the smallest key and comes last, so it is never among the first k.
    candidates = _take(padded, places)
    return _take(places, _counted_or_sorted(candidates, k, most))


def _ranked(keys: Tensor, k: int) -> Tensor:
    """Return the places of the k largest keys of each row by counting."""
    size = keys.shape[1]
    mine, other = keys.unsqueeze(2), keys.unsqueeze(1)
    earlier = ramp(size, 2, 3) < ramp(size, 1, 3)
    before = (other > mine) | (other.eq(mine) & earlier)
    rank = before.sum(2).contiguous()
    # The sum over all places has one term other than 0: the place whose rank is wanted.
    here = rank.unsqueeze(1).eq(ramp(k, 1, 3))
    return here.where(ramp(size, 2, 3), 0).sum(2).contiguous()


def _take(x: Tensor, places: Tensor) -> Tensor:
    """Return elements of (rows, n) at places (rows, k) within each row."""
    rows, size = x.shape
    if rows == 1:
        return x.reshape((size,)).gather(places.reshape((-1,)), 0).reshape(places.shape)
    return x.reshape((rows * size,)).gather(places + ramp(rows, 0, 2) * size, 0)


@lru_cache(maxsize=1024)
def _counting_plan(rows: int, size: int, k: int) -> tuple[int, int]:
    """Return the cost of all rounds of counting in adds, and the block size of the first round.

    A block size of 0 means a single block. Each round counts as three launches.
    """
    best = rows * size * (size * _COMPARE + k * _PICK) + 3 * _LAUNCH, 0
    block = 2 ** int(np.ceil(np.log2(2 * k)))
    while block < size:
        count = -(-size // block)
        own = rows * count * block * (block * _COMPARE + k * _PICK) + 3 * _LAUNCH
        if own < best[0]:
            best = min(best, (own + _counting_plan(rows, count * k, k)[0], block))
        block *= 2
    return best
