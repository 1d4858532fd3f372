"""Reading an ONNX file: protobuf, external data, onnx's own checker, constants as arrays.

The only way into this package for bytes we did not write. Called by `importer` and `inspect`.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import (
    DecodeError,
)
from numpy.typing import NDArray
from onnx import numpy_helper

from scheduler.errors import ModelError
from scheduler.onnx_import.external import read_external_data

logger = logging.getLogger(__name__)

OLDEST_OPSET = 7
DEFAULT_DOMAINS = ("", "ai.onnx")
# protobuf cannot serialize more, and the checker serializes.
CHECKER_LIMIT_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A checked ONNX model.

    Attributes:
        proto: the model with all tensor data inside; not to be changed.
        name: file name (or graph name) for messages.
        opset: version of the default operator domain.
        sha256: hex digest of the file, "" for a model that did not come from one.
        constants: initializers by name.
    """

    proto: onnx.ModelProto
    name: str
    opset: int
    sha256: str
    constants: dict[str, NDArray[Any]]

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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from error
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelError(
            f"{path}: expected an ONNX model, found {len(data)} bytes that are no valid protobuf; "
            "is the file complete?"
        ) from error
    return _check(model, path.name, path.parent, hashlib.sha256(data).hexdigest())


def from_proto(proto: onnx.ModelProto, name: str = "") -> OnnxModel:
    """Check a model that is already in memory.

    Args:
        proto: the model; not changed. It must not refer to external data.
        name: for messages; the graph's own name by default.

    Raises:
        ModelError: the model breaks a rule of the format.
    """
    return _check(proto, name or proto.graph.name or "model", None, "")


def _check(model: onnx.ModelProto, name: str, directory: Path | None, sha256: str) -> OnnxModel:
    if not model.HasField("graph") or not model.ir_version:
        raise ModelError(f"{name}: expected an ONNX model, found no graph in it")
    _check_names(model, name)
    opset = _opset(model, name)
    read_external_data(model, directory, name)
    if model.graph.sparse_initializer:
        raise ModelError(
            f"{name}: sparse initializers are not supported "
            f'("{model.graph.sparse_initializer[0].values.name}"); export dense weights'
        )
    _run_checker(model, name, opset)
    constants = {}
    for tensor in model.graph.initializer:
        try:
            constants[tensor.name] = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError) as error:
            raise ModelError(
                f'{name}: initializer "{tensor.name}" is damaged: {one_line(error)}'
            ) from error
    return OnnxModel(model, name, opset, sha256, constants)


def _check_names(model: onnx.ModelProto, name: str) -> None:
    # protobuf gives text that is not UTF-8 as bytes, which everything later would stumble over.
    graph = model.graph
    texts = [o.domain for o in model.opset_import] + [t.name for t in graph.initializer]
    texts += [value.name for value in (*graph.input, *graph.output)]
    for node in graph.node:
        texts += (node.name, node.op_type, node.domain, *node.input, *node.output)
        texts += (attribute.name for attribute in node.attribute)
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(f"{name}: a name in it is not UTF-8 text; is the file complete?")


def _opset(model: onnx.ModelProto, name: str) -> int:
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if len(versions) != 1:
        raise ModelError(f"{name}: expected one opset of the default domain, found {versions}")
    if not OLDEST_OPSET <= versions[0] <= newest:
        raise ModelError(
            f"{name}: expected opset {OLDEST_OPSET} to {newest}, found {versions[0]}; "
            "export it again with another opset_version"
        )
    return int(versions[0])


def _run_checker(model: onnx.ModelProto, name: str, opset: int) -> None:
    # The checker stops at the first operator it does not know; the importer names them all.
    unknown = any(
        node.domain in DEFAULT_DOMAINS and not onnx.defs.has(node.op_type, opset, "")
        for node in model.graph.node
    )
    if unknown:
        return
    if model.ByteSize() > CHECKER_LIMIT_BYTES:
        logger.warning("%s: more than 2 GiB, not checked by onnx.checker", name)
        return
    try:
        onnx.checker.check_model(model)
    # The checker quotes names from inside; where they are not UTF-8, its message cannot be decoded.
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{name}: not a valid ONNX model: {one_line(error)}") from error


def one_line(error: Exception, limit: int = 300) -> str:
    """Return the text of a foreign exception in one line of bounded length."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


def printable(text: str, limit: int = 100) -> str:
    """Return text from a model fit for a message: no control characters, of bounded length."""
    safe = "".join(c if c.isprintable() else "?" for c in text)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."
