"""Normalisation; recurrent layers: inputs X, W, R, B, sequence_lens, initial_h, initial_c, P."""

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import (
    Case,
    Const,
    case,
    draw,
    f,
    ints,
    own,
    pos,
    w,
)

HALF = f(2, 3, 8).astype(np.float16)
ROWS_OF_ZEROS = np.concatenate([f(2, 3), np.zeros((1, 3), np.float32)])
STEPS, BATCH, SIZE, HIDDEN = 4, 3, 5, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = np.array([4, 1, 3], np.int32)
BOTH_WAYS = {"activation_alpha": [0.3, 0.8], "activation_beta": [0.1, 0.6]}
TRAINING: dict[str, Any] = {"outputs": 3, "training_mode": 1, "momentum": 0.7}


def optional(given: str, lengths: Any, make: Any, ways: int, gates: int) -> list[Any]:
    """Return optional inputs: b(ias), l(engths), h, c, p(eepholes)."""
    state = (ways, BATCH, HIDDEN)
    shapes = {"b": (ways, 2 * gates), "h": state, "c": state, "p": (ways, 3 * HIDDEN)}
    made: list[Any] = [make(*shapes[key]) if key in given else None for key in "bhcp"]
    made.insert(1, lengths if "l" in given else None)
    return made


def layer(op: str, *, given: str = "", fixed: bool = True, **attributes: Any) -> Case:
    """Return a case of RNN, GRU or LSTM; where `fixed`, weights and lengths are constants."""
    ways = 2 if attributes.get("direction") == "bidirectional" else 1
    gates = GATES[op] * HIDDEN
    make = w if fixed else f
    more = optional(given, Const(LENGTHS) if fixed else LENGTHS, make, ways, gates)
    while more and more[-1] is None:
        more.pop()
    inputs = (f(STEPS, BATCH, SIZE), make(ways, gates, SIZE), make(ways, gates, HIDDEN))
    attributes = {"opset": 14, "outputs": 3 if op == "LSTM" else 2} | attributes
    return case(op, *inputs, *more, hidden_size=HIDDEN, **attributes)


def activated(op: str, *names: str, **attributes: Any) -> Case:
    return layer(op, given="b", activations=list(names), **attributes)


def quantized(*, ways: int = 1, columns: bool = False, given: str = "", **attributes: Any) -> Case:
    """Return a case of DynamicQuantizeLSTM; scales are per direction or `columns`.

    Weights are small: onnxruntime saturates sums of products at 16 bits on some processors.
    """
    wide = 4 * HIDDEN

    def scheme() -> tuple[Const, Const]:
        shape = (ways, wide) if columns else (ways,)
        scale = draw().uniform(0.004, 0.008, shape).astype(np.float32)
        return Const(scale), Const(np.zeros(shape, np.int8))

    if ways == 2:
        attributes["direction"] = "bidirectional"
    more = optional(given, Const(LENGTHS), w, ways, wide)
    shapes = (ways, SIZE, wide), (ways, HIDDEN, wide)
    x = f(STEPS, BATCH, SIZE)
    weights = [Const(ints(-60, 61, *shape, dtype=np.int8)) for shape in shapes]
    attributes |= {"domain": "com.microsoft", "hidden_size": HIDDEN, "outputs": 3}
    return case("DynamicQuantizeLSTM", x, *weights, *more, *scheme(), *scheme(), **attributes)


def trained(opset: int) -> Case:
    inputs = f(3, 4, 5, 2), w(4), w(4), w(4), Const(pos(4))
    return own("BatchNormalization", *inputs, opset=opset, **TRAINING)


CASES = [
    own("BatchNormalization", f(6), w(1), w(1), w(1), Const(pos(1)), opset=15),
    *(trained(opset) for opset in (14, 15)),
    case("InstanceNormalization", f(2, 3, 7), w(3), w(3), epsilon=1e-2),
    case("InstanceNormalization", f(1, 2, 3, 4, 2), w(2), w(2)),
    case("LayerNormalization", f(2, 3, 4, 5), w(4, 5), w(5), axis=-2, outputs=3),
    case("LayerNormalization", f(2, 3, 8), w(3, 1), axis=1),
    case("LayerNormalization", HALF, Const(HALF[0, 0]), Const(HALF[1, 1]), outputs=3),
    case("GroupNormalization", f(2, 6, 4, 3), w(6), w(6), num_groups=3, opset=21),
    case("GroupNormalization", f(2, 6, 4, 3), w(3), w(3), num_groups=3, opset=18),
    case("GroupNormalization", f(2, 6, 5), w(6), w(6), num_groups=2, opset=21, epsilon=1e-2),
    case("RMSNormalization", f(2, 3, 8), w(8), opset=23),
    case("RMSNormalization", f(2, 3, 8), w(3, 1), opset=23, axis=1, epsilon=1e-1),
    case("RMSNormalization", HALF, Const(HALF[0, 0]), opset=23),
    *(case("LpNormalization", ROWS_OF_ZEROS, p=p, axis=a) for p, a in ((1, 0), (2, -1))),
    case("MeanVarianceNormalization", f(2, 3, 4, 5), opset=13),
    own("MeanVarianceNormalization", f(2, 3, 4), opset=13, axes=[0, -1]),
    # recurrent
    quantized(),
    quantized(columns=True, given="bhc"),
    quantized(given="bl"),
    quantized(ways=2, given="b"),
    quantized(ways=2, columns=True, given="bp"),
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
    *(activated("RNN", name) for name in ("Relu", "Softplus")),
    *(
        activated("RNN", name, activation_alpha=[alpha])
        for name, alpha in (("LeakyRelu", 0.2), ("ThresholdedRelu", 0.3), ("Elu", 0.7))
    ),
    activated("GRU", "HardSigmoid", "Softsign", activation_alpha=[0.3], activation_beta=[0.4]),
    activated("RNN", "Affine", "ScaledTanh", direction="bidirectional", **BOTH_WAYS),
    activated("LSTM", "HardSigmoid", "Relu", "Tanh"),
]
