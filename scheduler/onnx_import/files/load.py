"""The reading of an ONNX file: protobuf, external data, checks, constants as arrays.

The only way into this package for bytes we did not write. Called by `importer` and `inspect`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.onnx_import.files.external import ExternalData, forget, inner_tensors, is_external
from scheduler.onnx_import.files.file_kind import unlike_onnx
from scheduler.onnx_import.files.graph_checks import all_nodes, check_graphs, check_text
from scheduler.onnx_import.files.initializers import check_tensor, graph_constants
from scheduler.onnx_import.files.upgrade import OLDEST_OPSET, TARGET_OPSET, upgraded
from scheduler.onnx_import.limits import MAX_FILE_BYTES
from scheduler.onnx_import.text import DEFAULT_DOMAINS, one_line, printable

logger = logging.getLogger(__name__)

OLDEST_IR_VERSION = 3  # the first with operator sets


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked ONNX model.

    Attributes:
        proto: the model, nodes in order; not to be changed. Tensors of attributes and of inner
            graphs hold their data; initializers of the graph are in `constants`, those from
            other files only there.
        name: file name (or graph name) for messages.
        opset: version of the default operator domain.
        sha256: hex digest of the file, "" for a model that did not come from one.
        constants: initializers by name, not to be changed; sparse ones are dense.
        notes: what was changed in reading it, one sentence each.
        path: of the file; None for a model that did not come from one.
    """

    proto: onnx.ModelProto
    name: str
    opset: int
    sha256: str
    constants: dict[str, NDArray[Any]]
    notes: tuple[str, ...] = ()
    path: Path | None = None

    @property
    def metadata_props(self) -> dict[str, str]:
        """The model's free-form metadata."""
        return {prop.key: prop.value for prop in self.proto.metadata_props}

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Graph inputs that must be given: those without an initializer."""
        return [value for value in self.proto.graph.input if value.name not in self.constants]


def load_model(path: str | Path) -> OnnxModel:
    """Read and check an ONNX file.

    Args:
        path: of the .onnx file; external data is looked for in its directory only.

    Raises:
        ModelError: the file is missing, is no ONNX model, or breaks a rule of the format.
    """
    path = Path(path)
    where = printable(str(path), 120)
    data = _read(path, where)
    # Common mistakes, such as an LFS pointer or an archive, are told before protobuf fails on them.
    found = unlike_onnx(data)
    if found:
        raise ModelError(f"{where}: expected an ONNX model, found {found}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{where}: expected an ONNX model, found {len(data)} bytes that are no valid protobuf; "
            "is the file complete?"
        ) from error
    external = ExternalData(path.parent, printable(path.name))
    checked = _check(model, path.name, external, hashlib.sha256(data).hexdigest())
    return replace(checked, path=path)


def from_proto(proto: onnx.ModelProto, name: str = "") -> OnnxModel:
    """Check a model that is already in memory.

    Args:
        proto: the model; not changed. It must not refer to external data.
        name: for messages; the graph's own name by default.

    Raises:
        ModelError: the model breaks a rule of the format.
    """
    model = onnx.ModelProto()
    # Checks put data into tensors and may upgrade the model, so they get a copy.
    model.CopyFrom(proto)
    title = name or printable(proto.graph.name) or "model"
    return _check(model, title, ExternalData(None, printable(title)), "")


def _read(path: Path, where: str) -> bytes:
    try:
        # A pipe would be waited for, and a device read for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{where}: expected an ONNX model, found no plain file")
            if status.st_size > MAX_FILE_BYTES:
                raise ModelError(
                    f"{where}: {status.st_size} bytes, protobuf allows {MAX_FILE_BYTES}; save the "
                    "weights as external data"
                )
            return file.read()
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelError(f"{where}: cannot be read ({text})") from error


def _check(model: onnx.ModelProto, name: str, external: ExternalData, sha256: str) -> OnnxModel:
    """Check a model, which may be changed, and take its constants out."""
    name = printable(name)
    if not model.HasField("graph"):
        raise ModelError(f"{name}: expected an ONNX model, found no graph in it")
    if not OLDEST_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        found = model.ir_version or "none"
        raise ModelError(
            f"{name}: expected an ONNX model of IR version {OLDEST_IR_VERSION} to "
            f"{onnx.IR_VERSION}, found {found}; save it with another version of onnx"
        )
    # Text comes first: later messages quote names, which must be printable by then.
    check_text(model, name)
    opset = _opset(model, name)
    notes = check_graphs(model, name)
    for tensor in inner_tensors(model):
        if is_external(tensor):
            external.read_into(tensor)
        check_tensor(tensor, f'{name}: tensor "{printable(tensor.name)}"')
    old = opset < OLDEST_OPSET
    if old:  # what converts it needs all data inside
        for tensor in filter(is_external, model.graph.initializer):
            external.read_into(tensor)
    # Constants leave the model before the checker runs, which would serialize them.
    constants = _constants(model.graph, name, external)
    _run_checker(model, name, opset)
    if old:
        model, note = upgraded(model, opset, name)
        opset, notes = TARGET_OPSET, [*notes, note]
        # Conversion may have changed initializers, or added some.
        constants = _constants(model.graph, name, external)
    for note in notes:
        logger.info("%s: %s", name, note)
    return OnnxModel(model, name, opset, sha256, constants, tuple(notes))


def _constants(
    graph: onnx.GraphProto, name: str, external: ExternalData
) -> dict[str, NDArray[Any]]:
    mapped = {}
    for tensor in graph.initializer:
        if not is_external(tensor):
            continue
        # Packed elements of less than a byte have no array over the file.
        array = external.array_of(tensor)
        if array is None:
            external.read_into(tensor)
            continue
        mapped[tensor.name] = array
        forget(tensor)
    return graph_constants(graph, name, mapped)


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions = {o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS}
    newest = onnx.defs.onnx_opset_version()
    # A model of other domains only may leave the default domain's opset out.
    if not versions and not any(n.domain in DEFAULT_DOMAINS for n in model.graph.node):
        return newest  # nobody will ask
    if len(versions) != 1:
        raise ModelError(
            f"{name}: expected one opset of the default domain, found {sorted(versions) or 'none'}"
        )
    (version,) = versions
    if not 1 <= version <= newest:
        raise ModelError(
            f"{name}: expected opset 1 to {newest}, found {version}; "
            "export it again with another opset_version"
        )
    return int(version)


def _run_checker(model: onnx.ModelProto, name: str, opset: int) -> None:
    # The checker stops at the first operator it does not know; the importer names them all. It also
    # refuses what a later opset replaced: GroupNormalization of opset 18, which exporters wrote.
    if any(
        n.domain in DEFAULT_DOMAINS and not _is_current(n.op_type, opset) for n in all_nodes(model)
    ):
        return
    try:
        onnx.checker.check_model(_without_data(model))
    # The checker quotes names from inside; where they are not UTF-8, its message cannot be decoded.
    except (onnx.checker.ValidationError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: not a valid ONNX model: {one_line(error)}") from error


def _is_current(op_type: str, opset: int) -> bool:
    return (
        onnx.defs.has(op_type, opset, "")
        and not onnx.defs.get_schema(op_type, opset, "").deprecated
    )


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy for the checker: initializers are inputs, and what nobody reads is left out.

    The checker serializes what it is given. Initializers were checked here.
    """
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = model.graph
    # ONNX asks for a name of the graph, which many exporters leave empty.
    copy.graph.name = graph.name or "graph"
    copy.graph.node.extend(graph.node)
    copy.graph.input.extend(graph.input)
    # What is declared of outputs nobody needs; many files leave it out, which the checker refuses.
    for output in graph.output:
        value = copy.graph.output.add(name=output.name)
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    listed = {value.name for value in graph.input}
    held = [(t.name, t) for t in graph.initializer]
    held += [(s.values.name, s.values) for s in graph.sparse_initializer]
    # Sparse initializers name their values, which the nodes read as a dense tensor.
    for name, tensor in held:
        if name not in listed:
            value = copy.graph.input.add(name=name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
    return copy
