"""Loads an ONNX file or ModelProto into a checked `OnnxModel`.

Loading parses the protobuf, checks the graphs, converts models with an old opset, maps external
data, and reads the initializers into arrays. A file in another format is recognized by its first
bytes, for a helpful error message.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import helper, version_converter

from scheduler.errors import ModelError
from scheduler.onnx_import.files.graph_checks import all_nodes, check_graphs, check_text
from scheduler.onnx_import.files.tensor_data import (
    ExternalData,
    check_tensor,
    forget,
    graph_constants,
    inner_tensors,
    is_external,
)
from scheduler.onnx_import.limits import DEFAULT_DOMAINS, MAX_FILE_BYTES, one_line, printable

# --- Recognition of other file formats by their first bytes -----------------------------------
# An ONNX file never begins with these bytes: it begins with a field tag, and no field tag of
# ModelProto is a printable character.

# (offset, bytes at the offset, description of such a file, advice).
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (4, b"TFL3", "a TensorFlow Lite model", "convert it with tf2onnx"),
    (4, b"ORTM", "a model in ORT format", "give the .onnx file it was made from"),
    (0, b"version https://git-lfs", "a git-LFS pointer, not the file itself", "run `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive (a PyTorch checkpoint, an .npz)", "unpack or export it"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
    (0, b"BZh", "a bzip2 archive", "unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it"),
    (0, b"\xfd7zXZ", "an xz archive", "unpack it"),
    (0, b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (0, b"\x89HDF", "an HDF5 file (Keras)", "convert it with tf2onnx"),
    (0, b"GGUF", "a GGUF model", "export it to ONNX"),
    (0, b"\x93NUMPY", "a numpy array", "give the model instead"),
    (0, b"\x7fELF", "a program", "give the model instead"),
    (0, b"%PDF", "a PDF document", "give the model instead"),
    (0, b"\x89PNG", "a picture", "give the model instead"),
)
_SAFETENSORS = re.compile(rb'.{8}\s*\{\s*"', re.DOTALL)
_PICKLE = re.compile(rb"\x80[\x02-\x05][}\]\x8a\x95c(]")
_HTML = re.compile(rb"\s*(<!doctype html|<html|<\?xml|<head)", re.IGNORECASE)
_JSON = re.compile(rb"\s*\{")
_TEXT_FORMAT = re.compile(
    rb"\s*(#[^\n]*\n\s*)*(ir_version|graph|opset_import|producer_name)\s*[:{]"
)
_ONNX_TEXT = re.compile(rb"\s*<\s*\n?\s*ir_version")


def unlike_onnx(data: bytes) -> str:
    """Return what a file is, with advice, if it is not an ONNX model; "" if it can be one."""
    start = data[:4096]
    if not start:
        return "an empty file; was the download interrupted?"
    if not any(start):
        return "a file of zeros; copy it again"
    for offset, magic, what, advice in _MAGIC:
        if start[offset : offset + len(magic)] == magic:
            return f"{what}; {advice}"
    for pattern, what in (
        (_HTML, "a web page; was the download redirected to a login or an error page?"),
        (_TEXT_FORMAT, "a model in protobuf's text format; save it as binary protobuf"),
        (_ONNX_TEXT, "a model in ONNX's text syntax; save it as binary protobuf"),
        (_PICKLE, "a pickle (a PyTorch checkpoint, a compiled artifact); export it to ONNX"),
        (_SAFETENSORS, "a safetensors file: weights without a graph; export the model to ONNX"),
        (_JSON, "JSON text; save the model as binary protobuf"),
    ):
        if pattern.match(start):
            return what
    return ""


# --- Conversion of models with opset 1 to 6 (written before 2018) by onnx's converter ---------

# The oldest opset that translators support: the first with numpy broadcasting.
OLDEST_OPSET = 7
# The opset after conversion; onnx can convert from every old opset to it.
TARGET_OPSET = 13


def upgraded(model: onnx.ModelProto, opset: int, name: str) -> tuple[onnx.ModelProto, str]:
    """Return model `name` converted to TARGET_OPSET, and a note about it, or raise ModelError."""
    listed = {value.name for value in model.graph.input}
    unlisted = [t for t in model.graph.initializer if t.name not in listed]
    # The converter finds initializers only if they are also inputs, as in old files.
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in unlisted
    )
    try:
        made = version_converter.convert_version(model, TARGET_OPSET)
    except Exception as error:  # the converter's exceptions are not documented
        reason = one_line(error).rpartition("failed: ")[2]  # without the converter's source line
        raise ModelError(
            f"{name}: opset {opset} is older than {OLDEST_OPSET}, and onnx cannot convert it: "
            f"{reason}; export it again with a newer opset_version"
        ) from error
    kept = [v for v in made.graph.input if v.name not in {t.name for t in unlisted}]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)
    return made, f"converted from opset {opset} to {TARGET_OPSET} by onnx"


logger = logging.getLogger(__name__)

OLDEST_IR_VERSION = 3  # the first with operator sets


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked ONNX model. Neither the model nor its arrays must be changed."""

    # The model with sorted nodes. Tensors in attributes and inner graphs contain their data. The
    # top graph's external initializers do not: their data is in `constants` only.
    proto: onnx.ModelProto
    name: str  # file name (or graph name) for messages
    opset: int  # version of the default operator domain
    sha256: str  # hex digest of the file, "" if the model was in memory
    constants: dict[str, NDArray[Any]]  # the top graph's initializers by name, all dense
    notes: tuple[str, ...] = ()  # changes made while loading, one sentence each
    path: Path | None = None  # path of the file, None if the model was in memory

    @property
    def metadata_props(self) -> dict[str, str]:
        """The model's free-form metadata."""
        return {prop.key: prop.value for prop in self.proto.metadata_props}

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """The required inputs: graph inputs without an initializer."""
        return [value for value in self.proto.graph.input if value.name not in self.constants]


def load_model(path: str | Path) -> OnnxModel:
    """Read and check an ONNX file; external data must be inside its directory.

    Raises ModelError if the file is missing, is not an ONNX model, or breaks a rule of the format.
    """
    path = Path(path)
    where = printable(str(path), 120)
    data = _read(path, where)
    # Report an LFS pointer or an archive before protobuf fails on it.
    found = unlike_onnx(data)
    if found:
        raise ModelError(f"{where}: expected an ONNX model, found {found}")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{where}: expected an ONNX model, found {len(data)} bytes of invalid protobuf; "
            "is the file complete?"
        ) from error
    external = ExternalData(path.parent, printable(path.name))
    checked = _check(model, path.name, external, hashlib.sha256(data).hexdigest())
    return replace(checked, path=path)


def from_proto(proto: onnx.ModelProto, name: str = "") -> OnnxModel:
    """Check a model that is already in memory; it must not refer to external data.

    The proto is not changed. `name` is for messages; the default is the graph's name. Raises
    ModelError if the model breaks a rule of the format.
    """
    model = onnx.ModelProto()
    # Loading modifies the model: it sorts nodes and can convert the opset.
    model.CopyFrom(proto)
    title = name or printable(proto.graph.name) or "model"
    return _check(model, title, ExternalData(None, printable(title)), "")


def _read(path: Path, where: str) -> bytes:
    try:
        # Do not block on a pipe. A device would be read forever, so only plain files are read.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{where}: expected an ONNX model, found no regular file")
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
    """Check a model, modifying it in place, and read its constants."""
    name = printable(name)
    if not model.HasField("graph"):
        raise ModelError(f"{name}: expected an ONNX model, found no graph in it")
    if not OLDEST_IR_VERSION <= model.ir_version <= onnx.IR_VERSION:
        found = model.ir_version or "none"
        raise ModelError(
            f"{name}: expected an ONNX model of IR version {OLDEST_IR_VERSION} to "
            f"{onnx.IR_VERSION}, found {found}; save it with another version of onnx"
        )
    # This check is first because later messages quote names.
    check_text(model, name)
    opset = _opset(model, name)
    notes = check_graphs(model, name)
    for tensor in inner_tensors(model):
        if is_external(tensor):
            external.read_into(tensor)
        check_tensor(tensor, f'{name}: tensor "{printable(tensor.name)}"')
    old = opset < OLDEST_OPSET
    if old:  # the converter needs all data inside the model
        for tensor in filter(is_external, model.graph.initializer):
            external.read_into(tensor)
    constants = _constants(model.graph, name, external)
    _run_checker(model, name, opset)
    if old:
        model, note = upgraded(model, opset, name)
        opset, notes = TARGET_OPSET, [*notes, note]
        # Conversion can change initializers or add some.
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
        # Elements smaller than a byte are packed and cannot be mapped as an array.
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
    # The default domain's opset is optional if all nodes are of other domains; any value will do.
    if not versions and not any(n.domain in DEFAULT_DOMAINS for n in model.graph.node):
        return newest
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
    # Skip onnx's checker if a node is of an unknown or deprecated operator. The checker stops at
    # the first unknown one; the importer lists them all. The checker also refuses deprecated
    # operators that exporters did write, such as GroupNormalization of opset 18.
    if any(
        n.domain in DEFAULT_DOMAINS and not _is_current(n.op_type, opset) for n in all_nodes(model)
    ):
        return
    try:
        onnx.checker.check_model(_without_data(model))
    # UnicodeDecodeError: the checker's message quotes a name that is not UTF-8.
    except (onnx.checker.ValidationError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: not a valid ONNX model: {one_line(error)}") from error


def _is_current(op_type: str, opset: int) -> bool:
    return (
        onnx.defs.has(op_type, opset, "")
        and not onnx.defs.get_schema(op_type, opset, "").deprecated
    )


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which initializers are inputs; the checker would serialize their data."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = model.graph
    # ONNX requires a graph name, but many exporters leave it empty.
    copy.graph.name = graph.name or "graph"
    copy.graph.node.extend(graph.node)
    copy.graph.input.extend(graph.input)
    # ONNX requires types of outputs, but many files leave them out.
    for output in graph.output:
        value = copy.graph.output.add(name=output.name)
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    listed = {value.name for value in graph.input}
    held = [(t.name, t) for t in graph.initializer]
    held += [(s.values.name, s.values) for s in graph.sparse_initializer]
    # A sparse initializer has the name of its values.
    for name, tensor in held:
        if name not in listed:
            value = copy.graph.input.add(name=name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
    return copy
