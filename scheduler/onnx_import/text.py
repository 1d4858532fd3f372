"""Text from a model, made fit for a message: one line of bounded length, whatever the file says."""

from __future__ import annotations

import onnx

DEFAULT_DOMAINS = ("", "ai.onnx")


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
