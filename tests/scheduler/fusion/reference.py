"""What rows of several themes share: functions in numpy, and the same on tensors."""

from __future__ import annotations

import numpy as np

from tests.scheduler.support.programs import Array


def np_relu(x: Array) -> Array:
    return np.maximum(x, 0)


def np_elu(x: Array) -> Array:
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)


def np_softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def np_layernorm(x: Array, eps: float = 1e-5) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps))


def np_conv(x: Array, w: Array, padding: int = 0) -> Array:
    """Convolve (N, C, H, W) with (O, C, kh, kw), stride 1."""
    p = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(p, w.shape[2:], axis=(2, 3))
    return np.tensordot(seen, w, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2)


def np_batchnorm(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    s, b, m, v = (a.reshape(1, -1, 1, 1) for a in (scale, bias, mean, variance))
    return np.asarray((x - m) / np.sqrt(v + 1e-5) * s + b)


def np_attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    return np.asarray(np_softmax(scores) @ v)


def np_sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def np_silu(x: Array) -> Array:
    return x * np_sigmoid(x)
