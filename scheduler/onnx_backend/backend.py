"""Implements ONNX's backend interface (`onnx.backend.base`): prepare a model, run it on arrays.

    backend = OnnxBackend.prepare(onnx.load("model.onnx"))
    outputs = backend.run([array])

A model is compiled at the first run with new input shapes. If a node needs the value of an input at
compile time (a shape, axes, a count), the program is compiled for the given value, and compiled
again when the value changes.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import checker, helper, shape_inference
from onnx.backend.base import Backend, BackendRep

from runtime.errors import NoDeviceError
from runtime.opencl.device import Device, DeviceInfo, choose_device, list_devices
from scheduler.errors import ModelError, SchedulerError
from scheduler.onnx_backend.program import ModelProgram, check_types, compile_for, named_arrays
from scheduler.onnx_import.files.load import OnnxModel, from_proto
from scheduler.onnx_import.limits import DEFAULT_DOMAINS, one_line
from scheduler.onnx_import.support import check_supported

Array = NDArray[Any]

# Maximum number of programs that a prepared model keeps, one per combination of shapes and bound
# values.
MAX_PROGRAMS: Final = 4
_DEVICE: Final = re.compile(r"([A-Za-z]+)(?::(\d+))?")


class OnnxBackendRep(BackendRep):
    """A prepared model, compiled at the first run with arrays of new shapes.

    Not thread-safe. `close`, or use as a context manager, frees its device memory.
    """

    def __init__(self, model: OnnxModel, device: Device) -> None:
        super().__init__()
        self._model = model
        self._device = device
        self._programs: OrderedDict[object, ModelProgram] = OrderedDict()
        self._needed: dict[object, tuple[str, ...]] = {}
        self._last: ModelProgram | None = None

    @property
    def last(self) -> ModelProgram | None:
        """The program of the last run, None before the first run."""
        return self._last

    def run(self, inputs: Any, **_: Any) -> tuple[Array, ...]:
        """Run the model.

        Args:
            inputs: arrays of the declared element types (numpy's or ml_dtypes'): a dict by name, a
                list in the order of the model, or one array.

        Raises:
            InputError: an array is missing, unknown, or does not fit the model's declaration.
            ModelError: the model cannot be compiled.
            BuildError, RuntimeFault: the device cannot build or run the program.
        """
        arrays = named_arrays(self._model, inputs)
        self._last = self._program(arrays)
        return self._last.run(arrays)

    def _program(self, arrays: Mapping[str, Array]) -> ModelProgram:
        shapes = tuple((name, array.shape) for name, array in arrays.items())
        needed = self._needed.get(shapes, ())
        found = self._programs.get((shapes, _values(arrays, needed)))
        if found is None:
            found = compile_for(self._model, arrays, needed, self._device)
            self._needed[shapes] = found.bound
            self._programs[shapes, _values(arrays, found.bound)] = found
            while len(self._programs) > MAX_PROGRAMS:
                self._programs.popitem(last=False)[1].close()
        self._programs.move_to_end((shapes, _values(arrays, found.bound)))
        return found

    def close(self) -> None:
        """Free the device memory of all programs; the next run compiles again."""
        while self._programs:
            self._programs.popitem()[1].close()
        self._last = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class OnnxBackend(Backend):
    """An ONNX backend that compiles models for an OpenCL device.

    A device is selected by "CPU", "GPU", or a part of its name or its platform's name ("CUDA",
    "POCL"). A number selects one of several devices ("CUDA:1").
    """

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is a usable OpenCL device of this name."""
        return _find(device) is not None

    @classmethod
    def is_opset_supported(cls, model: onnx.ModelProto) -> tuple[bool, str]:
        """Return whether the model's opset versions are supported, and the reason if not."""
        newest = onnx.defs.onnx_opset_version()
        for opset in model.opset_import:
            if opset.domain in DEFAULT_DOMAINS and not 1 <= opset.version <= newest:
                return False, f"expected opset 1 to {newest}, found {opset.version}"
        return True, ""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> bool:
        """Return whether the model is valid, its operators are supported, and the device exists.

        Attributes and shapes are checked by `prepare` and `run`.
        """
        try:
            loaded = from_proto(model)
            check_types(loaded)
            check_supported(loaded)
        except SchedulerError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **_: Any) -> OnnxBackendRep:
        """Check a model and open a device; the model is compiled at the first run.

        Raises ModelError if the model is invalid, or an input or output is not a numeric tensor.
        Raises NoDeviceError, with a list of the devices, if there is no device of this name.
        """
        loaded = from_proto(model)
        check_types(loaded)
        return OnnxBackendRep(loaded, _open(device))

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Array, ...]:
        """Compile and run a model once; arguments and exceptions are as for `prepare` and `run`."""
        with cls.prepare(model, device, **kwargs) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """Compile and run one node once.

        Args:
            node: a node of the default domain, or of another domain at version 1.
            inputs: arrays by name or in order, without inputs that are left out.
            device: name of the device.
            outputs_info: (dtype, shape) of each output; inferred by default.
            kwargs: `opset_version`, by default the newest; the rest is passed to `prepare`.

        Raises:
            ModelError: the node is invalid or cannot be compiled, or its types cannot be inferred.
            InputError, NoDeviceError, BuildError, RuntimeFault: as for `prepare` and `run`.
        """
        names = list(dict.fromkeys(name for name in node.input if name))
        if isinstance(inputs, Mapping):
            arrays = {name: np.asarray(inputs[name]) for name in names if name in inputs}
        else:
            arrays = dict(zip(names, map(np.asarray, inputs), strict=False))
        opset = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        model = _model_of(node, arrays, outputs_info, opset)
        return cls.run_model(model, arrays, device, **kwargs)


def _values(arrays: Mapping[str, Array], names: Sequence[str]) -> tuple[object, ...]:
    return tuple((name, arrays[name].tobytes()) for name in names)


def _find(device: str) -> DeviceInfo | None:
    """Return the usable device that an ONNX device name selects, or None."""
    match = _DEVICE.fullmatch(device)
    if match is None:
        return None
    name, number = match[1].lower(), int(match[2] or 0)
    usable = [info for info in list_devices() if not info.problem]
    if name in ("cpu", "gpu"):
        found = [info for info in usable if info.kind == name]
    else:
        found = [i for i in usable if name in f"{i.platform} {i.name}".lower()]
        found += [i for i in usable if name == "pocl" and i.is_pocl and i not in found]
    return found[number] if number < len(found) else None


def _open(device: str) -> Device:
    info = _find(device)
    if info is None:
        names = ", ".join(f"{i.platform}: {i.name}" for i in list_devices()) or "none"
        raise NoDeviceError(f"no usable OpenCL device matches {device!r}; found: {names}")
    return choose_device(info.index)


def _model_of(
    node: onnx.NodeProto,
    arrays: Mapping[str, Array],
    outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None,
    opset: int,
) -> onnx.ModelProto:
    """Return a model with one node; raise ModelError if its output types cannot be inferred."""
    opsets = [helper.make_opsetid("", opset)]
    if node.domain not in DEFAULT_DOMAINS:
        opsets.append(helper.make_opsetid(node.domain, 1))
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in arrays.items()
    ]
    names = [name for name in node.output if name]
    if outputs_info is None:
        wanted = [onnx.ValueInfoProto(name=name) for name in names]
    else:
        wanted = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(t)), shape)
            for n, (t, shape) in zip(names, outputs_info, strict=True)
        ]
    graph = helper.make_graph([node], node.op_type, given, wanted)
    model = helper.make_model(graph, opset_imports=opsets)
    if outputs_info is not None:
        return model
    try:
        inferred = shape_inference.infer_shapes(model, strict_mode=True)
    except (shape_inference.InferenceError, checker.ValidationError) as error:
        raise ModelError(f"node {node.op_type}: not a valid node: {one_line(error)}") from error
    for value in inferred.graph.output:
        if value.type.WhichOneof("value") is None:
            raise ModelError(
                f"node {node.op_type}: the type of output {value.name!r} is not known; "
                "give outputs_info"
            )
    return inferred


# Module-level functions that tools expect in a backend module, see onnx's documentation.
is_compatible = OnnxBackend.is_compatible
prepare = OnnxBackend.prepare
run_model = OnnxBackend.run_model
run_node = OnnxBackend.run_node
supports_device = OnnxBackend.supports_device
