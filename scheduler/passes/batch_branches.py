"""Batches parallel branches of small products that differ only in their weights.

The weights are stacked on the host, and one branch with an additional leading axis replaces them:

relu(x @ w0 + b0)                               w = stack(w0, w1), b = stack(b0, b1)
relu(x @ w1 + b1)     ->     y = relu(expand(x) @ w + b)
                             y[0], y[1]
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from math import prod

import numpy as np

from scheduler.device.costs import Costs
from scheduler.ir.build import expanded, like, new_weight, peel, reshaped
from scheduler.ir.movement import MOVES
from scheduler.ir.node import Node, Readers, is_weight, make, toposort
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.rewrite import unchanged, with_sources

# The maximum number of branches in one batch.
MAX_MEMBERS = 64

_VIEWS = MOVES | {Op.CAST}

# A member is one branch of a batch: the nodes from its product towards the result. A group is the
# members of one batch, and each path holds the batched nodes of one member.
_Paths = list[list[Node]]


def batch_branches(roots: Sequence[Node], costs: Costs) -> dict[Node, Node]:
    """Return old node -> new node with small parallel branches computed as one batch."""
    new = unchanged(toposort(roots))
    # A batch can enable further batches, and some groups have to wait for others.
    while (replaced := _one_round([new[r] for r in roots], costs)) is not None:
        new = {old: replaced.get(made, made) for old, made in new.items()}
    return new


def _one_round(roots: Sequence[Node], costs: Costs) -> dict[Node, Node] | None:
    """Batch all groups that are independent of each other; return None if there are none."""
    order = toposort(roots)
    candidates = [n for n in order if _is_small(n, costs)]
    if len(candidates) < 2:
        return None
    graph = Readers.of(order, roots)
    groups: dict[Hashable, list[Node]] = {}
    for node in candidates:
        if (key := _start_key(node, graph)) is not None:
            groups.setdefault(key, []).append(node)
    found: list[_Paths] = []
    taken: set[Node] = set()
    for members in groups.values():
        if len(members) > 1:
            paths = _grow(members[:MAX_MEMBERS], graph, costs)
            # A group that depends on another is built from nodes that this round replaces, so it
            # waits for the next round.
            if paths is not None and _is_apart(paths, taken, graph):
                found.append(paths)
                taken.update(node for path in paths for node in path)
    return _replace(order, found) if found else None


def _is_apart(paths: _Paths, taken: Collection[Node], graph: Readers) -> bool:
    """Whether no node of a path, nor any of its readers, belongs to another group."""
    nodes = [node for path in paths for node in path]
    readers = (user for node in nodes for user in graph.users[node])
    return not any(node in taken for node in (*nodes, *readers))


# --- Finding ----------------------------------------------------------------------------------


def _weight_key(node: Node) -> Hashable | None:
    """Return a key that is equal for weights that can be stacked; None for other nodes."""
    chain, leaf = peel(node, _VIEWS)
    moves = tuple((n.op, n.arg, n.dtype) for n in chain)
    return (moves, leaf.shape, leaf.dtype) if is_weight(leaf) else None


def _operand_key(node: Node) -> Hashable:
    key = _weight_key(node)
    return node if key is None else key


def _is_small(node: Node, costs: Costs) -> bool:
    """Whether a node is a sum of products so small that its launch dominates the cost."""
    if node.op is not Op.REDUCE or node.src[0].op is not Op.MUL:
        return False
    few = prod(node.src[0].shape) <= costs.batch_products
    return few and prod(node.shape) <= costs.batch_outputs


def _start_key(node: Node, graph: Readers) -> Hashable | None:
    """Return a key that is equal for sums of products of the same data; None for other sums."""
    product = node.src[0]
    weights = [_weight_key(s) is not None for s in product.src]
    # A product with other readers would be stored, so it is not part of one branch.
    if graph.only_user(product) is None or weights[0] is weights[1]:
        return None
    return (node.arg, tuple(_operand_key(s) for s in product.src))


def _step_key(node: Node, graph: Readers, costs: Costs) -> Hashable | None:
    """Return a key of the next step above `node` in its branch, or None if the branch ends."""
    user = graph.only_user(node)
    if user is None or user.src.count(node) > 1:
        # In x * x both operands would be the batched node; this is not supported.
        return None
    if user.op is Op.REDUCE:
        return (user.op, user.arg) if _is_small(user, costs) else None
    if user.op in MOVES:
        return (user.op, user.arg)
    if user.op not in ELEMENTWISE:
        return None
    # Other operands must be the same node, or weights that can be stacked, in the same position.
    operands = tuple(None if s is node else _operand_key(s) for s in user.src)
    return (user.op, user.dtype, operands)


def _grow(members: list[Node], graph: Readers, costs: Costs) -> _Paths | None:
    """Return the batched path of each member, or None if fewer than two members stay alike.

    Adds equal steps to all paths. If members differ in arithmetic, only the largest set of equal
    ones continues.
    """
    paths = [[m.src[0], m] for m in members]
    while True:
        continuations: dict[Hashable, list[list[Node]]] = {}
        for path in paths:
            continuations.setdefault(_step_key(path[-1], graph, costs), []).append(path)
        if len(continuations) > 1 and any(_is_arithmetic(key) for key in continuations):
            paths = max(continuations.values(), key=len)
            if len(paths) == 1:
                return None
            continue
        # Only movement or an end is left, so the members diverge or are complete.
        if len(continuations) > 1 or None in continuations:
            break
        for path in paths:
            path.append(graph.users[path[-1]][0])
    # Trailing movement stays outside the batch: it would force a stored order on all members.
    end = max(i for i, n in enumerate(paths[0]) if _may_end(n, graph, costs))
    return [path[: end + 1] for path in paths]


def _may_end(node: Node, graph: Readers, costs: Costs) -> bool:
    """Whether a result can be stored: small, computed, and not the product below a sum."""
    user = graph.only_user(node)
    summed = node.op is Op.MUL and user is not None and user.op is Op.REDUCE
    return node.op not in MOVES and not summed and prod(node.shape) <= costs.batch_outputs


def _is_arithmetic(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] in ELEMENTWISE


# --- Building ---------------------------------------------------------------------------------


def _replace(order: Sequence[Node], groups: Sequence[_Paths]) -> dict[Node, Node]:
    """Return old node -> new node, with the ends of each group's paths read from its batch."""
    ends = {path[-1]: (g, i) for g, paths in enumerate(groups) for i, path in enumerate(paths)}
    new: dict[Node, Node] = {}
    batched: dict[int, list[Node]] = {}
    for node in order:
        if node in ends:
            group, member = ends[node]
            if group not in batched:
                batched[group] = _batched(groups[group], new)
            new[node] = _member(node, batched[group][-1], member)
        else:
            new[node] = with_sources(node, new)
    for group, values in batched.items():
        for path in groups[group]:  # steps before the end have no other readers
            new.update(zip(path[:-1], values[:-1], strict=True))
    return new


def _member(node: Node, batched: Node, index: int) -> Node:
    rest = tuple((0, s, 1) for s in node.shape)
    part = like(node, Op.SHRINK, (batched,), ((index, index + 1, 1), *rest))
    return like(node, Op.RESHAPE, (part,), node.shape)


def _batched(paths: _Paths, new: dict[Node, Node]) -> list[Node]:
    """Return the batched form of each step of the paths."""
    values: list[Node] = []
    below: Node | None = None  # the first member's previous step
    for steps in zip(*paths, strict=True):
        first = steps[0]
        src: list[Node] = []
        for operands in zip(*(s.src for s in steps), strict=True):
            # The previous step is already batched; each member has its own node in this position.
            if values and operands[0] is below:
                src.append(values[-1])
            elif _weight_key(operands[0]) is not None and len(set(operands)) > 1:
                src.append(_stack(operands))
            else:
                src.append(_shared(new[operands[0]], len(paths)))
        values.append(make(first.op, first.dtype, tuple(src), _lifted(first, len(paths))))
        below = first
    return values


def _lifted(node: Node, count: int) -> object:
    """Return the argument of a node after adding a leading axis of size `count`."""
    op, arg = node.op, node.arg
    if op is Op.REDUCE:
        return (arg[0], tuple(a + 1 for a in arg[1]))
    if op in (Op.RESHAPE, Op.EXPAND):
        return (count, *arg)
    if op is Op.PERMUTE:
        return (0, *(a + 1 for a in arg))
    if op is Op.FLIP:
        return tuple(a + 1 for a in arg)
    if op is Op.SHRINK:
        return ((0, count, 1), *arg)
    if op is Op.PAD:
        return (((0, 0), *arg[0]), arg[1])
    if op is Op.WINDOW:
        return (arg[0] + 1, *arg[1:])
    return arg


def _stack(operands: Sequence[Node]) -> Node:
    """Return weights stacked on the host, below the movement that they share."""
    leaves = [peel(operand, _VIEWS)[1] for operand in operands]
    data = np.stack([leaf.arg.data.reshape(leaf.shape) for leaf in leaves])
    result = new_weight(data, leaves[0].dtype)
    for move in reversed(peel(operands[0], _VIEWS)[0]):
        result = like(move, move.op, (result,), _lifted(move, len(operands)))
    return result


def _shared(node: Node, count: int) -> Node:
    """Return a node that all members read, repeated along a new axis below its expansion."""
    below = node.src[0] if node.op is Op.EXPAND else node
    return expanded(reshaped(below, (1, *below.shape)), (count, *node.shape))
