"""Renders the HTML page that VIZ=1 writes about one compilation.

It has a section for each entry of the artifact: costs, passes, kernel graph, memory and launches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from runtime.files.user_file import whole_file
from runtime.texts import count_text, flops_text, short_origin, size_text
from scheduler.debug.kernel_table import (
    KernelTable,
    Launch,
    kernel_tables,
    ranges_text,
    shape_text,
    source_of,
)
from scheduler.debug.pretty import pretty_body, pretty_loops
from scheduler.debug.viz.drawings import (
    KINDS,
    LaunchTimes,
    kernel_graph,
    memory_timeline,
    time_text,
)
from scheduler.debug.viz.passes import passes_section
from scheduler.debug.viz.style import SCRIPT, STYLE
from scheduler.emit.schedule import Schedule
from scheduler.flags import VIZ_DIRECTORY
from scheduler.lower import LoweredKernel

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# Number of launches in the summary of the costliest ones.
COSTLIEST = 5
_GAUGE = 40  # length of the longest bar in the table, in pixels
# With more kernels than this, the drawing is initially folded.
ROW_LIMIT = 400


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table that the caller adds to an entry, such as measured costs of its kernels."""

    title: str  # plain text above the table
    note: str  # plain text below the title
    header: tuple[str, ...]  # column titles, plain text
    rows: tuple[tuple[str, ...], ...]  # cells, plain text


def write_page(
    path: str | os.PathLike[str],
    manifest: Mapping[str, Any],
    plans: Mapping[str, Schedule] | None = None,
    tables: Mapping[str, PageTable] | None = None,
    times: Mapping[str, LaunchTimes] | None = None,
) -> None:
    """Write `page` atomically, creating only VIZ=1's directory; raise OSError on failure."""
    text = page(manifest, plans, tables, times)
    if Path(path).parent == VIZ_DIRECTORY:
        VIZ_DIRECTORY.mkdir(exist_ok=True)
    with whole_file(path) as file:
        file.write(text.encode())


def page(
    manifest: Mapping[str, Any],
    plans: Mapping[str, Schedule] | None = None,
    tables: Mapping[str, PageTable] | None = None,
    times: Mapping[str, LaunchTimes] | None = None,
) -> str:
    """Return the page of a manifest as HTML.

    `plans` (schedules), `tables` (one extra table each) and `times` (of launches) are keyed by
    entry name. For an artifact from a file there are no plans.
    """
    names = list(manifest["entries"])
    known = plans or {}
    sections = [
        _Section(
            table,
            f"e{i}",
            known.get(table.entry),
            (tables or {}).get(table.entry),
            (times or {}).get(table.entry),
        ).html()
        for i, table in enumerate(kernel_tables(manifest, known))
    ]
    buttons = [
        f'<button data-entry="e{i}" class="{"" if i else "on"}">{escape(name)}</button>'
        for i, name in enumerate(names)
    ]
    tabs = f"<nav>{''.join(buttons)}</nav>" if len(names) > 1 else ""
    title = escape(str(manifest["name"]))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f"<style>{STYLE}</style></head>\n<body><main><h1>{title}</h1>"
        f"{tabs}\n{chr(10).join(sections)}\n{_sources(manifest)}\n</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


@dataclass(frozen=True, slots=True)
class _Section:
    """The section of one entry: its table and the optional data about it."""

    table: KernelTable
    key: str
    plan: Schedule | None
    more: PageTable | None
    times: LaunchTimes | None

    def html(self) -> str:
        """Return the section as HTML."""
        table, key, plan, times = self.table, self.key, self.plan, self.times
        hidden = "" if key == "e0" else " hidden"
        costliest = next(iter(_costs_of(table, times).order), 0)
        passes = ""
        if plan is not None and plan.stages is not None:
            passes = f"<h2>Passes</h2>{passes_section(plan.stages)}"
        timeline = memory_timeline(table)
        memory = ""
        if timeline:
            drawn = f'<div class="across">{timeline}</div>'
            memory = f"<h2>Memory</h2>{_memory_caption(table)}{drawn}"
        return (
            f'<section id="{key}" data-first="{costliest}"{hidden}>'
            f"{_costs_part(table, times)}{_tiles(table)}{passes}<h2>Kernels</h2>"
            f"{_legend(table, times)}"
            f"{_split(table, key, times)}{memory}"
            f'<h2>All launches</h2><div class="wide">{_table(table, times)}</div>{_more(self.more)}'
            f"{_details(self)}"
            f"</section>"
        )


@dataclass(frozen=True, slots=True)
class _LaunchCosts:
    """The cost of each launch: its time if measured, else its work, else the bytes it moves."""

    values: tuple[float, ...]  # by launch number
    texts: tuple[str, ...]  # the same as text
    name: str  # name of the cost, for the column header
    total: str  # verb phrase about all launches, for a sentence

    @property
    def order(self) -> list[int]:
        """The launches, costliest first."""
        return sorted(range(len(self.values)), key=lambda at: -self.values[at])

    def share(self, launch: int) -> float:
        """Return a launch's share of the total, from 0 to 1."""
        return self.values[launch] / (sum(self.values) or 1.0)

    def in_half(self) -> int:
        """Return how many of the costliest launches together have half of the total."""
        share, count = 0.0, 0
        for launch in self.order:
            share, count = share + self.share(launch), count + 1
            if share >= 0.5:
                break
        return count


def _costs_of(table: KernelTable, times: LaunchTimes | None) -> _LaunchCosts:
    """Return the costs of an entry's launches, from measured times if there are any."""
    flops = [launch.flops for launch in table.launches]
    moved = [launch.bytes_moved for launch in table.launches]
    if times is not None:
        texts = tuple(map(time_text, times.milliseconds))
        total = f"take {time_text(times.total)} on {times.where}"
        return _LaunchCosts(times.milliseconds, texts, "time", total)
    if any(flops):
        total = f"do {flops_text(sum(flops))} and move {size_text(sum(moved))}"
        return _LaunchCosts(tuple(map(float, flops)), tuple(map(flops_text, flops)), "work", total)
    texts = tuple(map(size_text, moved))
    return _LaunchCosts(tuple(map(float, moved)), texts, "moved", f"move {size_text(sum(moved))}")


def _costs_part(table: KernelTable, times: LaunchTimes | None) -> str:
    """Return the summary and the costliest launches as HTML; rows link to their kernels."""
    costs = _costs_of(table, times)
    if not costs.values:
        return ""
    count, half = len(costs.values), costs.in_half()
    verb = costs.total if count > 1 else costs.total.replace(" ", "s ", 1)
    text = f"{count_text(count, 'launch', 'launches')} {verb}."
    # For fewer launches, the table already shows all of them.
    if count > COSTLIEST:
        text += f" Half of the {_noun(costs)} is in {half} of them."
    rows = "".join(_costs_row(table, costs, launch) for launch in costs.order[:COSTLIEST])
    head = f'<th class="n">{costs.name}</th><th class="n">share</th><th class="n">#</th>'
    return (
        f'<p class="lead">{escape(text)}</p><div class="across"><table class="table"><thead><tr>'
        f"{head}<th>kernel</th><th>nodes</th></tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _noun(costs: _LaunchCosts) -> str:
    return "traffic" if costs.name == "moved" else costs.name


def _costs_row(table: KernelTable, costs: _LaunchCosts, number: int) -> str:
    launch = table.launches[number]
    return (
        f'<tr data-k="{number}"><td class="n">{escape(costs.texts[number])}</td>'
        f'<td class="n">{costs.share(number):.1%}</td><td class="n">{number}</td>'
        f"<td>{escape(launch.kernel)}</td><td>{escape(short_origin(launch.origin))}</td></tr>"
    )


def _tiles(table: KernelTable) -> str:
    t = table.totals
    values = (
        ("entry", table.entry, ""),
        ("kernels", f"{t.kernels:,}", f"{t.launches:,} launches"),
        ("work", flops_text(t.flops), ""),
        ("moved", size_text(t.bytes_moved), ""),
        ("activations", size_text(t.arena_peak), f"{size_text(t.arena_unplanned)} without reuse"),
    )
    tiles = "".join(
        f'<div class="tile"><span>{name}</span><b>{escape(value)}</b><span>{note}</span></div>'
        for name, value, note in values
    )
    return f'<div class="tiles">{tiles}</div>'


def _legend(table: KernelTable, times: LaunchTimes | None) -> str:
    kinds = [k for k in KINDS if any(launch.kind == k for launch in table.launches)]
    if any(launch.kind not in KINDS for launch in table.launches):
        kinds.append("other")
    keys = " ".join(f'<span><i class="key {kind}"></i>{kind}</span>' for kind in kinds)
    measured = f"time, measured on {escape(times.where)}" if times is not None else "work"
    return (
        '<p class="keys">Round boxes are inputs and outputs of the model. A solid line leads from '
        "a result to the kernels that read it; a dashed line only sets an order. A full bar is a "
        "tenth of all "
        f"{measured}. Click a kernel to see its source. {keys}</p>"
    )


def _split(table: KernelTable, key: str, times: LaunchTimes | None) -> str:
    count = len(table.launches)
    panes = (
        f'<div class="split"><div class="pane">{kernel_graph(table, key, times)}</div>'
        f'<div class="pane detail"></div></div>'
    )
    if count <= ROW_LIMIT:
        return panes
    return f"<details><summary>graph of {count_text(count, 'kernel')}</summary>{panes}</details>"


def _memory_caption(table: KernelTable) -> str:
    t = table.totals
    return (
        f"<p>{count_text(len(table.arena), 'intermediate')} in {size_text(t.arena_peak)}, which "
        f"would take {size_text(t.arena_unplanned)} without reuse. The dashed line is the memory "
        f"in use, at most {size_text(t.arena_live)}: no plan can take less.</p>"
    )


def _table(table: KernelTable, times: LaunchTimes | None) -> str:
    slowest = max(times.milliseconds, default=0.0) if times is not None else 0.0
    work = max((launch.flops for launch in table.launches), default=0)
    moved = max((launch.bytes_moved for launch in table.launches), default=0)
    head = "<th>#</th><th>kernel</th><th>origin</th><th>results</th><th>ranges</th>"
    head += '<th class="n">time</th>' if times is not None else ""
    head += '<th class="n">items</th><th class="n">lanes</th><th class="n">work</th>'
    head += '<th class="n">moved</th><th class="n">offset</th><th>in use</th>'
    measured = [""] * len(table.launches)
    if times is not None:
        measured = [
            f'<td class="n">{times.text(i)}{_gauge(ms, slowest)}</td>'
            for i, ms in enumerate(times.milliseconds)
        ]
    body = "".join(
        _row(table, launch, work, moved, cell)
        for launch, cell in zip(table.launches, measured, strict=True)
    )
    return f'<table class="table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _more(table: PageTable | None) -> str:
    if table is None:
        return ""
    head = "".join(f"<th>{escape(title)}</th>" for title in table.header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows
    )
    return (
        f"<h2>{escape(table.title)}</h2><p>{escape(table.note)}</p>"
        f'<div class="wide"><table class="table"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(table: KernelTable, launch: Launch, work: int, moved: int, time: str) -> str:
    stored = [table.values[i] for i in launch.writes]
    results = [escape(f"{v.name} {v.dtype} {shape_text(v.shape)}") for v in stored]
    alive = [v.kind if v.offset is None else f"{v.first} to {v.last}" for v in stored]
    offsets = ["" if v.offset is None else f"{v.offset:,}" for v in stored]
    return (
        f'<tr data-k="{launch.number}"><td class="n">{launch.number}</td>'
        f"<td>{escape(launch.kernel)}</td>"
        f"<td>{escape(short_origin(launch.origin))}</td><td>{_lines(results)}</td>"
        f'<td class="free">{escape(ranges_text(launch) or "")}</td>{time}'
        f'<td class="n">{launch.items}</td>'
        f'<td class="n">{launch.lanes or ""}</td>'
        f'<td class="n">{flops_text(launch.flops)}{_gauge(launch.flops, work)}</td>'
        f'<td class="n">{size_text(launch.bytes_moved)}{_gauge(launch.bytes_moved, moved)}</td>'
        f'<td class="n">{_lines(offsets)}</td><td>{_lines(alive)}</td></tr>'
    )


def _lines(cells: Sequence[str]) -> str:
    """Return a cell with one line for each result of a kernel."""
    return "<br>".join(cells)


def _gauge(value: float, largest: float) -> str:
    width = _GAUGE * value / largest if largest else 0.0
    return f'<span class="gauge"><span class="cell" style="width:{width:.1f}px"></span></span>'


def _details(section: _Section) -> str:
    """Return the details of each kernel as inert templates; the pane shows the selected one."""
    lowered: list[LoweredKernel | None] = [None] * len(section.table.launches)
    if section.plan is not None:
        lowered = list(section.plan.lowered)
    return "".join(
        _detail(section, launch, kernel)
        for launch, kernel in zip(section.table.launches, lowered, strict=True)
    )


def _detail(section: _Section, launch: Launch, kernel: LoweredKernel | None) -> str:
    table, key, times = section.table, section.key, section.times
    facts = [
        ("origin", ", ".join(launch.origin) or "-"),
        ("writes", ", ".join(_buffer(table, i) for i in launch.writes)),
        ("reads", ", ".join(_buffer(table, i) for i in launch.reads) or "-"),
        ("work", f"{flops_text(launch.flops)}, {size_text(launch.bytes_moved)} moved"),
    ]
    if times is not None:
        share = f"{times.share(launch.number):.1%} of all"
        facts.append(("time", f"{times.text(launch.number)}, {share}, on {times.where}"))
    body = ""
    if kernel is not None:
        facts.extend(("loops", pretty_loops(nest.schedule)) for nest in kernel.nests)
        label = _Labels(kernel)
        text = "\n".join(pretty_body(body, label) for body in kernel.kernel.bodies)
        body = f"<h3>body</h3><pre>{escape(text)}</pre>" if text else ""
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    return (
        f'<template id="{key}-{launch.number}" data-kernel="{escape(launch.kernel)}">'
        f"<h3>{launch.number} · {escape(launch.kernel)}</h3><dl>{rows}</dl>{body}</template>"
    )


class _Labels:
    """Names the operands of a body: in0, in1, ... in order of use, with the name of a buffer."""

    def __init__(self, kernel: LoweredKernel) -> None:
        self._names = {node: f"in{i}" for i, node in enumerate(kernel.kernel.reads)}
        targets = kernel.kernel.targets
        several = len(targets) > 1
        self._names |= {t: f"out{i if several else ''}" for i, t in enumerate(targets)}

    def __call__(self, node: Any) -> str:
        name = self._names.get(node, "in")
        kind = getattr(node.arg, "kind", "")
        return f"{name}:{kind}:{node.arg.name}".rstrip(":") if kind else name


def _buffer(table: KernelTable, index: int) -> str:
    stored = table.values[index]
    return f"{stored.kind} {stored.name} {stored.dtype} {shape_text(stored.shape)}"


def _sources(manifest: Mapping[str, Any]) -> str:
    """Return the source of each distinct kernel, shared by all entries."""
    parts = []
    for name in sorted({kernel["name"] for kernel in manifest["kernels"]}):
        text = escape(source_of(manifest, name))
        parts.append(
            f'<template id="source-{escape(name)}"><h3>source</h3><pre>{text}</pre></template>'
        )
    return "".join(parts)
