"""Emits matrix products of a work-group, with double-buffered operand tiles in local memory.

    c[m, n] = sum(a[m, k] * b[k, n]; k)      64 work-items as 8 x 8, each 8 rows x 8 columns

    a, b -> registers -> sa[0], sb[0]; barrier
    for t:  a, b of tile t+1 -> registers         (in flight during the products)
            c += sa[t % 2] * sb[t % 2]
            registers -> sa[(t+1) % 2], sb[(t+1) % 2]; barrier

All work-items reach the barriers. Those beyond the edge load the last element and store nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node
from scheduler.loops.loop_schedule import DEPTH, LANES, PADDING, LocalTile, array_bytes
from scheduler.render import opencl_c as cl
from scheduler.render.kernel_code import Emitter, Instance, Needs, Val
from scheduler.render.values import Values


def emit_tile(
    emitter: Emitter, values: Values, tile: LocalTile, store: Callable[[Instance], None]
) -> None:
    """Emit the kernel of a matrix product; `store` emits the stores at one coordinate."""
    _Emission(emitter, values, tile).emit(store)


@dataclass(frozen=True, slots=True)
class _Operand:
    """The path of one operand from global to local memory."""

    name: str  # the local array; registers have this name and a number
    load: Node  # the load of the operand from global memory
    across: Atom  # the operand's range besides the reduced one
    # For each element that a work-item moves: its index along `across`, its index along the reduced
    # range, and its place in the local tile (reduced range first) as C text.
    along: list[Ix]
    deep: list[Ix]
    places: list[tuple[str, str]]


class _Emission:
    """The state while one kernel is emitted."""

    def __init__(self, emitter: Emitter, values: Values, tile: LocalTile) -> None:
        self.e, self.v, self.t = emitter, values, tile
        self.steps = -(-tile.depth.size // DEPTH)
        self.batch: dict[Atom, Ix] = {}

    def emit(self, store: Callable[[Instance], None]) -> None:
        """Emit the whole kernel."""
        tile = self.t
        gm, gn = self._coordinates()
        operands = (
            self._operand("sa", tile.left, tile.row, tile.rows, gm),
            self._operand("sb", tile.right, tile.column, tile.columns, gn),
        )
        rows, vectors = tile.rows // tile.side, tile.columns // tile.side // LANES
        sums = [[f"c{r}_{j}" for j in range(vectors)] for r in range(rows)]
        for name in (n for row in sums for n in row):
            self.e.statement(f"float4 {name} = (float4)(0.0f);")
        self._fetch(operands, ixs.ZERO)
        self._put(operands, "0")
        self.e.statement("barrier(CLK_LOCAL_MEM_FENCE);")
        with self.e.loop(f"for (int t = 0; t < {self.steps}; t++)"):
            if self.steps > 1:
                with self.e.loop(f"if (t < {self.steps - 1})"):
                    self._fetch(operands, self._next_step())
            self._multiply(sums)
            if self.steps > 1:
                with self.e.loop(f"if (t < {self.steps - 1})"):
                    self._put(operands, "(t + 1) % 2")
            self.e.statement("barrier(CLK_LOCAL_MEM_FENCE);")
        self._finish(sums, gm, gn, store)

    def _coordinates(self) -> tuple[Ix, Ix]:
        """Emit the work-group's position and return its row and column of tiles."""
        tile = self.t
        high, wide = -(-tile.row.size // tile.rows), -(-tile.column.size // tile.columns)
        self.e.statement("const int item = get_local_id(0);")
        self.e.statement("const int group = get_group_id(0);")
        gn = self._variable("gn", f"group % {wide}", wide)
        gm = self._variable("gm", f"group / {wide} % {high}", high)
        below = wide * high
        for number, r in reversed(list(enumerate(tile.batch))):
            self.batch[r] = self._variable(f"g{number}", f"group / {below} % {r.size}", r.size)
            below *= r.size
        return gm, gn

    def _variable(self, name: str, code: str, size: int) -> Ix:
        self.e.statement(f"const int {name} = {code};")
        atom = ixs.new_range(max(2, size), name)  # a range of size 1 would become a constant
        self.e.name_atom(atom, name, self.e.depth)
        return ixs.of(atom)

    def _clamped(self, name: str, ix: Ix, size: int) -> Ix:
        """Return an index, limited to the last element."""
        if ix.hi < size:
            return ix
        code = self.e.index(ix)
        return self._variable(name, f"{code} < {size - 1} ? {code} : {size - 1}", size)

    def _operand(self, name: str, load: Node, across: Atom, extent: int, group: Ix) -> _Operand:
        """Emit an operand's local array, and the coordinates that a work-item moves."""
        items, tile = self.t.side**2, self.t
        width = extent + PADDING
        align = "__attribute__((aligned(16)))"
        self.e.statement(f"__local float {name}[2][{DEPTH}][{width}] {align};")
        self.e.needs += Needs(work_group=True, local_bytes=array_bytes(extent))
        count = extent * DEPTH // items
        deep_first = ixs.coefficient(load.arg.offset, tile.depth) == 1
        inner = DEPTH if deep_first else extent
        first = self._variable(f"{name}_i", f"item % {inner}", inner)
        second = self._variable(f"{name}_o", f"item / {inner}", items // inner)
        along, deep, places = [], [], []
        for s in range(count):
            moved = ixs.shift(second, s * (items // inner))
            k, i = (first, moved) if deep_first else (moved, first)
            places.append((self.e.index(k), self.e.index(i)))
            whole = ixs.add(ixs.mul(group, extent), i)
            along.append(self._clamped(f"{name}_at{s}", whole, across.size))
            deep.append(k)
        self.e.statement(f"float {', '.join(f'{name}{s}' for s in range(count))};")
        return _Operand(name, load, across, along, deep, places)

    def _next_step(self) -> Ix:
        return self._variable("next", "t + 1", self.steps)

    def _fetch(self, operands: Sequence[_Operand], step: Ix) -> None:
        """Emit the loads of a tile into registers."""
        size = self.t.depth.size
        for op in operands:
            pointer = self.v.pointers.argument(op.load.src[0])
            for s, (i, k) in enumerate(zip(op.along, op.deep, strict=True)):
                whole = ixs.add(ixs.mul(step, DEPTH), k)
                inside = size % DEPTH == 0
                at = whole if inside else self._clamped(f"{op.name}_k{s}", whole, size)
                mapping = {**self.batch, op.across: i, self.t.depth: at}
                offset = ixs.substitute(op.load.arg.offset, mapping)
                code = cl.load(pointer, self.e.index(offset), op.load.dtype, 1)
                if not inside:
                    code = f"{self.e.index(whole)} < {size} ? {code} : 0.0f"
                self.e.statement(f"{op.name}{s} = {code};")

    def _put(self, operands: Sequence[_Operand], half: str) -> None:
        """Emit the stores of the loaded registers to local memory."""
        for op in operands:
            for s, (k, i) in enumerate(op.places):
                self.e.statement(f"{op.name}[{half}][{k}][{i}] = {op.name}{s};")

    def _multiply(self, sums: list[list[str]]) -> None:
        """Emit the products of the tile in local memory."""
        side = self.t.side
        with self.e.loop(f"for (int k = 0; k < {DEPTH}; k++)"):
            for j in range(len(sums[0])):
                at = f"&sb[t % 2][k][(item % {side} + {j * side}) * {LANES}]"
                self.e.statement(f"const float4 b{j} = *(const __local float4*){at};")
            for r, row in enumerate(sums):
                at = f"item / {side} * {len(sums)} + {r}"
                self.e.statement(f"const float4 a{r} = (float4)(sa[t % 2][k][{at}]);")
                for j, name in enumerate(row):
                    self.e.statement(f"{name} = m_fma(a{r}, b{j}, {name});")

    def _finish(
        self, sums: list[list[str]], gm: Ix, gn: Ix, store: Callable[[Instance], None]
    ) -> None:
        """Emit the use of the sums at every coordinate inside the result."""
        tile, lane = self.t, ixs.of(self.v.lane)
        wide = tile.column.size // LANES
        tx = self._variable("tx", f"item % {tile.side}", tile.side)
        ty = self._variable("ty", f"item / {tile.side} * {len(sums)}", tile.rows)
        columns = []
        for j in range(len(sums[0])):
            whole = ixs.add(ixs.mul(gn, tile.columns // LANES), ixs.shift(tx, j * tile.side))
            columns.append((whole, self._clamped(f"n{j}", whole, wide)))
        for r, row in enumerate(sums):
            line = ixs.add(ixs.mul(gm, tile.rows), ixs.shift(ty, r))
            m = self._clamped(f"m{r}", line, tile.row.size)
            for name, (column, n) in zip(row, columns, strict=True):
                at = {**self.batch, tile.row: m, tile.column: ixs.add(ixs.mul(n, LANES), lane)}
                coordinates = {a: (ix, ixs.ZERO) for a, ix in self.batch.items()}
                coordinates |= {tile.row: (m, ixs.ZERO), tile.column: (n, ixs.ZERO)}
                instance = Instance(at, coordinates)
                self.e.remember(self.v.key(tile.node, instance), Val(name, vector=True, depth=0))
                test = f"{self.e.index(line)} < {tile.row.size} && {self.e.index(column)} < {wide}"
                with self.e.loop(f"if ({test})"):
                    store(instance)
