"""The reading of an ONNX file: protobuf, external data, checks, old opsets, constants as arrays."""

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

# --- Recognition of files that are no ONNX models, by their first bytes. Used by `load` only --
# No ONNX file begins like these: a model begins with the tag of one of its fields, and none of them
# is a printable character.

# (offset, bytes there, what such a file is, what to do).
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
    """Return what a file looks like and what to do about it; "" where it may be an ONNX model."""
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


# --- The conversion of models of opset 1 to 6, written before 2018, to a newer opset, by onnx -

# The oldest that translators know: the first with numpy's broadcasting, without `broadcast=1`.
OLDEST_OPSET = 7
# An opset that the converter reaches from all old ones.
TARGET_OPSET = 13


def upgraded(model: onnx.ModelProto, opset: int, name: str) -> tuple[onnx.ModelProto, str]:
    """Return a model in an opset that translators know, and a note, or raise ModelError."""
    listed = {value.name for value in model.graph.input}
    unlisted = [t for t in model.graph.initializer if t.name not in listed]
    # The converter knows initializers among the inputs only, as in files of that time.
    model.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in unlisted
    )
    try:
        made = version_converter.convert_version(model, TARGET_OPSET)
    except Exception as error:  # what the converter raises is documented nowhere
        reason = one_line(error).rpartition("failed: ")[2]  # after a place in its source
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
    """A checked ONNX model."""

    # The model, nodes in order; not to be changed. Tensors of attributes and of inner graphs hold
    # their data; initializers of the graph are in `constants`, those from other files only there.
    proto: onnx.ModelProto
    name: str  # file name (or graph name) for messages
    opset: int  # version of the default operator domain
    sha256: str  # hex digest of the file, "" for a model that did not come from one
    constants: dict[str, NDArray[Any]]  # by name, not to be changed; sparse ones are dense
    notes: tuple[str, ...] = ()  # what was changed in reading it, one sentence each
    path: Path | None = None  # of the file; None for a model that did not come from one

    @property
    def metadata_props(self) -> dict[str, str]:
        """The model's free-form metadata."""
        return {prop.key: prop.value for prop in self.proto.metadata_props}

    @property
    def inputs(self) -> list[onnx.ValueInfoProto]:
        """Graph inputs that must be given: those without an initializer."""
        return [value for value in self.proto.graph.input if value.name not in self.constants]


def load_model(path: str | Path) -> OnnxModel:
    """Read and check an ONNX file; external data is looked for in its directory only.

    Raises ModelError if the file is missing, is no ONNX model, or breaks a rule of the format.
    """
    path = Path(path)
    where = printable(str(path), 120)
    data = _read(path, where)
    # An LFS pointer or an archive is reported before protobuf fails on it.
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
    """Check a model that is already in memory; it must not refer to external data.

    The proto is not changed; without a `name` messages have the graph's own. Raises ModelError if
    the model breaks a rule of the format.
    """
    model = onnx.ModelProto()
    # Checks put data into tensors and may upgrade the model.
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
    # Later messages quote names.
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
    # The checker would serialize constants.
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
    # The checker stops at the first unknown operator; the importer names them all. It also refuses
    # what a later opset replaced: GroupNormalization of opset 18, which exporters wrote.
    if any(
        n.domain in DEFAULT_DOMAINS and not _is_current(n.op_type, opset) for n in all_nodes(model)
    ):
        return
    try:
        onnx.checker.check_model(_without_data(model))
    # The message of a checker that quotes names that are not UTF-8 cannot be decoded.
    except (onnx.checker.ValidationError, UnicodeDecodeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: not a valid ONNX model: {one_line(error)}") from error


def _is_current(op_type: str, opset: int) -> bool:
    return (
        onnx.defs.has(op_type, opset, "")
        and not onnx.defs.get_schema(op_type, opset, "").deprecated
    )


def _without_data(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy for the checker, which would serialize initializers: they are inputs."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = model.graph
    # Many exporters leave the name of the graph empty, which ONNX forbids.
    copy.graph.name = graph.name or "graph"
    copy.graph.node.extend(graph.node)
    copy.graph.input.extend(graph.input)
    # Many files leave the types of outputs out, which the checker refuses.
    for output in graph.output:
        value = copy.graph.output.add(name=output.name)
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        value.type.tensor_type.shape.SetInParent()
    listed = {value.name for value in graph.input}
    held = [(t.name, t) for t in graph.initializer]
    held += [(s.values.name, s.values) for s in graph.sparse_initializer]
    # Nodes read a sparse initializer's values by name.
    for name, tensor in held:
        if name not in listed:
            value = copy.graph.input.add(name=name)
            value.type.tensor_type.elem_type = tensor.data_type
            value.type.tensor_type.shape.SetInParent()
    return copy
