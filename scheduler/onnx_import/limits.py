"""What a model may bring: sizes within limits, and text that is made fit for a message.

A larger model is refused before anything is allocated for it. No supported device has room for
more, so a larger size is damage or malice. Text becomes one line of bounded length, whatever the
file says.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from scheduler.errors import ModelError

MAX_FILE_BYTES = 2**31 - 1  # protobuf reads no more
MAX_TENSOR_BYTES = 2**33  # 8 GiB
MAX_RANK = 16  # axes of a tensor
MAX_DEPTH = 16  # graphs inside of nodes
MAX_PORTS = 4096  # inputs, and outputs, of a model
MAX_EXPANDED_NODES = 1_000_000  # with every call of a function written out
# Least and most of attributes that count steps or elements.
COUNTS = {
    "dilations": (1, 65536),
    "kernel_shape": (1, 65536),
    "num_outputs": (1, 4096),
    "num_scan_inputs": (0, 4096),
    "output_padding": (0, 65536),
    "strides": (1, 65536),
}
# Values that are filled in here rather than read: a sparse weight made dense.
MAX_FILLED_BYTES = 2**28
# Values that are computed while importing.
MAX_KNOWN_BYTES = 2**31

DEFAULT_DOMAINS = ("", "ai.onnx")


def check_shape(
    shape: Sequence[int], itemsize: int, where: str, most: int = MAX_TENSOR_BYTES
) -> None:
    """Refuse a tensor whose size is no size, or more than `most` bytes.

    Sizes of axes may have any magnitude; `itemsize` is bytes. Raises ModelError if a size is
    negative, there are too many axes, or too many bytes.
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
    """Return the text of a foreign exception in one line of bounded length."""
    return printable(" ".join(str(error).split()) or type(error).__name__, limit)


def printable(text: str | bytes, limit: int = 60) -> str:
    """Return text from a model without control characters, of bounded length.

    protobuf gives text that is not UTF-8 as bytes. Long text loses its middle: paths of nodes
    differ at their ends.
    """
    known = text if isinstance(text, str) else text.decode(errors="replace")
    if len(known) <= limit and known.isprintable():
        return known
    if len(known) > limit:
        half = (limit - 3) // 2
        known = f"{known[:half]}...{known[-half:]}"
    return "".join(c if c.isprintable() else "?" for c in known)


def node_label(node: onnx.NodeProto) -> str:
    """Return what to call a node: its name, or the name of its first output."""
    if node.name:
        return printable(node.name)
    return next((f"-> {printable(name)}" for name in node.output if name), "unnamed")


def qualified_op(node: onnx.NodeProto) -> str:
    """Return the op type, after its domain where that is not the default one."""
    op_type = printable(node.op_type)
    return op_type if node.domain in DEFAULT_DOMAINS else f"{printable(node.domain)}:{op_type}"
