"""The pass batches parallel branches that differ in weights only, over stacked weights.

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

# Branches of a batch.
MAX_MEMBERS = 64

_VIEWS = MOVES | {Op.CAST}

# Of each member what is batched, from its product upwards.
_Paths = list[list[Node]]


def batch_branches(roots: Sequence[Node], costs: Costs) -> dict[Node, Node]:
    """Return old node -> new node with small parallel branches computed as one."""
    new = unchanged(toposort(roots))
    # What was batched may make a batch of its own possible, and groups may have to wait for others.
    while (replaced := _one_round([new[r] for r in roots], costs)) is not None:
        new = {old: replaced.get(made, made) for old, made in new.items()}
    return new


def _one_round(roots: Sequence[Node], costs: Costs) -> dict[Node, Node] | None:
    """Batch all groups that have nothing to do with one taken before; None if there are none."""
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
            # It would be built from nodes of this round that no longer exist, so it waits for the
            # next.
            if paths is not None and _is_apart(paths, taken, graph):
                found.append(paths)
                taken.update(node for path in paths for node in path)
    return _replace(order, found) if found else None


def _is_apart(paths: _Paths, taken: Collection[Node], graph: Readers) -> bool:
    """Whether no path or reader of one, which a batch reads too, is in another group."""
    nodes = [node for path in paths for node in path]
    readers = (user for node in nodes for user in graph.users[node])
    return not any(node in taken for node in (*nodes, *readers))


# --- Finding ----------------------------------------------------------------------------------


def _weight_key(node: Node) -> Hashable | None:
    """Return what two weights under movement must have in common to be stacked."""
    chain, leaf = peel(node, _VIEWS)
    moves = tuple((n.op, n.arg, n.dtype) for n in chain)
    return (moves, leaf.shape, leaf.dtype) if is_weight(leaf) else None


def _operand_key(node: Node) -> Hashable:
    key = _weight_key(node)
    return node if key is None else key


def _is_small(node: Node, costs: Costs) -> bool:
    """Whether a node reduces products, so few that its launch is what it costs."""
    if node.op is not Op.REDUCE or node.src[0].op is not Op.MUL:
        return False
    few = prod(node.src[0].shape) <= costs.batch_products
    return few and prod(node.shape) <= costs.batch_outputs


def _start_key(node: Node, graph: Readers) -> Hashable | None:
    """Return what sums of products of the same data have in common; None for other sums."""
    product = node.src[0]
    weights = [_weight_key(s) is not None for s in product.src]
    # With other readers the product would be stored: it is not part of the branch alone.
    if graph.only_user(product) is None or weights[0] is weights[1]:
        return None
    return (node.arg, tuple(_operand_key(s) for s in product.src))


def _step_key(node: Node, graph: Readers, costs: Costs) -> Hashable | None:
    """Return how a branch goes on above `node`, None if it ends there."""
    user = graph.only_user(node)
    if user is None or user.src.count(node) > 1:
        # The batch would stand at two operands of x * x; that is not followed.
        return None
    if user.op is Op.REDUCE:
        return (user.op, user.arg) if _is_small(user, costs) else None
    if user.op in MOVES:
        return (user.op, user.arg)
    if user.op not in ELEMENTWISE:
        return None
    # Other operands must be the same node, or weights that can be stacked: their place matters too.
    operands = tuple(None if s is node else _operand_key(s) for s in user.src)
    return (user.op, user.dtype, operands)


def _grow(members: list[Node], graph: Readers, costs: Costs) -> _Paths | None:
    """Return the batched path of each member: upwards along the most frequent arithmetic."""
    paths = [[m.src[0], m] for m in members]
    while True:
        ways: dict[Hashable, list[list[Node]]] = {}
        for path in paths:
            ways.setdefault(_step_key(path[-1], graph, costs), []).append(path)
        if len(ways) > 1 and any(_is_arithmetic(key) for key in ways):
            paths = max(ways.values(), key=len)
            if len(paths) == 1:
                return None
            continue
        # Here all ways are movement or an end, so members part for good or are done.
        if len(ways) > 1 or None in ways:
            break
        for path in paths:
            path.append(graph.users[path[-1]][0])
    # Trailing movement stays outside of the batch: it would force a stored order on all members.
    end = max(i for i, n in enumerate(paths[0]) if _may_end(n, graph, costs))
    return [path[: end + 1] for path in paths]


def _may_end(node: Node, graph: Readers, costs: Costs) -> bool:
    """Whether a result may be stored: small, computed, and not the product below a sum."""
    user = graph.only_user(node)
    summed = node.op is Op.MUL and user is not None and user.op is Op.REDUCE
    return node.op not in MOVES and not summed and prod(node.shape) <= costs.batch_outputs


def _is_arithmetic(key: Hashable) -> bool:
    return isinstance(key, tuple) and key[0] in ELEMENTWISE


# --- Building ---------------------------------------------------------------------------------


def _replace(order: Sequence[Node], groups: Sequence[_Paths]) -> dict[Node, Node]:
    """Return the graph with the ends of each group's paths taken from one batched path."""
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
        for path in groups[group]:  # nobody else reads the steps before its end
            new.update(zip(path[:-1], values[:-1], strict=True))
    return new


def _member(node: Node, batched: Node, index: int) -> Node:
    rest = tuple((0, s, 1) for s in node.shape)
    part = like(node, Op.SHRINK, (batched,), ((index, index + 1, 1), *rest))
    return like(node, Op.RESHAPE, (part,), node.shape)


def _batched(paths: _Paths, new: dict[Node, Node]) -> list[Node]:
    """Return the steps of all paths at once."""
    values: list[Node] = []
    below: Node | None = None  # the first member's step before
    for steps in zip(*paths, strict=True):
        first = steps[0]
        src: list[Node] = []
        for operands in zip(*(s.src for s in steps), strict=True):
            # The step before is batched already; its members are different nodes of the same place.
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
    """Return the argument of a node for one more axis in front."""
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
    """Return weights stacked on the host, under the movement that they have in common."""
    leaves = [peel(operand, _VIEWS)[1] for operand in operands]
    data = np.stack([leaf.arg.data.reshape(leaf.shape) for leaf in leaves])
    result = new_weight(data, leaves[0].dtype)
    for move in reversed(peel(operands[0], _VIEWS)[0]):
        result = like(move, move.op, (result,), _lifted(move, len(operands)))
    return result


def _shared(node: Node, count: int) -> Node:
    """Return what all members read, repeated; below an expansion, so that movement merges."""
    below = node.src[0] if node.op is Op.EXPAND else node
    return expanded(reshaped(below, (1, *below.shape)), (count, *node.shape))
