"""The kernel table: launches with their work, and results with their memory and lifetimes.

It is built from an artifact's manifest. If the schedule is known too, it also has lanes and loop
ranges. It can be printed as aligned text or returned as plain data for JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from runtime.texts import count_text, flops_column, flops_text, short_origin, size_text
from scheduler.emit.schedule import Schedule
from scheduler.ir.ops import Op
from scheduler.kernelize.memory_plan import aligned
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.lower import LoweredKernel

_WORK = "work"
_HEADER = (
    *("#", "kernel", "kind", "origin", "result", "ranges", "items", "lanes"),
    *(_WORK, "moved KiB", "arena offset", "alive"),
)


@dataclass(frozen=True, slots=True)
class Value:
    """The content of a buffer from one write to the next."""

    buffer: int  # index of the buffer in the manifest
    name: str  # "t" and the launch number for an intermediate, else the buffer's name
    kind: str  # kind and size are those of the buffer; so are dtype and shape without a schedule
    dtype: str
    shape: tuple[int, ...]
    size: int  # bytes
    offset: int | None  # offset in the arena in bytes; None if the buffer is not in the arena
    first: int  # the first launch that accesses it
    last: int  # the last launch that accesses it
    producer: int | None  # launch that writes it; None if the caller or an earlier run did


@dataclass(frozen=True, slots=True)
class Nest:
    """The sizes of the loops of one loop nest."""

    ranges: tuple[int, ...]  # outer loops, before merging
    reduced: tuple[tuple[int, ...], ...]  # the loops of each reduction


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: a row of the table."""

    number: int  # position in the entry, from 0
    kernel: str  # kernel, kind, origin, flops and bytes_moved are those of the manifest
    kind: str
    origin: tuple[str, ...]
    items: int  # work-items
    flops: int
    bytes_moved: int
    writes: tuple[int, ...]  # values written, as positions in `KernelTable.values`
    reads: tuple[int, ...]  # values read, in the same way
    lanes: int | None = None  # largest vector width; None without a schedule
    nests: tuple[Nest, ...] = ()  # its loop nests; empty without a schedule


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of an entry, with the name that its model gives it."""

    name: str  # name, dtype and shape are those of the manifest
    dtype: str
    shape: tuple[int, ...]
    # For an input, the launches that read it; for an output, the last launch that writes it. Empty
    # if an input is not read, or if an output is only passed through.
    launches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of one run of an entry."""

    kernels: int  # number of distinct kernel functions
    launches: int  # number of launches
    flops: int
    bytes_moved: int  # bytes read and written
    arena_peak: int  # the highest byte of the arena in use
    arena_unplanned: int  # size of the arena without reuse, in bytes
    arena_live: int  # the maximum number of bytes alive at once, a lower bound for any plan


@dataclass(frozen=True, slots=True)
class KernelTable:
    """The launches of an entry, the values they read and write, and its inputs and outputs."""

    entry: str
    launches: tuple[Launch, ...]
    values: tuple[Value, ...]
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()

    @property
    def arena(self) -> list[Value]:
        """The intermediates, by first launch."""
        return [v for v in self.values if v.offset is not None]

    @property
    def totals(self) -> Totals:
        """The totals of all launches."""
        return Totals(
            len({launch.kernel for launch in self.launches}),
            len(self.launches),
            sum(launch.flops for launch in self.launches),
            sum(launch.bytes_moved for launch in self.launches),
            max(((v.offset or 0) + aligned(v.size) for v in self.arena), default=0),
            sum(aligned(v.size) for v in self.arena),
            max(self.live_bytes(), default=0),
        )

    def live_bytes(self) -> list[int]:
        """Return the bytes of live intermediates during each launch."""
        # by buffer; values in the same buffer follow each other
        spans: dict[int, tuple[int, int, int]] = {}
        for v in self.arena:
            first = spans[v.buffer][0] if v.buffer in spans else v.first
            spans[v.buffer] = (first, v.last, aligned(v.size))
        live = [0] * len(self.launches)
        for first, last, size in spans.values():
            for i in range(first, last + 1):
                live[i] += size
        return live

    def dependencies(self) -> list[tuple[int, int, int | None]]:
        """Return (earlier launch, later launch, value) for each pair of which the later must wait.

        The value is None if the later launch only overwrites memory that the earlier one reads or
        writes. Such pairs are left out if values already imply the order.
        """
        found: dict[tuple[int, int], int | None] = {}
        before = [0] * len(self.launches)  # per launch, a bit mask of the launches it depends on
        users: dict[int, list[int]] = {}  # launches that use the current value of a buffer
        for launch in self.launches:
            for i in launch.reads:
                value = self.values[i]
                if value.producer is not None:
                    found[value.producer, launch.number] = i
                    before[launch.number] |= before[value.producer] | 1 << value.producer
                users.setdefault(value.buffer, []).append(launch.number)
            for i in launch.writes:
                buffer = self.values[i].buffer
                for other in users.get(buffer, ()):
                    if other != launch.number and not before[launch.number] >> other & 1:
                        found.setdefault((other, launch.number), None)
                users[buffer] = [launch.number]
        return [(a, b, i) for (a, b), i in sorted(found.items(), key=lambda e: e[0])]


def kernel_tables(
    manifest: Mapping[str, Any], plans: Mapping[str, Schedule] | None = None
) -> list[KernelTable]:
    """Return the table of each entry; `plans` has the known schedules by entry name."""
    tables = []
    for name, entry in manifest["entries"].items():
        plan = (plans or {}).get(name)
        kernels = [manifest["kernels"][i] for i in entry["launches"]]
        known: Sequence[LoweredKernel | None] = [None] * len(kernels)
        if plan is not None:
            known = plan.lowered
        made = _Values(manifest["buffers"])
        launches = []
        for i, (kernel, lowered) in enumerate(zip(kernels, known, strict=True)):
            launch = _launch(i, kernel, made)
            if lowered is not None:
                made.describe(launch.writes, lowered)
                launch = _with_loops(launch, lowered)
            launches.append(launch)
        inputs = tuple(_input(made, launches, buffer) for buffer in entry["inputs"])
        outputs = tuple(_output(made, buffer) for buffer in entry["outputs"])
        tables.append(KernelTable(name, tuple(launches), tuple(made.values), inputs, outputs))
    return tables


def _input(made: _Values, launches: Sequence[Launch], buffer: int) -> Port:
    given = {i for i, v in enumerate(made.values) if v.buffer == buffer and v.producer is None}
    readers = tuple(launch.number for launch in launches if given & set(launch.reads))
    return _port(made, buffer, readers)


def _output(made: _Values, buffer: int) -> Port:
    written = [v.producer for v in made.values if v.buffer == buffer and v.producer is not None]
    return _port(made, buffer, tuple(written[-1:]))


def _port(made: _Values, buffer: int, launches: tuple[int, ...]) -> Port:
    entry = made.buffers[buffer]
    return Port(entry["name"], entry["dtype"], tuple(entry["shape"]), launches)


class _Values:
    """Tracks the value of each buffer from launch to launch."""

    def __init__(self, buffers: Sequence[Mapping[str, Any]]) -> None:
        self.buffers = buffers
        # buffer -> its current value, as a position in `values`
        self._now: dict[int, int] = {}
        self.values: list[Value] = []

    def read(self, buffer: int, launch: int) -> int:
        """Return the position of the value that a launch reads from a buffer."""
        if buffer not in self._now:
            return self._add(buffer, launch, None)
        at = self._now[buffer]
        self.values[at] = replace(self.values[at], last=launch)
        return at

    def write(self, buffer: int, launch: int, part: str) -> int:
        """Add the value that a launch writes to a buffer; `part` is a suffix of its name."""
        return self._add(buffer, launch, launch, part)

    def describe(self, values: Sequence[int], lowered: LoweredKernel) -> None:
        """Set the values' shape and dtype, which for results in place differ from the buffer's."""
        for i, node in zip(values, lowered.kernel.targets, strict=False):
            self.values[i] = replace(self.values[i], shape=node.shape, dtype=node.dtype.name)

    def _add(self, buffer: int, launch: int, producer: int | None, part: str = "") -> int:
        entry = self.buffers[buffer]
        in_arena = entry["kind"] == "arena"
        self._now[buffer] = len(self.values)
        named = in_arena and producer is not None
        self.values.append(
            Value(
                buffer,
                f"t{producer}{part}" if named else entry["name"],
                entry["kind"],
                entry["dtype"],
                tuple(entry["shape"]),
                entry["size"],
                entry["offset"] if in_arena else None,
                launch,
                launch,
                producer,
            )
        )
        return self._now[buffer]


def _launch(number: int, kernel: Mapping[str, Any], values: _Values) -> Launch:
    # A foreign kernel has no code entry; by convention its first argument is the result.
    code = kernel.get("code", {"writes": 1, "kind": kernel["name"]})
    count = code["writes"]
    reads = tuple(values.read(a, number) for a in dict.fromkeys(kernel["args"][count:]))
    parts = [f".{i}" for i in range(count)] if count > 1 else [""]
    written = zip(kernel["args"][:count], parts, strict=True)
    writes = tuple(values.write(buffer, number, part) for buffer, part in written)
    return Launch(
        number,
        kernel["name"],
        code["kind"],
        tuple(kernel["origin"]),
        prod(kernel["global"]),
        kernel["flops"],
        kernel["bytes"],
        writes,
        reads,
    )


def _with_loops(launch: Launch, lowered: LoweredKernel) -> Launch:
    nests = []
    for body in lowered.kernel.bodies:
        reductions = [n for n in scalar_nodes(body.value) if n.op is Op.ACCUMULATE]
        ranges = tuple(r.size for r in body.ranges if r is not None)
        nests.append(Nest(ranges, tuple(tuple(r.size for r in n.arg[1]) for n in reductions)))
    return replace(launch, kind=lowered.kind, lanes=max(lowered.lanes), nests=tuple(nests))


def source_of(manifest: Mapping[str, Any], kernel: str) -> str:
    """Return the OpenCL C of one kernel, without the functions it calls; "" if unknown."""
    for launch in manifest["kernels"]:
        if launch["name"] == kernel and "code" in launch:
            source: str = manifest["programs"][launch["program"]]["source"]
            return source[launch["code"]["start"] : launch["code"]["end"]].rstrip()
    return ""


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text, such as "1x64x32" or "scalar"."""
    return "x".join(map(str, shape)) or "scalar"


def header(table: KernelTable) -> tuple[str, ...]:
    """Return the column titles; the unit of the work column suits the largest launch."""
    work, _ = flops_column([launch.flops for launch in table.launches])
    return tuple(work if title == _WORK else title for title in _HEADER)


def rows(table: KernelTable) -> list[tuple[object, ...]]:
    """Return the cells under `header`; None for values that the manifest lacks."""
    result: list[tuple[object, ...]] = []
    _, work = flops_column([launch.flops for launch in table.launches])
    for launch, flops in zip(table.launches, work, strict=True):
        stored = [table.values[i] for i in launch.writes]
        main = stored[0] if stored else None
        shape = f"{main.dtype}[{shape_text(main.shape)}]" if main else "-"
        more = f" +{len(stored) - 1}" if len(stored) > 1 else ""
        alive = main.kind if main else "-"
        if main and main.offset is not None:
            alive = f"{main.first}..{main.last}"
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
                alive,
            )
        )
    return result


def ranges_text(launch: Launch) -> str | None:
    """Return the loops of a kernel, such as "25x512 over 64"; None if they are unknown.

    Reductions follow "over"; " | " separates loop nests.
    """
    if not launch.nests:
        return None
    texts = []
    for nest in launch.nests:
        reduced = f" over {', '.join(map(shape_text, nest.reduced))}" if nest.reduced else ""
        texts.append(f"{shape_text(nest.ranges) if nest.ranges else '1'}{reduced}")
    return " | ".join(texts)


def facts(table: KernelTable) -> dict[str, Any]:
    """Return plain data for JSON: the launches, under "kernels", and the totals."""
    kernels = [
        {
            "launch": launch.number,
            "kernel": launch.kernel,
            "kind": launch.kind,
            "origin": list(launch.origin),
            "results": [_result_facts(table.values[i]) for i in launch.writes],
            "nests": [
                {"ranges": list(n.ranges), "reduced": [list(r) for r in n.reduced]}
                for n in launch.nests
            ],
            "items": launch.items,
            "lanes": launch.lanes,
            "flops": launch.flops,
            "bytes": launch.bytes_moved,
        }
        for launch in table.launches
    ]
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
    """Return the totals as one line of text."""
    t = table.totals
    return (
        f"{count_text(t.kernels, 'kernel')}, {count_text(t.launches, 'launch')}, "
        f"{flops_text(t.flops)}, "
        f"{size_text(t.bytes_moved)} moved, arena {size_text(t.arena_peak)} "
        f"({size_text(t.arena_unplanned)} without reuse)"
    )


def table_text(table: KernelTable) -> str:
    """Return header and rows as aligned columns of text."""
    titles = header(table)
    cells = [list(titles), *([_cell(c) for c in row] for row in rows(table))]
    widths = [max(len(line[i]) for line in cells) for i in range(len(titles))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
