"""The passes section: how many nodes of each op a graph has after each pass, and its text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.node import Node
from scheduler.pretty import Line, Names, listing
from scheduler.viz.markup import count_text, escape

# Lines of a listing that the browser lays out at once, when they come into view.
CHUNK = 200


@dataclass(frozen=True, slots=True)
class Stage:
    """A graph after a pass, compared with the one before: nodes are interned, so sets tell."""

    name: str
    lines: list[Line]
    new: set[Node]
    gone: list[Line]

    @property
    def counts(self) -> Counter[str]:
        """Nodes by op."""
        return Counter(line.node.op.name for line in self.lines)


def make_stages(stages: Sequence[tuple[str, Sequence[Node]]]) -> list[Stage]:
    """List each stage of a trace with what its pass made and dropped."""
    names = Names()
    result: list[Stage] = []
    before: list[Line] = []
    for name, roots in stages:
        lines = listing(roots, names)
        old, now = {ln.node for ln in before}, {ln.node for ln in lines}
        new = now - old if result else set()
        result.append(Stage(name, lines, new, [ln for ln in before if ln.node not in now]))
        before = lines
    return result


def passes_section(stages: Sequence[tuple[str, Sequence[Node]]]) -> str:
    """Return the table of counts, of the passes that changed something, and the folded listings."""
    made = make_stages(stages)
    shown = [stage for i, stage in enumerate(made) if i == 0 or stage.new or stage.gone]
    return f'<div class="wide">{_counts_table(shown)}</div>{"".join(map(_listing, made))}'


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


def _listing(stage: Stage) -> str:
    if stage.new or stage.gone:
        change = f'<b class="up">+{len(stage.new):,}</b> <b class="down">-{len(stage.gone):,}</b>'
    else:
        change = "as read" if stage.name == "input" else "nothing changed"
    head = f"{escape(stage.name)} <span>{count_text(len(stage.lines), 'node')}, {change}</span>"
    if stage.name != "input" and not change.startswith("<"):
        return f'<div class="same">{head}</div>'
    gone = ""
    if stage.gone:
        dropped = _chunks([escape(ln.text) for ln in stage.gone])
        summary = f"{count_text(len(stage.gone), 'node')} dropped"
        gone = f"<details><summary>{summary}</summary>{dropped}</details>"
    texts = [
        f"<ins>{escape(ln.text)}</ins>" if ln.node in stage.new else escape(ln.text)
        for ln in stage.lines
    ]
    return f"<details><summary>{head}</summary>{gone}{_chunks(texts)}</details>"


def _chunks(lines: Sequence[str]) -> str:
    parts = []
    for start in range(0, len(lines), CHUNK):
        part = lines[start : start + CHUNK]
        style = f"contain-intrinsic-height:{len(part) * 16}px"
        parts.append(f'<pre class="ir" style="{style}">' + "\n".join(part) + "</pre>")
    return "".join(parts)
