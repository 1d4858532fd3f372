"""Draws the SVG images of the VIZ page: the kernel graph and the memory timeline.

The graph has a box for each kernel, input and output. Boxes are in rows by depth: a kernel is below
all kernels it depends on, and outputs are at the bottom. Edges that skip rows run through lanes at
the left, so that no edge crosses a box. The timeline shows launches from left to right, arena
offsets from bottom to top, and a rectangle for each intermediate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from runtime.texts import count_text, flops_text, short_origin, shorten, size_text
from scheduler.debug.kernel_table import KernelTable, Launch, Port, Value, shape_text
from scheduler.kernelize.memory_plan import aligned


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The measured time of each launch of an entry."""

    milliseconds: tuple[float, ...]  # by launch number
    where: str  # the device they were measured on, as plain text

    @property
    def total(self) -> float:
        """The total time of all launches, in milliseconds."""
        return sum(self.milliseconds)

    def share(self, launch: int) -> float:
        """Return a launch's share of the total time, from 0 to 1."""
        return self.milliseconds[launch] / self.total if self.total > 0 else 0.0

    def text(self, launch: int) -> str:
        """Return the time of a launch as text."""
        return time_text(self.milliseconds[launch])


def time_text(milliseconds: float) -> str:
    """Return a time as text, in us if it is below 0.1 ms."""
    return f"{milliseconds:.2f} ms" if milliseconds >= 0.1 else f"{1e3 * milliseconds:.1f} us"


# --- The kernel graph -------------------------------------------------------------------------

# Sizes in pixels. PER_ROW boxes fit next to the details pane on a wide screen.
BOX_WIDTH, BOX_HEIGHT = 296, 56
BOX_TEXT = 48  # characters
GAP_X, GAP_Y = 14, 24
LANE = 8
PER_ROW = 3
MARGIN = 10
KINDS = ("contract", "reduce", "map")


@dataclass(frozen=True, slots=True)
class Placed:
    """The layout of the boxes: numbers by row, and each box's (row, column)."""

    rows: list[list[int]]
    at: dict[int, tuple[int, int]]


def place_kernels(count: int, edges: Sequence[tuple[int, int]], per_row: int = PER_ROW) -> Placed:
    """Place each kernel in a row below all kernels it depends on.

    `edges` are pairs (earlier, later) of launches in running order. A level with more than
    `per_row` boxes takes several rows.
    """
    depth = [0] * count
    for a, b in sorted(edges, key=lambda e: e[1]):
        depth[b] = max(depth[b], depth[a] + 1)
    levels: dict[int, list[int]] = {}
    for i, d in enumerate(depth):
        levels.setdefault(d, []).append(i)
    rows = [
        level[start : start + per_row]
        for _, level in sorted(levels.items())
        for start in range(0, len(level), per_row)
    ]
    at = {k: (r, c) for r, row in enumerate(rows) for c, k in enumerate(row)}
    return Placed(rows, at)


def assign_lanes(spans: Sequence[tuple[int, int]]) -> list[int]:
    """Return the lowest lane that is free along each span of rows (first, last)."""
    lanes: list[int] = [-1] * len(spans)
    end: list[int] = []  # last occupied row of each lane
    for i in sorted(range(len(spans)), key=lambda i: (spans[i][0], -spans[i][1], i)):
        first, last = spans[i]
        lane = next((n for n, e in enumerate(end) if e < first), len(end))
        if lane == len(end):
            end.append(last)
        end[lane] = last
        lanes[i] = lane
    return lanes


@dataclass(frozen=True, slots=True)
class _Edge:
    """An edge from box `a` to a later box `b`; `is_order` if no value is passed."""

    a: int
    b: int
    text: str
    is_order: bool = False


def _edges(table: KernelTable) -> list[_Edge]:
    """Return the edges between boxes, numbered by inputs, then launches, then outputs."""
    first, last = len(table.inputs), len(table.inputs) + len(table.launches)
    edges = [
        _Edge(first + a, first + b, *_between(table, a, b, value))
        for a, b, value in table.dependencies()
    ]
    for i, port in enumerate(table.inputs):
        edges += [_Edge(i, first + k, f"{port.name} -> {k}") for k in port.launches]
    for i, port in enumerate(table.outputs):
        edges += [_Edge(first + k, last + i, f"{k} -> {port.name}") for k in port.launches]
    return edges


def _between(table: KernelTable, a: int, b: int, value: int | None) -> tuple[str, bool]:
    if value is None:
        return f"{a} -> {b}: runs before", True
    stored = table.values[value]
    what = f"{stored.name}, {stored.dtype} {shape_text(stored.shape)}, {size_text(stored.size)}"
    return f"{a} -> {b}: {what}", False


def _place(table: KernelTable, edges: Sequence[_Edge]) -> Placed:
    """Place inputs and kernels by depth, and outputs below all of them."""
    count = len(table.inputs) + len(table.launches)
    placed = place_kernels(count, [(e.a, e.b) for e in edges if e.b < count])
    outputs = range(count, count + len(table.outputs))
    below = [list(outputs[i : i + PER_ROW]) for i in range(0, len(outputs), PER_ROW)]
    rows = placed.rows + below
    return Placed(rows, {k: (r, c) for r, row in enumerate(rows) for c, k in enumerate(row)})


def kernel_graph(table: KernelTable, prefix: str, times: LaunchTimes | None = None) -> str:
    """Return the SVG of an entry's kernels, inputs and outputs.

    Element ids begin with `prefix`: kernel n is "<prefix>-n". Bars show the measured time, or work
    if there are no times.
    """
    edges = _edges(table)
    placed = _place(table, edges)
    far: dict[int, int] = {}  # box -> the lowest row that it has a lane edge to
    for a, b in ((edge.a, edge.b) for edge in edges):
        row = placed.at[b][0]
        if row > placed.at[a][0] + 1:
            far[a] = max(far.get(a, 0), row)
    sources = sorted(far)
    lanes = assign_lanes([(placed.at[a][0], far[a]) for a in sources])
    lane_of = dict(zip(sources, lanes, strict=True))
    left = MARGIN + LANE * (max(lanes, default=-1) + 1) + (MARGIN if lanes else 0)
    flops = max(1, table.totals.flops)
    drawing = _Drawing(table, placed, left, lane_of, prefix, times, flops)
    width = left + max(map(len, placed.rows), default=0) * (BOX_WIDTH + GAP_X) + MARGIN
    height = MARGIN * 2 + len(placed.rows) * (BOX_HEIGHT + GAP_Y)
    parts = [drawing.edge(edge) for edge in edges]
    parts += [drawing.port(i, port, "input") for i, port in enumerate(table.inputs)]
    parts += [drawing.box(launch) for launch in table.launches]
    first = len(table.inputs) + len(table.launches)
    parts += [drawing.port(first + i, port, "output") for i, port in enumerate(table.outputs)]
    label = f"graph of {count_text(len(table.launches), 'kernel')}"
    return (
        f'<svg class="graph" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Drawing:
    """The layout of one kernel graph, which draws its boxes and edges."""

    table: KernelTable
    placed: Placed
    left: int
    lane_of: dict[int, int]
    prefix: str
    times: LaunchTimes | None
    flops: int  # of all kernels together

    def _corner(self, box: int) -> tuple[int, int]:
        row, column = self.placed.at[box]
        return self.left + column * (BOX_WIDTH + GAP_X), MARGIN + row * (BOX_HEIGHT + GAP_Y)

    def box(self, launch: Launch) -> str:
        """Return the SVG of a kernel's box."""
        x, y = self._corner(len(self.table.inputs) + launch.number)
        stored = [self.table.values[i] for i in launch.writes]
        shape = ", ".join(
            f"{v.name if len(stored) > 1 else v.dtype} {shape_text(v.shape)}" for v in stored
        )
        kind = launch.kind if launch.kind in KINDS else "other"
        title = f"{launch.number}: {launch.kernel}\n" + "\n".join(launch.origin)
        share = launch.flops / self.flops
        work = f"{flops_text(launch.flops)} · {size_text(launch.bytes_moved)} · {shape}"
        if self.times is not None:
            share = self.times.share(launch.number)
            work = f"{self.times.text(launch.number)} · {flops_text(launch.flops)} · {shape}"
        # The table and the details pane have the full text.
        work = work if len(work) <= BOX_TEXT else f"{work[: BOX_TEXT - 1]}…"
        # A share of a tenth of the total fills the bar, because few kernels have more.
        bar = max(1.0, min(1.0, share * 10) * BOX_WIDTH)
        lines = (
            f'<text class="name" x="10" y="16">{launch.number} · {escape(launch.kernel)}</text>',
            f'<text x="10" y="31">{escape(short_origin(launch.origin, 46))}</text>',
            f'<text class="soft" x="10" y="46">{escape(work)}</text>',
        )
        return (
            f'<g class="k {kind}" data-k="{launch.number}" data-d="{self.prefix}-{launch.number}" '
            f'transform="translate({x} {y})" tabindex="0"><title>{escape(title)}</title>'
            f'<rect class="box" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="3"/>'
            f'<rect class="stripe" width="4" height="{BOX_HEIGHT}"/>'
            f'<rect class="bar" y="{BOX_HEIGHT - 3}" width="{bar:.1f}" height="3"/>'
            f"{''.join(lines)}</g>"
        )

    def port(self, number: int, port: Port, kind: str) -> str:
        """Return the SVG of an input's or output's box."""
        x, y = self._corner(number)
        shape = f"{kind} · {port.dtype} {shape_text(port.shape)}"
        unused = "" if port.launches else " · not read" if kind == "input" else " · passed through"
        return (
            f'<g class="port" data-k="p{number}" transform="translate({x} {y})">'
            f"<title>{escape(f'{port.name}: {shape}')}</title>"
            f'<rect class="box" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="28"/>'
            f'<text class="name" x="22" y="25">{escape(shorten(port.name, 40))}</text>'
            f'<text class="soft" x="22" y="41">{escape(shape + unused)}</text></g>'
        )

    def _key(self, box: int) -> str:
        launch = box - len(self.table.inputs)
        return str(launch) if 0 <= launch < len(self.table.launches) else f"p{box}"

    def edge(self, edge: _Edge) -> str:
        """Return the SVG of an edge, dashed if it only orders two kernels."""
        a, b = edge.a, edge.b
        ax, ay = self._corner(a)
        bx, by = self._corner(b)
        x0, y0, x1, y1 = ax + BOX_WIDTH // 2, ay + BOX_HEIGHT, bx + BOX_WIDTH // 2, by
        if self.placed.at[b][0] == self.placed.at[a][0] + 1:
            middle = (y0 + y1) // 2
            path = f"M{x0} {y0}C{x0} {middle} {x1} {middle} {x1} {y1}"
        else:
            lane = MARGIN + self.lane_of[a] * LANE
            path = _around(x0, y0, x1, y1, lane)
        kind = "e order" if edge.is_order else "e"
        return (
            f'<path class="{kind}" data-a="{self._key(a)}" data-b="{self._key(b)}" d="{path}">'
            f"<title>{escape(edge.text)}</title></path>"
        )


def _around(x0: int, y0: int, x1: int, y1: int, lane: int) -> str:
    """Return a path that leaves a box, runs down a lane and enters another box from above."""
    down, up, r = y0 + 8, y1 - 8, 4
    return (
        f"M{x0} {y0}V{down - r}Q{x0} {down} {x0 - r} {down}H{lane + r}Q{lane} {down} {lane} "
        f"{down + r}V{up - r}Q{lane} {up} {lane + r} {up}H{x1 - r}Q{x1} {up} {x1} {up + r}V{y1}"
    )


# --- The memory timeline ----------------------------------------------------------------------

# Sizes in pixels. LABEL_* is the smallest rectangle with a name; TICKS the most axis numbers.
WIDTH, HEIGHT = 1140, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 10, 34
LABEL_WIDTH, LABEL_HEIGHT = 46, 13
TICKS = 12


def memory_timeline(table: KernelTable) -> str:
    """Return the SVG of an entry's arena, or "" if it has no intermediates."""
    arena = table.arena
    if not arena:
        return ""
    count, peak = len(table.launches), table.totals.arena_peak
    step = (WIDTH - LEFT - RIGHT) / count
    scale = (HEIGHT - TOP - BOTTOM) / peak
    base = HEIGHT - BOTTOM
    parts = _axes(count, peak, step, scale)
    for i, stored in enumerate(arena):
        x, w = LEFT + stored.first * step, (stored.last - stored.first + 1) * step
        h = aligned(stored.size) * scale
        y = base - (stored.offset or 0) * scale - h
        # Consecutive hues are far apart, so that neighbors differ.
        hue = i * 137 % 360
        parts.append(
            f'<rect class="m" data-k="{stored.producer}" x="{x:.1f}" y="{y:.1f}" '
            f'width="{max(0.5, w - 0.5):.1f}" height="{max(0.5, h):.1f}" '
            f'fill="hsl({hue} 52% 66%)"><title>{escape(_describe(stored))}</title></rect>'
        )
        if w >= LABEL_WIDTH and h >= LABEL_HEIGHT:
            parts.append(
                f'<text class="ml" x="{x + 4:.1f}" y="{y + h / 2 + 4:.1f}">'
                f"{escape(stored.name)}</text>"
            )
    parts.append(_live_line(table, step, scale))
    return (
        f'<svg class="memory" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="arena offset over launches">{"".join(parts)}</svg>'
    )


def _describe(stored: Value) -> str:
    size, offset = size_text(stored.size), size_text(stored.offset or 0)
    return (
        f"{stored.name}: {stored.dtype} {shape_text(stored.shape)}, {size} at {offset} "
        f"({stored.offset}), launches {stored.first} to {stored.last}"
    )


def _axes(count: int, peak: int, step: float, scale: float) -> list[str]:
    base = HEIGHT - BOTTOM
    parts = []
    for i in range(5):
        y = base - peak * i / 4 * scale
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">'
            f"{size_text(peak * i / 4)}</text>"
        )
    every = _round_step(count / TICKS)
    for i in range(0, count, every):
        x = LEFT + (i + 0.5) * step
        parts.append(
            f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{base + 15}">{i}</text>'
        )
    parts.append(
        f'<text class="tick" text-anchor="middle" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" '
        f'y="{HEIGHT - 4}">launch</text>'
    )
    return parts


def _round_step(wanted: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is at least `wanted`."""
    unit = 1
    while True:
        for factor in (1, 2, 5):
            if factor * unit >= wanted:
                return factor * unit
        unit *= 10


def _live_line(table: KernelTable, step: float, scale: float) -> str:
    """Return a stepped line of the bytes alive during each launch."""
    live = table.live_bytes()
    base = HEIGHT - BOTTOM
    path = f"M{LEFT} {base - live[0] * scale:.1f}"
    for i, size in enumerate(live):
        path += f"V{base - size * scale:.1f}H{LEFT + (i + 1) * step:.1f}"
    return f'<path class="live" d="{path}"><title>bytes alive</title></path>'
