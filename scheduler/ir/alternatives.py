"""An ALTERNATIVES node holds one value computed in two ways; each device keeps one of them.

    alternatives(running(x), blocks(x))   ->   running(x)   or   blocks(x)

The form for a kind of device is chosen after the graph is made, so that an imported model does not
depend on the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.ir.node import Node, make
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule

# Positions among the sources: for devices whose work-items each have a core to themselves, and for
# those that run neighbouring work-items in lock step.
SERIAL, SIMT = 0, 1


def alternatives(serial: Node, simt: Node) -> Node:
    """Return a node of two forms; if they are the same node, that one."""
    if serial is simt:
        return serial
    return make(Op.ALTERNATIVES, serial.dtype, (serial, simt))


def keep_form(roots: Sequence[Node], form: int) -> dict[Node, Node]:
    """Return old node -> new node with one form, SERIAL or SIMT, in place of all alternatives."""
    return Rewriter((Rule("keep form", (Op.ALTERNATIVES,), lambda node: node.src[form]),))(roots)
