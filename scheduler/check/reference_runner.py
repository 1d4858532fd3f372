"""The reference: onnxruntime if it is installed, else onnx's evaluator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, load_model
from scheduler.onnx_import.text import one_line

Array = NDArray[Any]
# Of onnxruntime; chosen by hand.
MAX_THREADS = 2
# protobuf cannot serialize more.
MAX_BYTES = 2**31 - 1


class _Session(Protocol):
    name: str

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


class Reference:
    """Runs a model by another implementation.

    What onnxruntime cannot do (an operator or a type that it lacks) is done by onnx's evaluator.
    """

    def __init__(self, source: str | Path | OnnxModel, threads: int = MAX_THREADS) -> None:
        """Open a model with `threads` of onnxruntime; raise ModelError if nothing takes it."""
        self._source = source
        self.why_not = ""  # why onnxruntime is not used
        self._session: _Session
        try:
            self._session = _OnnxRuntime(_data(source), threads)
        except ModuleNotFoundError:
            self._fall_back("onnxruntime is not installed")
        except Exception as error:  # noqa: BLE001 - its errors have no common base
            self._fall_back(one_line(error))

    @property
    def name(self) -> str:
        """The implementation in use."""
        return self._session.name

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs by name for feeds in the model's types, or raise ModelError."""
        if not self.why_not:
            try:
                return self._session.run(feeds)
            except Exception as error:  # noqa: BLE001 - same
                self._fall_back(one_line(error))
        try:
            return self._session.run(feeds)
        except Exception as error:
            raise ModelError(
                f"the reference {self.name} cannot run the model: {one_line(error)}; compile it "
                "without --verify"
            ) from error

    def _fall_back(self, why: str) -> None:
        self.why_not = why
        model = self._source if isinstance(self._source, OnnxModel) else load_model(self._source)
        try:
            self._session = _Evaluator(whole_model(model))
        except Exception as error:
            raise ModelError(
                f"{model.name}: no reference takes the model: {one_line(error)}; compile it "
                "without --verify"
            ) from error


class _OnnxRuntime:
    def __init__(self, model: str | bytes, threads: int) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, min(threads, MAX_THREADS))
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal only: what it cannot do is done by another
        # They keep every rounding: the reference should be simple.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(model, options, providers=providers)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        found = self._session.run(None, dict(feeds))
        return dict(zip(self._names, map(np.asarray, found), strict=True))


class _Evaluator:
    def __init__(self, model: onnx.ModelProto) -> None:
        # Loads slowly and is rarely needed.
        from onnx.reference import ReferenceEvaluator

        self.name = f"onnx {onnx.__version__} reference evaluator"
        self._evaluator = ReferenceEvaluator(model)
        self._names = list(self._evaluator.output_names)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self._evaluator.run(None, dict(feeds))
        return dict(zip(self._names, map(np.asarray, found), strict=True))


def _data(source: str | Path | OnnxModel) -> str | bytes:
    if not isinstance(source, OnnxModel):
        return str(source)
    model = whole_model(source)
    if model.ByteSize() > MAX_BYTES:
        raise ModelError(f"{source.name}: more than 2 GiB; give the file, not the model")
    return bytes(model.SerializeToString())


def whole_model(model: OnnxModel) -> onnx.ModelProto:
    """Return a model with the data of its initializers, which may have stayed in other files."""
    missing = {
        tensor.name
        for tensor in model.proto.graph.initializer
        if tensor.HasField("data_location") and not tensor.raw_data
    }
    if not missing:
        return model.proto
    whole = onnx.ModelProto()
    whole.CopyFrom(model.proto)
    for tensor in whole.graph.initializer:
        if tensor.name in missing:
            tensor.CopyFrom(numpy_helper.from_array(model.constants[tensor.name], tensor.name))
    return whole
