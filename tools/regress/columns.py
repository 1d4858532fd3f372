"""Integers as bytes that compress: differences, zigzag, one plane for each byte.

Used for every column of a reference: values as steps, frame ids, digests. Nothing is lost.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tools.regress.errors import ReferenceFormatError

Integers = NDArray[np.int64]

# How a column is predicted, by number: how often neighbours are subtracted, (rows, places). Rows
# are frames; places are points of a curve, smooth enough for differences of differences.
PREDICTIONS: Final = tuple((rows, places) for rows in range(2) for places in range(4))
_WIDTHS: Final = (0, 1, 2, 3, 4, 8)


def encode_column(values: Integers) -> tuple[int, int, bytes]:
    """Return the number of the prediction, the bytes of one number, and the bytes.

    Args:
        values: (rows, places) int64; differences may wrap, which decoding undoes.
    """
    rests = [_differences(values, *prediction) for prediction in PREDICTIONS]
    number = min(range(len(rests)), key=lambda index: (_cost(rests[index]), index))
    rest = rests[number]
    codes = _zigzag(rest)
    largest = int(codes.max(initial=0))
    width = next(width for width in _WIDTHS if largest < 1 << (8 * width))
    # Place by place, so that what one place does over time stands together.
    planes = codes.T.astype("<u8").reshape(-1, 1).view(np.uint8)[:, :width]
    return number, width, planes.T.tobytes()


def decode_column(data: bytes, shape: tuple[int, int], prediction: int, width: int) -> Integers:
    """Return the numbers that `encode_column` took.

    Raises:
        ReferenceFormatError: the bytes do not fit the shape, or there is no such prediction.
    """
    rows, places = shape
    if width not in _WIDTHS or not 0 <= prediction < len(PREDICTIONS):
        raise ReferenceFormatError(f"column: found prediction {prediction}, width {width}")
    if len(data) != rows * places * width:
        raise ReferenceFormatError(
            f"column: expected {rows * places * width} bytes, found {len(data)}"
        )
    wide = np.zeros((rows * places, 8), np.uint8)
    if width:
        wide[:, :width] = np.frombuffer(data, np.uint8).reshape(width, -1).T
    codes = wide.view("<u8").reshape(places, rows).T.astype(np.uint64)
    values = _unzigzag(codes)
    for axis, times in enumerate(PREDICTIONS[prediction]):
        for _ in range(times):
            values = np.cumsum(values, axis=axis)
    return values


def _differences(values: Integers, rows: int, places: int) -> Integers:
    for _ in range(rows):
        values = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    for _ in range(places):
        values = np.diff(values, axis=1, prepend=np.zeros_like(values[:, :1]))
    return values


def _cost(rest: Integers) -> float:
    """Estimate the bits that remain: the logarithm of each difference's size."""
    return float(np.log2(1.0 + np.abs(rest.astype(np.float64))).sum())


def _zigzag(values: Integers) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(codes: NDArray[np.uint64]) -> Integers:
    return (codes >> np.uint64(1)).view(np.int64) ^ -(codes & np.uint64(1)).view(np.int64)
