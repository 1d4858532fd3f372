"""Writes the example models in halves and in eight bits, for the benchmarks.

    python -m benchmarks.narrow_models build/bench-models

Beside NAME.onnx it writes NAME_half.onnx, with weights and values cast to float16, and
NAME_int8.onnx, quantised by onnxruntime: QDQ, per channel, uint8 values and int8 weights, ranges of
four random inputs. Without onnxruntime there are no models in eight bits.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HALVES: Final = ("vision", "policy", "fastvit", "vit", "swin", "mobilevit")
EIGHT_BITS: Final = ("vision", "policy", "resnet18", "mobilenetv3_large", "fastvit", "mobilevit")
CALIBRATIONS: Final = 4


def in_halves(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model without nested graphs whose float32 weights and values are float16."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    tensors = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*graph.initializer, *tensors):
        if tensor.data_type == TensorProto.FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


class _Inputs:
    """Random inputs, as onnxruntime's calibration asks for them."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._left = iter(_random_inputs(graph))

    def get_next(self) -> dict[str, Any] | None:
        return next(self._left, None)


def _random_inputs(graph: onnx.GraphProto) -> Iterator[dict[str, Any]]:
    weights = {tensor.name for tensor in graph.initializer}
    for seed in range(CALIBRATIONS):
        rng = np.random.default_rng(seed)
        found = {}
        for value in graph.input:
            if value.name not in weights:
                kind = value.type.tensor_type
                shape = [dim.dim_value or 1 for dim in kind.shape.dim]
                dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
                drawn = rng.integers(0, 256, shape) if dtype == np.uint8 else rng.normal(size=shape)
                found[value.name] = drawn.astype(dtype)
        yield found


def write_eight_bits(source: Path, target: Path) -> None:
    """Quantise a model with onnxruntime.

    Raises:
        ImportError: it is not installed.
    """
    from onnxruntime import quantization

    quantization.quantize_static(
        str(source),
        str(target),
        _Inputs(onnx.load(source).graph),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )


def main() -> None:
    """Write the models."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path, help="directory of modeld make-model --benchmarks")
    directory = parser.parse_args().models
    logging.getLogger().setLevel(logging.ERROR)  # onnxruntime warns of each bias that has one axis
    for name in HALVES:
        onnx.save(in_halves(onnx.load(directory / f"{name}.onnx")), directory / f"{name}_half.onnx")
    for name in EIGHT_BITS:
        try:
            write_eight_bits(directory / f"{name}.onnx", directory / f"{name}_int8.onnx")
        except ImportError:
            print("no models in eight bits: onnxruntime is not installed (extra bench)")
            break


if __name__ == "__main__":
    main()
