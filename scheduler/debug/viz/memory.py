"""The memory timeline as SVG: arena offset over launches, one rectangle for each intermediate."""

from __future__ import annotations

from html import escape

from runtime.texts import size_text
from scheduler.debug.kernel_table import KernelTable, Value
from scheduler.debug.kernel_text import shape_text
from scheduler.kernelize.memory_plan import aligned

# Pixels; a rectangle gets a name where one fits, and the axis has at most about so many numbers.
WIDTH, HEIGHT = 1140, 360
LEFT, RIGHT, TOP, BOTTOM = 76, 12, 10, 34
LABEL_WIDTH, LABEL_HEIGHT = 46, 13
TICKS = 12


def memory_timeline(table: KernelTable) -> str:
    """Return the SVG of an entry's arena; "" if it has no intermediates."""
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
        # Consecutive hues are far apart, so that neighbours differ.
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
    """Return the bytes that are alive at each launch, as a stair."""
    live = table.live_bytes()
    base = HEIGHT - BOTTOM
    path = f"M{LEFT} {base - live[0] * scale:.1f}"
    for i, size in enumerate(live):
        path += f"V{base - size * scale:.1f}H{LEFT + (i + 1) * step:.1f}"
    return f'<path class="live" d="{path}"><title>bytes alive</title></path>'
