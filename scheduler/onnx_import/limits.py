"""Limits on the sizes in a model file, and safe printing of text from it.

A size beyond a limit is refused before anything is allocated. No supported device has room for a
larger tensor, so a larger size means a damaged or malicious file. Text from a file is printed as
one line of bounded length.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from scheduler.errors import ModelError

MAX_FILE_BYTES = 2**31 - 1  # protobuf's limit
MAX_TENSOR_BYTES = 2**33  # 8 GiB
MAX_RANK = 16  # axes of a tensor
MAX_DEPTH = 16  # nesting of graphs in nodes
MAX_PORTS = 4096  # inputs of a model; the same limit applies to its outputs
MAX_EXPANDED_NODES = 1_000_000  # nodes after inlining every function call
# Attribute name -> (smallest, largest) value, for attributes that count steps or elements.
COUNTS = {
    "dilations": (1, 65536),
    "kernel_shape": (1, 65536),
    "num_outputs": (1, 4096),
    "num_scan_inputs": (0, 4096),
    "output_padding": (0, 65536),
    "strides": (1, 65536),
}
MAX_FILLED_BYTES = 2**28  # a sparse weight made dense
MAX_KNOWN_BYTES = 2**31  # a value computed at import

DEFAULT_DOMAINS = ("", "ai.onnx")


def check_shape(
    shape: Sequence[int], itemsize: int, where: str, most: int = MAX_TENSOR_BYTES
) -> None:
    """Raise ModelError if a tensor has too many axes, a negative size, or too many bytes.

    Args:
        shape: sizes of the axes, as read from the file.
        itemsize: bytes per element.
        where: name of the tensor, for messages.
        most: largest allowed number of bytes.
    """
    if len(shape) > MAX_RANK:
        raise ModelError(f"{where}: {len(shape)} axes, at most {MAX_RANK} are supported")
    if any(size < 0 for size in shape):
        raise ModelError(f"{where}: shape {list(shape)} has a negative size")
    if prod(shape) * itemsize > most:
        raise ModelError(
            f"{where}: shape {list(shape)} takes {prod(shape) * itemsize:.3g} bytes, at most "
            f"{most} are supported; is the shape right?"
        )


def one_line(error: Exception, limit: int = 200) -> str:
    """Return the message of an exception from a library as one line of bounded length."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


def printable(text: str | bytes, limit: int = 60) -> str:
    """Return text from a model with control characters replaced, at most `limit` characters long.

    protobuf returns text that is not UTF-8 as bytes. Long text is cut in the middle, because node
    names often differ only at their ends.
    """
    known = text if isinstance(text, str) else text.decode(errors="replace")
    if len(known) <= limit and known.isprintable():
        return known
    if len(known) > limit:
        half = (limit - 3) // 2
        known = f"{known[:half]}...{known[-half:]}"
    return "".join(c if c.isprintable() else "?" for c in known)


def node_label(node: onnx.NodeProto) -> str:
    """Return a node's label in messages: its name, or else the name of its first output."""
    if node.name:
        return printable(node.name)
    return next((f"-> {printable(name)}" for name in node.output if name), "unnamed")


def qualified_op(node: onnx.NodeProto) -> str:
    """Return "DOMAIN:OP_TYPE", or the op type alone for the default domain."""
    op_type = printable(node.op_type)
    return op_type if node.domain in DEFAULT_DOMAINS else f"{printable(node.domain)}:{op_type}"
