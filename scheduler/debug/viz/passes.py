"""Renders the VIZ page's section about passes: node counts after each pass, and graph listings."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, islice

from runtime.texts import count_text
from scheduler.context import Stages
from scheduler.debug.pretty import Line, Names, listing
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.origin import Origins

# Nodes are interned: if a node is replaced, all its users become new nodes, too. Nodes before and
# after a pass are therefore paired by their operation and their neighbors.

Pairs = dict[Node, Node]


def pair_nodes(
    before: Sequence[Node],
    now: Sequence[Node],
    roots: Sequence[tuple[Node, Node]],
    origins: Origins,
) -> Pairs:
    """Return new node -> old node for each new node that has a counterpart; pairs are one to one.

    `before` and `now` are in topological order, `roots` are pairs of (new, old). From the inputs
    upwards, this pairs nodes that are equal and have paired sources. From the outputs downwards, it
    pairs sources in the same position that are equal except for their own sources. It pairs the
    remaining nodes by their ONNX nodes and then by their order, and continues downwards from them.
    """
    finder = _Finder(before, now)
    finder.upwards()
    finder.downwards(roots)
    for key in (lambda node: (_kind(node), origins.of(node)), _kind):
        finder.downwards(finder.left_over(key))
    return finder.pairs


def rewired(node: Node, pairs: Pairs) -> bool:
    """Return whether a node has a counterpart before the pass, but now reads other nodes."""
    old = pairs.get(node)
    return old is not None and [pairs.get(s) for s in node.src] != list(old.src)


class _Finder:
    """Pairs the nodes of two graphs, one node of each with at most one of the other."""

    def __init__(self, before: Sequence[Node], now: Sequence[Node]) -> None:
        self.before, self.now = before, now
        self.pairs: Pairs = {}
        self._taken: set[Node] = set()

    def upwards(self) -> None:
        known = {(_kind(node), node.src): node for node in self.before}
        for node in self.now:
            sources = tuple(self.pairs.get(s) for s in node.src)
            old = known.get((_kind(node), sources))  # type: ignore[arg-type]  # None finds nothing
            if old is not None:
                self._pair(node, old)

    def downwards(self, starts: Sequence[tuple[Node, Node]]) -> None:
        stack = [(new, old) for new, old in starts if self._fits(new, old)]
        while stack:
            new, old = stack.pop()
            if not self._fits(new, old):
                continue
            self._pair(new, old)
            if len(new.src) == len(old.src):
                stack.extend(zip(new.src, old.src, strict=True))

    def left_over(self, key: Callable[[Node], Hashable]) -> list[tuple[Node, Node]]:
        """Return pairs of unpaired nodes with the same key, in order of appearance."""
        waiting: dict[Hashable, list[Node]] = defaultdict(list)
        for old in self.before:
            if old not in self._taken:
                waiting[key(old)].append(old)
        queues = {k: iter(nodes) for k, nodes in waiting.items()}
        found = []
        for new in self.now:
            if new not in self.pairs and key(new) in queues:
                found += [(new, old) for old in islice(queues[key(new)], 1)]
        return found[::-1]  # the stack is processed from its end

    def _fits(self, new: Node, old: Node) -> bool:
        return new not in self.pairs and old not in self._taken and _kind(new) == _kind(old)

    def _pair(self, new: Node, old: Node) -> None:
        if old not in self._taken:
            self.pairs[new] = old
            self._taken.add(old)


def _kind(node: Node) -> Hashable:
    """Return a key of the node without its sources; arguments are compared as text."""
    argument = node.arg if isinstance(node.arg, Buffer) else repr(node.arg)
    return node.op, node.dtype, node.shape, argument


# Listings are split into chunks of this many lines, which the browser lays out when in view.
CHUNK = 200


@dataclass(frozen=True, slots=True)
class Stage:
    """A graph after a pass, compared with the graph before it."""

    name: str  # name of the pass
    # the graph's nodes; a node keeps the number of its counterpart before the pass
    lines: list[Line]
    new: set[Node]  # nodes without a counterpart before the pass
    rewired: set[Node]  # nodes with a counterpart that now read other nodes
    gone: list[Line]  # lines of old nodes without a counterpart

    @property
    def is_changed(self) -> bool:
        """Whether the pass changed the graph."""
        return bool(self.new or self.rewired or self.gone)

    @property
    def counts(self) -> Counter[str]:
        """The number of nodes by op."""
        return Counter(line.node.op.name for line in self.lines)


def make_stages(stages: Stages) -> list[Stage]:
    """Return each stage with the nodes that its pass added and dropped."""
    origins = stages.origins
    names = Names()
    result: list[Stage] = []
    before: list[Line] = []
    last: Sequence[Node] = ()
    for name, roots in stages.graphs:
        if not result:
            before = listing(roots, names, origins)
            result.append(Stage(name, before, set(), set(), []))
        else:
            now = toposort(roots)
            ends = list(zip(roots, last, strict=False))
            pairs = pair_nodes([ln.node for ln in before], now, ends, origins)
            names = names.renamed(pairs)
            lines = listing(roots, names, origins)
            left = set(pairs.values())
            changed = {node for node in now if rewired(node, pairs)}
            gone = [ln for ln in before if ln.node not in left]
            result.append(Stage(name, lines, set(now) - pairs.keys(), changed, gone))
            before = lines
        last = roots
    return result


def passes_section(stages: Stages) -> str:
    """Return the section as HTML: node counts after passes with changes, and folded listings."""
    made = make_stages(stages)
    shown = [stage for i, stage in enumerate(made) if i == 0 or stage.is_changed]
    return (
        f'<p>For each pass: <b class="up">+ new</b>, <b class="down">- dropped</b> and '
        f'<b class="re">~ rewired</b> nodes. A rewired node reads another node than before.</p>'
        f'<div class="passes"><div class="wide">{_counts_table(shown)}</div>'
        f"<div>{_listings(made)}</div></div>"
    )


def _counts_table(stages: Sequence[Stage]) -> str:
    counts = [stage.counts for stage in stages]
    ops = sorted({op for c in counts for op in c}, key=lambda op: (-counts[0][op], op))
    head = "".join(f"<th>{escape(stage.name)}</th>" for stage in stages)
    total = _counts_row("all nodes", [len(stage.lines) for stage in stages], "total")
    body = "".join(_counts_row(op.lower(), [c[op] for c in counts]) for op in ops)
    return (
        f'<table class="counts"><thead><tr><th>nodes</th>{head}</tr></thead>'
        f"<tbody>{total}{body}</tbody></table>"
    )


def _counts_row(name: str, values: Sequence[int], kind: str = "") -> str:
    cells = ""
    for i, value in enumerate(values):
        delta = value - values[i - 1] if i else 0
        change = f'<i class="{"up" if delta > 0 else "down"}">{delta:+,}</i>' if delta else ""
        cells += f'<td class="n">{change}{value or "·"}</td>'
    return f'<tr class="{kind}"><td>{escape(name)}</td>{cells}</tr>'


def _listings(stages: Sequence[Stage]) -> str:
    """Return the listings; consecutive passes without changes share one folded line."""
    parts: list[str] = []
    for is_quiet, group in groupby(enumerate(stages), lambda one: one[0] and not one[1].is_changed):
        listed = [_listing(stage) for _, stage in group]
        if is_quiet:
            head = f"{count_text(len(listed), 'pass')} changed nothing"
            listed = [f'<details class="same"><summary>{head}</summary>{"".join(listed)}</details>']
        parts += listed
    return "".join(parts)


def _listing(stage: Stage) -> str:
    parts = (("up", "+", stage.new), ("down", "-", stage.gone), ("re", "~", stage.rewired))
    change = " ".join(
        f'<b class="{kind}">{sign}{len(nodes):,}</b>' for kind, sign, nodes in parts if nodes
    )
    if not change:
        change = "as read" if stage.name == "input" else "nothing changed"
    head = f"{escape(stage.name)} <span>{count_text(len(stage.lines), 'node')}, {change}</span>"
    if stage.name != "input" and not change.startswith("<"):
        return f'<div class="same">{head}</div>'
    gone = ""
    if stage.gone:
        dropped = _chunks([escape(ln.text) for ln in stage.gone])
        summary = f"{count_text(len(stage.gone), 'node')} dropped"
        gone = f"<details><summary>{summary}</summary>{dropped}</details>"
    texts = [_marked(ln, stage) for ln in stage.lines]
    return f"<details><summary>{head}</summary>{gone}{_chunks(texts)}</details>"


def _marked(line: Line, stage: Stage) -> str:
    text = escape(line.text)
    if line.node in stage.new:
        return f"<ins>{text}</ins>"
    return f'<ins class="re">{text}</ins>' if line.node in stage.rewired else text


def _chunks(lines: Sequence[str]) -> str:
    parts = []
    for start in range(0, len(lines), CHUNK):
        part = lines[start : start + CHUNK]
        style = f"contain-intrinsic-height:{len(part) * 16}px"
        parts.append(f'<pre class="ir" style="{style}">' + "\n".join(part) + "</pre>")
    return "".join(parts)
