"""The kernel table as text and as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from runtime.texts import count_text, flops_column, flops_text, short_origin, size_text
from scheduler.debug.kernel_table import KernelTable, Launch, Nest, Value

_WORK = "work"
_HEADER = (
    "#",
    "kernel",
    "kind",
    "origin",
    "result",
    "ranges",
    "items",
    "lanes",
    _WORK,
    "moved KiB",
    "arena offset",
    "alive",
)


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape for people: "1x64x32", "scalar"."""
    return "x".join(map(str, shape)) or "scalar"


def header(table: KernelTable) -> tuple[str, ...]:
    """Return the titles of the columns; work has the unit that fits the largest launch."""
    return tuple(_work(table)[0] if title == _WORK else title for title in _HEADER)


def _work(table: KernelTable) -> tuple[str, list[float]]:
    return flops_column([launch.flops for launch in table.launches])


def rows(table: KernelTable) -> list[tuple[object, ...]]:
    """Return the cells under `header`; None where a manifest does not say."""
    result: list[tuple[object, ...]] = []
    _, work = _work(table)
    for launch, flops in zip(table.launches, work, strict=True):
        stored = [table.values[i] for i in launch.writes]
        main = stored[0] if stored else None
        shape = f"{main.dtype}[{shape_text(main.shape)}]" if main else "-"
        more = f" +{len(stored) - 1}" if len(stored) > 1 else ""
        result.append(
            (
                launch.number,
                launch.kernel,
                launch.kind,
                short_origin(launch.origin),
                shape + more,
                ranges_text(launch),
                launch.items,
                launch.lanes,
                flops,
                launch.bytes_moved / 1024,
                main.offset if main else None,
                _life_text(main),
            )
        )
    return result


def ranges_text(launch: Launch) -> str | None:
    """Return the loops of a kernel, "25x512 over 64"; None where they are not known."""
    if not launch.nests:
        return None
    return " | ".join(_nest_text(nest) for nest in launch.nests)


def _nest_text(nest: Nest) -> str:
    reduced = f" over {', '.join(map(shape_text, nest.reduced))}" if nest.reduced else ""
    return f"{shape_text(nest.ranges) if nest.ranges else '1'}{reduced}"


def _life_text(stored: Value | None) -> str:
    if stored is None:
        return "-"
    return stored.kind if stored.offset is None else f"{stored.first}..{stored.last}"


def facts(table: KernelTable) -> dict[str, Any]:
    """Return the table as plain data for JSON: kernels, one object per launch, and totals."""
    kernels = []
    for launch in table.launches:
        results = [table.values[i] for i in launch.writes]
        kernels.append(
            {
                "launch": launch.number,
                "kernel": launch.kernel,
                "kind": launch.kind,
                "origin": list(launch.origin),
                "results": [_result_facts(s) for s in results],
                "nests": [
                    {"ranges": list(n.ranges), "reduced": [list(r) for r in n.reduced]}
                    for n in launch.nests
                ],
                "items": launch.items,
                "lanes": launch.lanes,
                "flops": launch.flops,
                "bytes": launch.bytes_moved,
            }
        )
    return {"kernels": kernels, "totals": asdict(table.totals)}


def _result_facts(stored: Value) -> dict[str, Any]:
    return {
        "name": stored.name,
        "kind": stored.kind,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "size": stored.size,
        "arena_offset": stored.offset,
        "first": stored.first,
        "last": stored.last,
    }


def summary(table: KernelTable) -> str:
    """Return the totals on one line."""
    t = table.totals
    return (
        f"{count_text(t.kernels, 'kernel')}, {count_text(t.launches, 'launch')}, "
        f"{flops_text(t.flops)}, "
        f"{size_text(t.bytes_moved)} moved, arena {size_text(t.arena_peak)} "
        f"({size_text(t.arena_unplanned)} without reuse)"
    )


def table_text(table: KernelTable) -> str:
    """Return header and rows in aligned columns."""
    titles = header(table)
    cells = [list(titles), *([_cell(c) for c in row] for row in rows(table))]
    widths = [max(len(line[i]) for line in cells) for i in range(len(titles))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
