"""Integers as bytes that compress: differences, zigzag, one plane for each byte.

Used for every column of a reference: values as steps, frame ids, digests. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tools.regress.errors import ReferenceFormatError

Integers = NDArray[np.int64]

# How a column is predicted, by number: what is stored is the difference.
PREDICTIONS: Final[tuple[str, ...]] = ("none", "row before", "place before", "both")
_WIDTHS: Final = (0, 1, 2, 4, 8)


def encode_column(values: Integers) -> tuple[int, int, bytes]:
    """Return the number of the prediction, the bytes of one number, and the bytes.

    Args:
        values: (rows, places) int64; differences may wrap, which decoding undoes.
    """
    best = min(
        ((_cost(rest), number, rest) for number, rest in enumerate(_differences(values))),
        key=lambda candidate: candidate[:2],
    )
    _, number, rest = best
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
    return _undo(prediction)(_unzigzag(codes))


def _differences(values: Integers) -> list[Integers]:
    rows = np.diff(values, axis=0, prepend=np.zeros_like(values[:1]))
    places = np.diff(values, axis=1, prepend=np.zeros_like(values[:, :1]))
    both = np.diff(rows, axis=1, prepend=np.zeros_like(values[:, :1]))
    return [values, rows, places, both]


def _undo(prediction: int) -> Callable[[Integers], Integers]:
    if prediction == 0:
        return lambda rest: rest
    if prediction == 1:
        return lambda rest: np.cumsum(rest, axis=0)
    if prediction == 2:
        return lambda rest: np.cumsum(rest, axis=1)
    return lambda rest: np.cumsum(np.cumsum(rest, axis=1), axis=0)


def _cost(rest: Integers) -> float:
    """Estimate the bits that remain: the logarithm of each difference's size."""
    return float(np.log2(1.0 + np.abs(rest.astype(np.float64))).sum())


def _zigzag(values: Integers) -> NDArray[np.uint64]:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _unzigzag(codes: NDArray[np.uint64]) -> Integers:
    return (codes >> np.uint64(1)).view(np.int64) ^ -(codes & np.uint64(1)).view(np.int64)
