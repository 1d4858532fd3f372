"""The order kernels run in: producers first, states written last, as few bytes alive as possible.

    q read by f; q' = g(x) written to q      ->      f waits for nobody, g waits for f
    two branches that end in a small result  ->      one branch to its end, then the other

The deterministic order with the lowest estimated peak wins; layouts follow, so sizes are logical.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node

_SHOWN = 8  # kernels named in a message


@dataclass(frozen=True, slots=True)
class Step:
    """What ordering needs to know about a kernel."""

    name: str
    writes: tuple[Node, ...]  # stored nodes; no state's BUFFER, whose readers want the old one
    reads: tuple[Node, ...]  # stored nodes and BUFFERs, each once
    reuses: tuple[Node, ...] = ()  # of `reads`: the result may take over their bytes
    after: frozenset[int] = frozenset()  # steps that come first though nothing is read


@dataclass(frozen=True)
class _Graph:
    """Steps with their edges; `sizes` are bytes in the arena, nodes without one take none."""

    steps: Sequence[Step]
    sizes: Mapping[Node, int]

    @cached_property
    def before(self) -> list[set[int]]:
        """Per step the steps it waits for."""
        producer = {node: i for i, step in enumerate(self.steps) for node in step.writes}
        found = []
        for i, step in enumerate(self.steps):
            sources = {producer[r] for r in step.reads if r in producer}
            # A kernel that updates a state in place reads its own target's old value.
            found.append({*step.after, *sources} - {i})
        return found

    @cached_property
    def after(self) -> list[list[int]]:
        """Per step the steps that wait for it."""
        users: list[list[int]] = [[] for _ in self.steps]
        for i, before in enumerate(self.before):
            for j in before:
                users[j].append(i)
        return users

    @cached_property
    def readers(self) -> dict[Node, list[int]]:
        """Steps that read each value of the arena."""
        found: dict[Node, list[int]] = {}
        for i, step in enumerate(self.steps):
            for node in step.reads:
                if self.sizes.get(node, 0):
                    found.setdefault(node, []).append(i)
        return found

    def written(self, i: int) -> int:
        """Return the bytes of the arena that a step writes."""
        return sum(self.sizes.get(node, 0) for node in self.steps[i].writes)


def wait_for_readers(
    steps: Sequence[Step], writers: Mapping[Node, int]
) -> tuple[list[Step], list[Node]]:
    """Add the edges that keep the old value of each state until everyone has read it.

    A writer waits for every other reader of the old value. If a reader needs the new value too, or
    the writer reads elements that it may have overwritten, a commit has to follow all readers.

    `writers` gives the step that computes the new value of each state. Returns the steps with
    edges, and the states that need a commit, in the order of `writers`.
    """
    graph = _Graph(steps, {})
    extra: list[set[int]] = [set(step.after) for step in steps]
    users = [list(u) for u in graph.after]
    readers: dict[Node, list[int]] = {state: [] for state in writers}
    for i, step in enumerate(steps):
        for node in step.reads:
            if node in readers:
                readers[node].append(i)
    late = []
    for state, writer in writers.items():
        mine = steps[writer]
        others = [i for i in readers[state] if i != writer]
        scattered = state in mine.reads and state not in mine.reuses
        if scattered or not _descendants(writer, users).isdisjoint(others):
            late.append(state)
            continue
        extra[writer].update(others)
        for i in others:
            users[i].append(writer)
    return [replace(s, after=frozenset(e)) for s, e in zip(steps, extra, strict=True)], late


def _descendants(start: int, users: Sequence[Iterable[int]]) -> set[int]:
    seen: set[int] = set()
    stack = [start]
    while stack:
        for i in users[stack.pop()]:
            if i not in seen:
                seen.add(i)
                stack.append(i)
    return seen


def best_order(steps: Sequence[Step], sizes: Mapping[Node, int]) -> list[int]:
    """Return the numbers of the steps (given in creation order) in running order.

    `sizes` are bytes in the arena of what steps write; outputs and states take none. Raises
    SchedulerError if steps wait for each other; the message names those on one cycle.
    """
    graph = _Graph(steps, sizes)
    candidates = [
        _creation_order(graph),
        _depth_first(graph),
        _lowest_growth(graph),
        _lowest_growth_backward(graph),
    ]
    return min(candidates, key=lambda order: _peak(graph, order))


def estimated_peak(order: Sequence[int], steps: Sequence[Step], sizes: Mapping[Node, int]) -> int:
    """Return the most bytes alive at once in an order, without losses between values."""
    return _peak(_Graph(steps, sizes), order)


def _peak(graph: _Graph, order: Sequence[int]) -> int:
    left = {node: len(readers) for node, readers in graph.readers.items()}
    live = peak = 0
    for i in order:
        step, new = graph.steps[i], graph.written(i)
        ended = [n for n in step.reads if left.get(n) == 1]
        taken = [n for n in ended if n in step.reuses and graph.sizes[n] == new]
        peak = max(peak, live if taken else live + new)
        for node in step.reads:
            if node in left:
                left[node] -= 1
        live += new - sum(graph.sizes[n] for n in ended)
    return peak


def _creation_order(graph: _Graph) -> list[int]:
    """Run the oldest step that is ready."""
    missing = [len(before) for before in graph.before]
    ready = [i for i, n in enumerate(missing) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in graph.after[i]:
            missing[j] -= 1
            if missing[j] == 0:
                heapq.heappush(ready, j)
    if len(order) != len(graph.steps):
        raise SchedulerError(_cycle_message(graph, {i for i, n in enumerate(missing) if n > 0}))
    return order


def _depth_first(graph: _Graph) -> list[int]:
    """Run what each final step needs right before it, largest results first."""
    order: list[int] = []
    pushed: set[int] = set()
    stack = [(i, False) for i, users in enumerate(graph.after) if not users][::-1]
    while stack:
        i, ready = stack.pop()
        if ready:
            order.append(i)
        elif i not in pushed:
            pushed.add(i)
            stack.append((i, True))
            needed = sorted(graph.before[i], key=lambda j: (graph.written(j), -j))
            stack.extend((j, False) for j in needed if j not in pushed)
    return order


def _lowest_growth(graph: _Graph) -> list[int]:
    """Run the ready step after which the fewest bytes are alive, the oldest among equals."""
    left = {node: len(readers) for node, readers in graph.readers.items()}

    def growth(i: int) -> int:
        freed = sum(graph.sizes[n] for n in graph.steps[i].reads if left.get(n) == 1)
        return graph.written(i) - freed

    def run(i: int) -> Iterator[int]:
        for node in graph.steps[i].reads:
            if node in left:
                left[node] -= 1
                if left[node] == 1:
                    yield from graph.readers[node]

    return _cheapest_first(graph.before, graph.after, growth, run)


def _lowest_growth_backward(graph: _Graph) -> list[int]:
    """The same from the end: last runs what leaves the fewest bytes alive before it."""
    alive: set[Node] = set()

    def growth(i: int) -> int:
        reads = graph.steps[i].reads
        asked = sum(graph.sizes[n] for n in reads if n in graph.readers and n not in alive)
        return asked - graph.written(i)

    def run(i: int) -> Iterator[int]:
        for node in graph.steps[i].reads:
            if node in graph.readers and node not in alive:
                alive.add(node)
                yield from graph.readers[node]

    return _cheapest_first(graph.after, graph.before, growth, run, sign=-1)[::-1]


def _cheapest_first(
    waits: Sequence[Collection[int]],
    users: Sequence[Collection[int]],
    growth: Callable[[int], int],
    run: Callable[[int], Iterable[int]],
    sign: int = 1,
) -> list[int]:
    """Return all steps, each time the ready one that grows least; `run` tells whose growth fell."""
    missing = [len(others) for others in waits]
    done = [False] * len(missing)
    ready = [(growth(i), sign * i) for i, n in enumerate(missing) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = sign * heapq.heappop(ready)[1]
        if done[i]:
            continue  # pushed again when it came to free more
        done[i] = True
        order.append(i)
        for j in users[i]:
            missing[j] -= 1
        for j in dict.fromkeys([*users[i], *run(i)]):
            if missing[j] == 0 and not done[j]:
                heapq.heappush(ready, (growth(j), sign * j))
    return order


def _cycle_message(graph: _Graph, stuck: set[int]) -> str:
    """Name the steps on a cycle among those that never got ready."""
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(min(graph.before[path[-1]] & stuck))
    cycle = path[path.index(path[-1]) : -1][::-1]  # in the direction in which data flows
    start = cycle.index(min(cycle))
    names = [graph.steps[i].name for i in (*cycle[start:], *cycle[:start])]
    more = f" -> ({len(names) - _SHOWN} more)" if len(names) > _SHOWN else ""
    shown = " -> ".join(names[:_SHOWN]) + more + f" -> {names[0]}"
    return f"kernels wait for each other in a cycle: {shown}; put .contiguous() between two"
