"""Chooses the order in which kernels run, so that few bytes are alive at a time.

Producers run before consumers, and a kernel that overwrites a state waits for all readers of its
old value:

    q read by f; q' = g(x) written to q      ->      g waits for f
    two branches that end in a small result  ->      one branch to its end, then the other

Four deterministic heuristics each propose an order; the one with the lowest estimated peak of live
bytes wins. Layouts are chosen later, so sizes here are those of logical shapes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scheduler.errors import SchedulerError
from scheduler.ir.node import Node

_SHOWN = 8  # most kernels named in a message


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel as the ordering sees it."""

    name: str
    # stored nodes; never the BUFFER of a state, whose readers need the old value
    writes: tuple[Node, ...]
    reads: tuple[Node, ...]  # stored nodes and BUFFERs, without repeats
    reuses: tuple[Node, ...] = ()  # members of `reads` whose bytes the result may reuse
    # steps that must run earlier, although this one reads nothing from them
    after: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Graph:
    """Steps with their edges; `sizes` holds the arena bytes of nodes, 0 for missing ones."""

    steps: Sequence[Step]
    sizes: Mapping[Node, int]

    @cached_property
    def before(self) -> list[set[int]]:
        """For each step, the steps it waits for."""
        producer = {node: i for i, step in enumerate(self.steps) for node in step.writes}
        found = []
        for i, step in enumerate(self.steps):
            sources = {producer[r] for r in step.reads if r in producer}
            # A kernel that updates a state in place reads the old value of its own target.
            found.append({*step.after, *sources} - {i})
        return found

    @cached_property
    def after(self) -> list[list[int]]:
        """For each step, the steps that wait for it."""
        users: list[list[int]] = [[] for _ in self.steps]
        for i, before in enumerate(self.before):
            for j in before:
                users[j].append(i)
        return users

    @cached_property
    def readers(self) -> dict[Node, list[int]]:
        """The steps that read each value of the arena."""
        found: dict[Node, list[int]] = {}
        for i, step in enumerate(self.steps):
            for node in step.reads:
                if self.sizes.get(node, 0):
                    found.setdefault(node, []).append(i)
        return found

    def written(self, i: int) -> int:
        """Return the arena bytes that a step writes."""
        return sum(self.sizes.get(node, 0) for node in self.steps[i].writes)


def wait_for_readers(
    steps: Sequence[Step], writers: Mapping[Node, int]
) -> tuple[list[Step], list[Node]]:
    """Add the edges that keep the old value of each state until all its readers have run.

    The writer of a state waits for every other reader of the old value. Waiting is impossible if
    one of those readers depends on the new value, or if the writer itself reads elements that it
    may have overwritten. Then a commit must copy the new value after all readers.

    `writers` has the step that computes the new value of each state. Return the steps with the new
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

    `sizes` holds the arena bytes of written nodes; outputs and states are not in the arena. Raise
    SchedulerError if steps wait for each other; the message names the steps of one cycle.
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
    """Return the most bytes alive at a time in an order, ignoring gaps between values."""
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
    """Run the oldest ready step."""
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
    """Run the sources of each final step right before it, those with the largest results first."""
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
    """Run the ready step that leaves the fewest bytes alive; ties go to the oldest."""
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
    """Build the order from its end: the last step leaves the fewest bytes alive before it."""
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
    """Return all steps in an order that always runs the ready step with the lowest growth.

    `run` marks a step as done and yields the steps whose growth fell. `sign` is 1 to run the oldest
    of equal steps first, -1 for the newest.
    """
    missing = [len(others) for others in waits]
    done = [False] * len(missing)
    ready = [(growth(i), sign * i) for i, n in enumerate(missing) if n == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        i = sign * heapq.heappop(ready)[1]
        if done[i]:
            continue  # an older entry: it was pushed again when its growth fell
        done[i] = True
        order.append(i)
        for j in users[i]:
            missing[j] -= 1
        for j in dict.fromkeys([*users[i], *run(i)]):
            if missing[j] == 0 and not done[j]:
                heapq.heappush(ready, (growth(j), sign * j))
    return order


def _cycle_message(graph: _Graph, stuck: set[int]) -> str:
    """Name the steps of one cycle among those that never became ready."""
    path = [min(stuck)]
    while path[-1] not in path[:-1]:
        path.append(min(graph.before[path[-1]] & stuck))
    cycle = path[path.index(path[-1]) : -1][::-1]  # in the direction of data flow
    start = cycle.index(min(cycle))
    names = [graph.steps[i].name for i in (*cycle[start:], *cycle[:start])]
    more = f" -> ({len(names) - _SHOWN} more)" if len(names) > _SHOWN else ""
    shown = " -> ".join(names[:_SHOWN]) + more + f" -> {names[0]}"
    return f"kernels wait for each other in a cycle: {shown}; put .contiguous() between two"
