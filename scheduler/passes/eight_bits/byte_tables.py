"""The pass looks long functions of one byte up in a table.

    q(gelu(q(erf(dq(b)))))    b byte, the result too    ->    table[b]    256 bytes, computed here

Short chains stay: lanes look a table up one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, new_weight, spread
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Node, const, consumers, make, toposort
from scheduler.ir.ops import COST, ELEMENTWISE, Op
from scheduler.ir.rewrite import remake, unchanged, with_sources
from scheduler.passes.splat import value_of

_BYTES = (dt.uint8, dt.int8)


def byte_tables(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with long functions of one byte as lookups."""
    order = toposort(roots)
    new = unchanged(order)
    if spec.is_simt or not any(n.dtype in _BYTES for n in order):
        return new
    origin = _origins(order)
    inside = _inside(order, origin, roots)
    for node in order:
        new[node] = with_sources(node, new)
        start = origin.get(node)
        if node.dtype in _BYTES and start is not None and node not in inside:
            chain = _between(start, node)
            # It has to save as much as it takes.
            if sum(COST.get(n.op, 1) for n in chain) > 2 * spec.costs.lookup:
                new[node] = _lookup(start, chain, new[start])
    return new


def _origins(order: Sequence[Node]) -> dict[Node, Node]:
    """Return the byte tensor that each node is an elementwise function of, if there is one.

    Bytes computed from others are no beginning: the function may go on through them.
    """
    found: dict[Node, Node] = {}
    for node in order:
        if node.op not in ELEMENTWISE:
            continue
        starts = {found.get(s, s if s.dtype in _BYTES else None) for s in _varying(node)}
        if len(starts) == 1:
            (start,) = starts
            if start is not None and start.shape == node.shape:
                found[node] = start
    return found


def _inside(order: Sequence[Node], origin: dict[Node, Node], roots: Sequence[Node]) -> set[Node]:
    """Return the nodes that only lead to later bytes of the same function."""
    users = consumers(order)
    ends, inside = {*roots}, set[Node]()
    for node in reversed(order):
        start = origin.get(node)
        if start is not None and node not in ends and users[node]:
            leads = (
                u.dtype in _BYTES or u in inside for u in users[node] if origin.get(u) is start
            )
            if sum(leads) == len(users[node]):
                inside.add(node)
    return inside


def _varying(node: Node) -> list[Node]:
    return [s for s in node.src if value_of(s) is None]


def _between(start: Node, end: Node) -> list[Node]:
    """Return what lies between two nodes, sources first, with the end."""
    chain: list[Node] = []
    done = {start}
    stack = [end]
    while stack:
        node = stack[-1]
        missing = [s for s in _varying(node) if s not in done]
        if missing and node not in done:
            stack += missing
            continue
        stack.pop()
        if node not in done:
            done.add(node)
            chain.append(node)
    return chain


def _lookup(start: Node, chain: Sequence[Node], at: Node) -> Node:
    """Return the last node of a chain (see `_between`) as a lookup at the new form of its start."""
    every = np.arange(256, dtype=np.uint8).view(start.dtype.np)
    of: dict[Node, Node] = {start: new_weight(every, start.dtype)}
    for node in chain:
        src = tuple(of[s] if s in of else _repeated(s) for s in node.src)
        of[node] = remake(node, src)
    with np.errstate(all="ignore"):
        (table,) = evaluate([of[chain[-1]]])
    index = at if at.dtype is dt.uint8 else make(Op.BITCAST, dt.uint8, (at,))
    rows = new_weight(np.asarray(table), chain[-1].dtype)
    return make(Op.GATHER, chain[-1].dtype, (rows, as_type(index, dt.int32)), 0)


def _repeated(node: Node) -> Node:
    """Return a tensor of one value with an element for each byte."""
    value = value_of(node)
    assert value is not None  # it does not vary
    return spread(const(value, node.dtype), (256,))
