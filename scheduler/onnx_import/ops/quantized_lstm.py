"""Translator of DynamicQuantizeLSTM of com.microsoft: an LSTM that multiplies integers.

Inputs and hidden state are quantised to uint8 by their own range: the inputs of all steps at once,
the state of a direction in each step, the whole batch by one scale (ONNX Runtime divides large
batches among its threads). The rest is what LSTM does. Formulas: ONNX Runtime's documentation of
its contributed operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.cells import LSTM_ACTIVATIONS, lstm_of
from scheduler.onnx_import.ops.quantize import Scheme, dynamic_scheme
from scheduler.onnx_import.ops.recurrent import Weights, directions, read_layer
from scheduler.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Matrices:
    """Quantised matrices (D, K, M) with a scale (and a zero point) per direction or column."""

    values: Tensor
    scheme: Scheme

    def columns(self, start: int, count: int) -> _Matrices:
        """Return some of the columns."""
        part = slice(start, start + count)
        scale, zero = self.scheme.scale, self.scheme.zero_point
        if scale.shape[2] > 1:
            scale = scale[:, :, part]
        if zero is not None and zero.shape[2] > 1:
            zero = zero[:, :, part]
        return _Matrices(self.values[:, :, part], Scheme(scale, zero))

    def times(self, x: Tensor) -> Tensor:
        """Return x (D or 1, N, K) times the matrices; x is quantised for each of its first axis."""
        scheme = dynamic_scheme(x, (1, 2))
        whole = scheme.centred(scheme.quantize(x, TensorProto.UINT8))
        total = whole.matmul(self.scheme.centred(self.values))
        return total.cast(dt.float32) * (scheme.scale * self.scheme.scale)


def dynamic_quantize_lstm(ctx: NodeContext) -> Sequence[Value]:
    """Translate DynamicQuantizeLSTM: inputs of LSTM, then scales and zero points of W and R.

    W is (D, I, 4H) and R (D, H, 4H), transposed to LSTM's.
    """
    size, hidden = ctx.tensor(0).shape[2], ctx.tensor(2).shape[1]
    w, r = _matrices(ctx, 1, (size, 4 * hidden)), _matrices(ctx, 2, (hidden, 4 * hidden))
    gates: list[Callable[[Tensor], Tensor]] = [
        r.columns(i * hidden, hidden).times for i in range(4)
    ]
    return lstm_of(read_layer(ctx, 4, LSTM_ACTIVATIONS, Weights(hidden, w.times, gates)))


def _matrices(ctx: NodeContext, index: int, shape: tuple[int, int]) -> _Matrices:
    """Return W (index 1) or R (index 2) with its scale and zero point, inputs 8 to 11."""
    values, count = ctx.tensor(index), len(directions(ctx))
    name = "_WR"[index]
    if values.shape != (count, *shape):
        raise ModelError(f"expected {name} of shape {(count, *shape)}, found {values.shape}")
    parts = []
    for at, what in ((6 + 2 * index, "scale"), (7 + 2 * index, "zero point")):
        given = ctx.tensor(at)
        if given.shape not in ((count,), (count, shape[1])):
            raise ModelError(
                f"expected {name}'s {what} of shape {(count,)} or {(count, shape[1])}, "
                f"found {given.shape}"
            )
        parts.append(given.reshape((count, 1, -1)))
    return _Matrices(values, Scheme(parts[0], parts[1]))
