"""Translators of DFT, STFT, window functions and MelWeightMatrix.

Transforms are products with constant matrices: a fast Fourier transform is faster only for long
signals, and frames of audio are short. Sources: ONNX DFT-17 and -20, STFT-17, MelWeightMatrix-17.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value, normal_axis
from scheduler.tensor.tensor import Tensor

# The maximum number of elements of a matrix computed at import.
MAX_MATRIX = 1 << 24


def dft(ctx: NodeContext) -> Value:
    """Translate DFT of x (..., n, ..., 1 or 2); the last axis is real, or real and imaginary.

    With onesided=1 the result is the first half of the transform; with inverse=1 as well, the first
    half is the input, and the result is real.
    """
    x = ctx.tensor(0)
    if ctx.opset < 20:  # the axis is an attribute, 1 by default; later an input, -2 by default
        axis = ctx.integer("axis", 1)
    else:
        axis = ctx.ints(2, "axis")[0] if ctx.has(2) else -2
    axis = normal_axis(axis, x.ndim)
    if axis == x.ndim - 1 or x.shape[-1] not in (1, 2):
        raise ModelError(
            f"expected a last axis of 1 or 2 other than axis {axis}, found {list(x.shape)}"
        )
    inverse, half = bool(ctx.integer("inverse", 0)), bool(ctx.integer("onesided", 0))
    given = x.shape[axis]
    length = 2 * (given - 1) if inverse and half else given
    if ctx.has(1):
        length = ctx.ints(1, "dft_length")[0]
    if length < 1:
        raise ModelError(f"dft_length must be at least 1, found {length}")
    if inverse and half:
        return _real_inverse(x, axis, length)
    used = min(given, length)
    outputs = length // 2 + 1 if half else length
    return _transformed(x, axis, _waves(used, outputs, length, inverse=inverse))


def stft(ctx: NodeContext) -> Value:
    """Translate STFT of a signal (N, n, 1 or 2) to transforms of frames (N, frames, bins, 2)."""
    x = ctx.tensor(0)
    x = x if x.ndim == 3 else x.unsqueeze(-1)
    step = ctx.ints(1, "frame_step")[0]
    window = ctx.tensor(2) if ctx.has(2) else None
    if ctx.has(3):
        length = ctx.ints(3, "frame_length")[0]
    elif window is not None:
        length = window.shape[0]
    else:
        raise ModelError("expected a window or a frame_length")
    if step < 1 or not 0 < length <= x.shape[1]:
        raise ModelError(
            f"frames of {length} elements every {step} do not fit a signal of {x.shape[1]}"
        )
    frames = x.window(1, length, step)  # (N, frames, length, 1 or 2)
    if window is not None:
        if window.shape != (length,):
            raise ModelError(f"expected a window of {length} elements, found {list(window.shape)}")
        frames = frames * window.reshape((1, 1, length, 1))
    half = bool(ctx.integer("onesided", 1))
    outputs = length // 2 + 1 if half else length
    return _transformed(frames, 2, _waves(length, outputs, length, inverse=False))


def _waves(inputs: int, outputs: int, length: int, *, inverse: bool) -> Array:
    """Return exp(-2 pi i j k / length), or exp(2 pi i j k / length) / length: (outputs, inputs)."""
    if inputs * outputs > MAX_MATRIX:
        raise ModelError(
            f"a transform of {inputs} to {outputs} elements; expected at most {MAX_MATRIX} products"
        )
    turns = np.outer(np.arange(outputs), np.arange(inputs)) % length
    sign = 1 if inverse else -1
    waves: Array = np.exp(turns * (sign * 2j * np.pi / length)) / (length if inverse else 1)
    return waves


def _transformed(x: Tensor, axis: int, waves: Array) -> Tensor:
    """Return the complex product of an axis of real or complex x and a matrix (outputs, inputs)."""
    inputs = waves.shape[1]
    x = x.shrink([(0, inputs if i == axis else n) for i, n in enumerate(x.shape)])
    parts = [np.stack([waves.real, waves.imag])]
    if x.shape[-1] == 2:  # (a + bi)(c + di) = ac - bd + (ad + bc)i
        parts.append(np.stack([-waves.imag, waves.real]))
    # (parts of x, parts of the result, outputs, inputs)
    return _product(x, axis, np.stack(parts))


def _product(x: Tensor, axis: int, matrix: Array) -> Tensor:
    """Return the product of x (..., inputs, ..., p) and a matrix (p, q, outputs, inputs).

    The result is (..., outputs, ..., q); the inputs are on axis `axis`.
    """
    p, q, outputs, inputs = matrix.shape
    rest = [i for i in range(x.ndim - 1) if i != axis]
    kept = tuple(x.shape[i] for i in rest)
    rows = x.permute((*rest, axis, x.ndim - 1)).reshape((-1, inputs * p))
    flat = matrix.transpose(3, 0, 2, 1).reshape(inputs * p, outputs * q).astype(x.dtype.np)
    found = rows.matmul(Tensor.weight(np.asarray(flat, order="C"))).reshape((*kept, outputs, q))
    order = list(range(len(kept)))
    order.insert(axis, len(kept))
    return found.permute((*order, len(kept) + 1))


def _real_inverse(x: Tensor, axis: int, length: int) -> Tensor:
    """Return the real signal whose transform has the first half x; `length` is its size."""
    bins = min(x.shape[axis], length // 2 + 1)
    x = x.shrink([(0, bins if i == axis else n) for i, n in enumerate(x.shape)])
    waves = _waves(bins, length, length, inverse=True)
    # The other half has the complex conjugates. They double the real part of every bin except the
    # first, and the last for an even length.
    twice = np.full(bins, 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and bins == length // 2 + 1:
        twice[-1] = 1.0
    parts = [waves.real * twice]
    if x.shape[-1] == 2:
        parts.append(-waves.imag * twice)
    return _product(x, axis, np.stack(parts)[:, None])


def mel_weight_matrix(ctx: NodeContext) -> Value:
    """Compute MelWeightMatrix at import: columns are triangles, evenly spaced in mel."""
    bins, length, rate = (
        ctx.ints(i, what)[0] for i, what in enumerate(("num_mel_bins", "dft_length", "sample_rate"))
    )
    low, high = (
        float(ctx.const(i, what).reshape(()))
        for i, what in ((3, "lower_edge_hertz"), (4, "upper_edge_hertz"))
    )
    rows = length // 2 + 1
    if rows * bins > MAX_MATRIX:
        raise ModelError(f"a matrix of {rows} x {bins}; expected at most {MAX_MATRIX} elements")
    # mel(f) = 2595 log10(1 + f / 700): ONNX MelWeightMatrix-17.
    mel_low, mel_high = (2595 * np.log10(1 + hertz / 700) for hertz in (low, high))
    mels = np.arange(bins + 2) * ((mel_high - mel_low) / (bins + 2)) + mel_low
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    if bins < 1 or edges.min() < 0 or edges.max() > rows:
        raise ModelError(f"mel bins from {low} to {high} Hz do not fit {rows} bins of {rate} Hz")
    matrix = np.zeros((rows, bins))
    row = np.arange(rows)
    for i, (start, middle, end) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rising = (row >= start) & (row <= middle)
        matrix[rising, i] = (row[rising] - start) / (middle - start) if middle > start else 1.0
        falling = (row >= middle) & (row < end)
        matrix[falling, i] = (end - row[falling]) / max(1, end - middle)
    return matrix.astype(_output_type(ctx).np)


def _output_type(ctx: NodeContext) -> dt.DType:
    return dt.from_numpy(helper.tensor_dtype_to_np_dtype(ctx.integer("output_datatype", 1)))


def hann_window(ctx: NodeContext) -> Value:
    """Compute HannWindow at import: sin^2(pi i / n)."""
    return _cosines(ctx, (0.5, -0.5))


def hamming_window(ctx: NodeContext) -> Value:
    """Compute HammingWindow at import: 25/46 - 21/46 cos(2 pi i / n)."""
    return _cosines(ctx, (25 / 46, -21 / 46))


def blackman_window(ctx: NodeContext) -> Value:
    """Compute BlackmanWindow at import: 0.42 - 0.5 cos(2 pi i / n) + 0.08 cos(4 pi i / n)."""
    return _cosines(ctx, (0.42, -0.5, 0.08))


def _cosines(ctx: NodeContext, factors: tuple[float, ...]) -> Array:
    """Return the sum of factors[k] cos(2 pi k i / n); n is the size, less 1 with periodic=0."""
    size = ctx.ints(0, "size")[0]
    if not 0 <= size <= MAX_MATRIX:
        raise ModelError(f"size {size}; expected 0 to {MAX_MATRIX}")
    period = size if ctx.integer("periodic", 1) else max(1, size - 1)
    turns = np.arange(size) * (2 * np.pi / max(1, period))
    values = sum(factor * np.cos(i * turns) for i, factor in enumerate(factors))
    found: Array = np.asarray(values).astype(_output_type(ctx).np)
    return found
