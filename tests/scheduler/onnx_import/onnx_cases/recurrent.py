"""Recurrent layers: inputs X, W, R, B, sequence_lens, initial_h, initial_c, P."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, draw, f, w

STEPS, BATCH, SIZE, HIDDEN = 4, 3, 5, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = np.array([4, 1, 3], np.int32)


def layer(op: str, *, given: str = "", fixed: bool = True, **attributes: Any) -> Case:
    """Return a case of a layer.

    Args:
        op: RNN, GRU or LSTM.
        given: optional inputs, in their order: b(ias), l(engths), h, c, p(eepholes).
        fixed: weights and lengths are constants.
        attributes: of the node.
    """
    both = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[op] * HIDDEN
    make = w if fixed else f
    state = (both, BATCH, HIDDEN)
    shapes = {"b": (both, 2 * gates), "h": state, "c": state, "p": (both, 3 * HIDDEN)}
    optional: list[Any] = [make(*shapes[key]) if key in given else None for key in "bhcp"]
    optional.insert(1, (Const(LENGTHS) if fixed else LENGTHS) if "l" in given else None)
    outputs = attributes.pop("outputs", 3 if op == "LSTM" else 2)
    while optional and optional[-1] is None:
        optional.pop()
    inputs = (f(STEPS, BATCH, SIZE), make(both, gates, SIZE), make(both, gates, HIDDEN))
    opset = attributes.pop("opset", 14)
    return case(
        op, *inputs, *optional, hidden_size=HIDDEN, opset=opset, outputs=outputs, **attributes
    )


def activated(op: str, *names: str, **attributes: Any) -> Case:
    return layer(op, given="b", activations=list(names), **attributes)


def quantized(
    *, both: bool = False, columns: bool = False, given: str = "", **attributes: Any
) -> Case:
    """Return a case of DynamicQuantizeLSTM; scales are per direction or `columns`.

    Weights are small: onnxruntime saturates sums of products at 16 bits on some processors.
    """
    count, wide = 1 + both, 4 * HIDDEN

    def integers(*shape: int) -> Const:
        return Const(draw().integers(-60, 61, shape).astype(np.int8))

    def scheme() -> tuple[Const, Const]:
        shape = (count, wide) if columns else (count,)
        scale = draw().uniform(0.004, 0.008, shape).astype(np.float32)
        return Const(scale), Const(np.zeros(shape, np.int8))

    if both:
        attributes["direction"] = "bidirectional"
    state = (count, BATCH, HIDDEN)
    shapes = {"b": (count, 2 * wide), "h": state, "c": state, "p": (count, 3 * HIDDEN)}
    optional: list[Any] = [w(*shapes[key]) if key in given else None for key in "bhcp"]
    optional.insert(1, Const(LENGTHS) if "l" in given else None)
    return case(
        "DynamicQuantizeLSTM",
        f(STEPS, BATCH, SIZE),
        integers(count, SIZE, wide),
        integers(count, HIDDEN, wide),
        *optional,
        *scheme(),
        *scheme(),
        domain="com.microsoft",
        hidden_size=HIDDEN,
        outputs=3,
        **attributes,
    )


CASES = [
    quantized(),
    quantized(columns=True, given="bhc"),
    quantized(given="bl"),
    quantized(both=True, given="b"),
    quantized(both=True, columns=True, given="bp"),
    quantized(given="b", direction="reverse", clip=0.5),
    *(layer(op, given="bh", fixed=False) for op in GATES),
    *(layer(op, opset=7, direction="reverse", outputs=1) for op in GATES),
    *(layer(op, given="blh", direction="bidirectional", opset=22) for op in GATES),
    *(layer(op, given="bl", fixed=False, direction="reverse") for op in GATES),
    layer("GRU", given="blh", linear_before_reset=1),
    layer("GRU", given="b", clip=0.3, direction="bidirectional"),
    layer("RNN", given="b", clip=0.3),
    layer("LSTM", given="bhcp", clip=0.4),
    layer("LSTM", given="bcp", input_forget=1, direction="bidirectional"),
    activated("RNN", "Relu"),
    activated("RNN", "LeakyRelu", activation_alpha=[0.2]),
    activated("RNN", "ThresholdedRelu", activation_alpha=[0.3]),
    activated("RNN", "Elu", activation_alpha=[0.7]),
    activated("RNN", "Softplus"),
    activated("GRU", "HardSigmoid", "Softsign", activation_alpha=[0.3], activation_beta=[0.4]),
    activated(
        "RNN",
        "Affine",
        "ScaledTanh",
        direction="bidirectional",
        activation_alpha=[0.3, 0.8],
        activation_beta=[0.1, 0.6],
    ),
    activated("LSTM", "HardSigmoid", "Relu", "Tanh"),
]
