"""The custom kernel of Winograd's convolution F(2x2, 3x3): text, blocks, weights and cost model.

    a tile of 2 x 2 results:  Y = A^T (sum over input channels of U * V) A
                              16 products for each pair of channels instead of 36
    U = G g G^T, from the weights g, on the host         V = B^T d B, from 4 x 4 inputs d

A work-item transforms a block of tiles and keeps V and the products in the core's own cache. It
multiplies them in register tiles: a few tiles by a few vectors of output channels. The
formulas and matrices are from Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks",
2015, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DEFAULT, DeviceSpec

Array = NDArray[Any]

# Matrices of the transforms: G g G^T for weights, B^T d B for inputs, A^T m A for results.
G: Final = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]])
B_T: Final = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
A_T: Final = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])

# Input channels that one iteration of the summing loop handles.
UNROLL: Final = 4
# Accumulators of a register tile, by number of vector registers; the others hold operands.
ACCUMULATORS: Final = {32: 24, 16: 12}
# Limits for the search over blocks, chosen by hand.
LEAST_ROWS: Final = 2  # minimum number of tiles in a register tile
MAX_TILES: Final = 48  # maximum number of tiles of a work-item; more do not fit in the cache
# Size of V for one tile and channel, in bytes: 16 float32.
TILE_BYTES: Final = 64
# Maximum number of bytes of V, which is on a work-item's stack. Threads have 8 MiB on Linux, and 2
# MiB with `ulimit -s unlimited` (glibc).
STACK_BYTES: Final = 3 << 19


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a convolution: 3 x 3 weights, stride and dilation 1, channels innermost."""

    batch: int  # number of images
    height: int  # rows of the inputs
    width: int  # columns of the inputs
    channels: tuple[int, ...]  # channels of each input; the sum covers all of them
    outputs: int  # channels of the results
    top: int  # rows of zeros above the inputs
    left: int  # columns of zeros left of the inputs
    rows: int  # rows of the results
    columns: int  # columns of the results

    @property
    def tiles_down(self) -> int:
        """The number of tiles in a column of an image; the last can hold a single row."""
        return -(-self.rows // 2)

    @property
    def tiles_across(self) -> int:
        """The number of tiles in a row of an image."""
        return -(-self.columns // 2)

    @property
    def tiles(self) -> int:
        """The total number of tiles."""
        return self.batch * self.tiles_down * self.tiles_across

    @property
    def flops(self) -> int:
        """The number of operations, including transforms; a multiply-add counts as two."""
        depth = sum(self.channels)
        # Per tile: 16 multiply-adds, 32 adds for B^T d B, 24 for A^T m A.
        return self.tiles * (32 * depth * self.outputs + 32 * depth + 24 * self.outputs)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The division of the work into work-items and register tiles."""

    lanes: int  # width of a vector of channels
    vectors: int  # vectors of output channels in a register tile
    rows: int  # tiles in a register tile; each is a row of the matrix product
    tiles: int  # tiles of a work-item, a multiple of `rows`
    groups: int  # parts of the output channels; a work-item computes one

    def items(self, shape: Shape) -> int:
        """Return the number of work-items."""
        return -(-shape.tiles // self.tiles) * self.groups


def fits(shape: Shape, spec: DeviceSpec) -> bool:
    """Whether the device supports the shape: whole vectors, enough registers and stack for V."""
    if _most_rows(shape, spec) < LEAST_ROWS:
        return False
    whole = all(c % spec.lanes == 0 for c in (*shape.channels, shape.outputs))
    sizes = [shape.batch * shape.height * shape.width * c for c in shape.channels]
    sizes.append(shape.batch * shape.rows * shape.columns * shape.outputs)
    # Indices in the kernel are int, so each operand must have fewer than 2^31 elements.
    small = max(sizes) < 2**31
    return whole and small and spec.lanes >= UNROLL


@lru_cache(maxsize=1024)
def choose_blocks(shape: Shape, spec: DeviceSpec) -> Blocks:
    """Return the blocks with the fewest cycles by the cost model, for a shape that `fits`."""
    # Ties go to larger register tiles, which load less per multiply-add.
    return min(
        _candidates(shape, spec), key=lambda b: (_cycles(shape, b, spec), -b.vectors, -b.rows)
    )


def gain(shape: Shape, spec: DeviceSpec) -> float:
    """Return the speedup over the direct kernel by the cost model, or 0 if few cycles are saved.

    Args:
        shape: a shape for which `fits` holds.
        spec: the device.
    """
    depth, costs = sum(shape.channels), spec.winograd
    # A 3 x 3 window needs nine products for each pair of channels.
    products = 9 * depth * shape.outputs
    pixels = shape.batch * shape.rows * shape.columns
    part = costs.direct_part / (1.0 if shape.outputs > spec.lanes else costs.lone_vector)
    # The peak is `issue` multiply-adds of `lanes` elements each per cycle.
    direct = products * pixels / (spec.loops.issue * spec.lanes * part * spec.cores)
    here = _cycles(shape, choose_blocks(shape, spec), spec)
    return direct / here if (direct - here) * spec.cores >= costs.least_saved else 0.0


def pays(shape: Shape, spec: DeviceSpec) -> bool:
    """Whether this kernel is clearly faster than the direct one."""
    return fits(shape, spec) and gain(shape, spec) >= spec.winograd.least_gain


def pays_on_all_cpus(shape: Shape, spec: DeviceSpec) -> bool:
    """Whether it is clearly faster on the default device row: the same answer for all CPUs."""
    return pays(shape, DEFAULT) and fits(shape, spec)


def _most_rows(shape: Shape, spec: DeviceSpec) -> int:
    """Return the maximum tiles of a register tile; 0 if the device's registers are not known."""
    # V of at least one register tile must fit on the stack.
    room = STACK_BYTES // (TILE_BYTES * sum(shape.channels))
    return min(room, ACCUMULATORS.get(spec.vector_registers, 0))


def _candidates(shape: Shape, spec: DeviceSpec) -> Iterator[Blocks]:
    """Yield the blocks to choose from for a shape that `fits`."""
    depth, lanes = sum(shape.channels), spec.lanes
    most = spec.l2_bytes // spec.winograd.cache_part // (TILE_BYTES * depth)
    for groups in (1, 2, 4, 8):
        if shape.outputs % (lanes * groups):
            continue
        vectors = shape.outputs // lanes // groups
        for v in range(1, min(spec.loops.max_vectors, vectors) + 1):
            if vectors % v:
                continue
            rows = min(_most_rows(shape, spec), ACCUMULATORS[spec.vector_registers] // v)
            for r in range(LEAST_ROWS, rows + 1):
                # Padding beyond the last whole register tile gains nothing.
                for tiles in range(r, max(r, min(MAX_TILES, most, shape.tiles + r - 1)) + 1, r):
                    yield Blocks(lanes, v, r, tiles, groups)


def _cycles(shape: Shape, blocks: Blocks, spec: DeviceSpec) -> float:
    """Return the estimated cycles of the launch, including idle cores at its end."""
    depth, lanes, costs = sum(shape.channels), blocks.lanes, spec.winograd
    v, r = blocks.vectors, blocks.rows
    outputs = shape.outputs // blocks.groups
    count = min(blocks.tiles, shape.tiles)
    # Sums of one item: 16 elements of a transformed tile, panels of output channels, register
    # tiles.
    sums = 16 * (outputs // lanes // v) * -(-count // r)
    work = v * r / spec.loops.issue * (costs.lone_vector if v == 1 else 1.0) + costs.load * (v + r)
    # A step takes at least its latency, and at least the time to load its weights.
    step = max(work, spec.loops.latency, 4 * v * lanes / costs.near_bytes)
    one = sums * (depth * step + costs.sum + 2 * v * r)
    one += count * (depth // lanes * costs.input + outputs // lanes * costs.output) + costs.item
    items = blocks.items(shape)
    # Bytes of one item's weights: 16 float32 for each pair of channels. Items of a group run one
    # after another, and load them from memory again if they do not stay in the L2 cache.
    weights = 64 * depth * outputs
    again = 1 if 2 * weights <= spec.l2_bytes else items // blocks.groups
    waiting = weights * blocks.groups * again / costs.far_bytes / spec.cores
    # On average the last core finishes half an item after the others.
    return one * (items / spec.cores + 0.5) + waiting


def transformed(weight: Array, blocks: Blocks) -> Array:
    """Return U as float32 (panels, 16, depth, channels of a panel), from (outputs, depth, 3, 3)."""
    outputs, depth = weight.shape[:2]
    wide = np.einsum("ai,ocij,bj->aboc", G, weight.astype(np.float64), G)
    # With the panel outermost, an item reads its weights in the order of storage.
    panel = blocks.vectors * blocks.lanes
    cut = wide.reshape(16, outputs // panel, panel, depth)
    return np.asarray(cut.transpose(1, 0, 3, 2).astype(np.float32), order="C")


@dataclass(frozen=True)
class Reference:
    """The kernel in numpy, in float64: (inputs..., U) -> (batch, rows, columns, outputs)."""

    shape: Shape

    def __call__(self, *arrays: Array) -> Array:
        """Return the kernel's result."""
        s = self.shape
        *inputs, packed = arrays
        depth = sum(s.channels)
        u = packed.astype(np.float64).transpose(1, 2, 0, 3).reshape(4, 4, depth, s.outputs)
        down, across = s.tiles_down, s.tiles_across
        # The padded image has room for whole tiles, even if the last one is cut off at the end.
        x = np.zeros((s.batch, 2 * down + 2 + s.height, 2 * across + 2 + s.width, depth))
        x[:, s.top : s.top + s.height, s.left : s.left + s.width] = np.concatenate(inputs, 3)
        d = np.empty((4, 4, s.batch, down, across, depth))
        for i in range(4):
            for j in range(4):
                d[i, j] = x[:, i : i + 2 * down : 2, j : j + 2 * across : 2]
        v = np.einsum("ai,bj,ijnhwc->abnhwc", B_T, B_T, d)
        m = np.einsum("abnhwc,abco->abnhwo", v, u)
        y = np.einsum("ya,xb,abnhwo->nhywxo", A_T, A_T, m)
        whole = y.reshape(s.batch, 2 * down, 2 * across, s.outputs)
        cut: Array = whole[:, : s.rows, : s.columns].astype(np.float32)
        return cut


# --- Text -------------------------------------------------------------------------------------


def kernel_source(shape: Shape, blocks: Blocks) -> str:
    """Return the kernel's source; its parameters are in0, in1, ... for the inputs, then U.

    for each tile of the work-item:                                _forward: v = V
    for each panel of output channels, for each register tile:     _products: m = sums of U * V
                                                                   _back: A^T m A, and the epilogue
    """
    depth = sum(shape.channels) // blocks.lanes
    lines = [*_head(shape, blocks, depth), *_forward(shape, blocks, depth)]
    lines += [*_products(shape, blocks, depth), *_back(shape, blocks), "  }", "}"]
    return "\n".join(lines)


def _head(shape: Shape, blocks: Blocks, depth: int) -> list[str]:
    """Return the declarations at the start of the kernel."""
    n, vector = blocks.lanes, f"float{blocks.lanes}"
    count = -(-shape.tiles // blocks.tiles)
    return [
        # v has a row for each of the 16 elements of a transformed tile. Each has one more vector,
        # because rows a power of two apart would compete for few cache lines.
        f"{vector} v[{16 * (blocks.tiles * depth + 1)}], m[{16 * blocks.rows * blocks.vectors}];",
        f"const int group = get_global_id(0) / {count};",
        f"const int first = get_global_id(0) % {count} * {blocks.tiles};",
        f"const int tiles = min({blocks.tiles}, {shape.tiles} - first);",
        f"/* V: the last tile once more, up to whole register tiles; {n} channels at once */",
    ]


def _place(shape: Shape) -> str:
    """Return statements that compute the column, row and image of `tile`."""
    across, down = shape.tiles_across, shape.tiles_down
    image = f"tile / {across * down}" if shape.batch > 1 else "0"
    row = f"tile / {across} % {down}" if shape.batch > 1 else f"tile / {across}"
    return f"const int tx = tile % {across}, ty = {row}, image = {image};"


def _forward(shape: Shape, blocks: Blocks, depth: int) -> Iterator[str]:
    """Yield the transform of the inputs to V."""
    vector, h, w = f"float{blocks.lanes}", shape.height, shape.width
    whole = f"(tiles + {blocks.rows - 1}) / {blocks.rows} * {blocks.rows}"
    yield f"for (int i = 0; i < {whole}; i++) {{"
    yield "  const int tile = first + min(i, tiles - 1);"
    yield f"  {_place(shape)}"
    yield f"  const int y = ty * 2 - {shape.top}, x = tx * 2 - {shape.left};"
    # Most tiles are completely inside; one test for all 16 loads avoids 16 separate tests.
    yield f"  const int inside = y >= 0 & x >= 0 & y <= {h - 4} & x <= {w - 4};"
    at = 0
    for number, channels in enumerate(shape.channels):
        start = f"((image * {h} + y) * {w} + x) * {channels}"
        yield f"  for (int c = 0; c < {channels // blocks.lanes}; c++) {{"
        yield f"    const int at = {start} + c * {blocks.lanes};"
        yield f"    {vector} {', '.join(f'd{i}{j}' for i in range(4) for j in range(4))};"
        for safe in (True, False):
            yield "    if (inside) {" if safe else "    } else {"
            for i in range(4):
                for j in range(4):
                    offset = (i * w + j) * channels
                    load = f"M_LOAD(float, {blocks.lanes}, in{number} + (at + {offset}))"
                    test = f"y >= {-i} & y < {h - i} & x >= {-j} & x < {w - j}"
                    zero = f"({vector})(0.0f)"
                    # An if statement instead of ?: because elements outside must not be read.
                    other = f"d{i}{j} = {zero}; if ({test}) d{i}{j} = {load};"
                    yield f"      d{i}{j} = {load};" if safe else f"      {other}"
        yield "    }"
        for j in range(4):
            terms = _combined([f"d{i}{j}" for i in range(4)])
            yield f"    const {vector} {', '.join(f'e{i}{j} = {t}' for i, t in enumerate(terms))};"
        for i in range(4):
            for j, term in enumerate(_combined([f"e{i}{k}" for k in range(4)])):
                # Each of the 16 elements has its own plane, so that a matrix product reads V
                # consecutively.
                row = (4 * i + j) * (blocks.tiles * depth + 1) + at
                yield f"    v[i * {depth} + c + {row}] = {term};"
        yield "  }"
        at += channels // blocks.lanes
    yield "}"


def _combined(d: list[str]) -> list[str]:
    """Return B^T d."""
    return [f"{d[0]} - {d[2]}", f"{d[1]} + {d[2]}", f"{d[2]} - {d[1]}", f"{d[1]} - {d[3]}"]


def _products(shape: Shape, blocks: Blocks, depth: int) -> Iterator[str]:
    """Yield the matrix products of U and V, up to the loop that `_back` continues."""
    n, vs, rs = blocks.lanes, range(blocks.vectors), range(blocks.rows)
    vector, channels = f"float{n}", depth * n
    panel = blocks.vectors * n
    panels = shape.outputs // panel // blocks.groups
    row = blocks.tiles * depth + 1
    yield f"for (int panel = group * {panels}; panel < (group + 1) * {panels}; panel++) {{"
    yield f"  for (int i = 0; i < tiles; i += {blocks.rows}) {{"
    yield "    for (int t = 0; t < 16; t++) {"
    # V is read through a float pointer: each scalar is spread over the lanes of a vector of U.
    yield f"      const float* q = (const float*)(v + (t * {row} + i * {depth}));"
    weights = f"in{len(shape.channels)} + (panel * 16 + t) * {channels * panel}"
    yield f"      const __global float* u = {weights};"
    for r in rs:
        yield f"      {vector} {', '.join(f'a{r}_{j} = ({vector})(0.0f)' for j in vs)};"
    yield f"      for (int k = 0; k < {channels}; k += {UNROLL}) {{"
    for k in range(UNROLL):
        for j in vs:
            at = f"u + (k * {panel} + {k * panel + j * n})"
            yield f"        const {vector} u{k}_{j} = M_LOAD(float, {n}, {at});"
        for r in rs:
            yield f"        const {vector} s{k}_{r} = ({vector})(q[k + {r * channels + k}]);"
            for j in vs:
                yield f"        a{r}_{j} = m_fma(s{k}_{r}, u{k}_{j}, a{r}_{j});"
    yield "      }"
    for r in rs:
        for j in vs:
            at = f"t * {blocks.rows * blocks.vectors} + {r * blocks.vectors + j}"
            yield f"      m[{at}] = a{r}_{j};"
    yield "    }"


def _back(shape: Shape, blocks: Blocks) -> Iterator[str]:
    """Yield the transform of the products to results, and the epilogue."""
    n, vector = blocks.lanes, f"float{blocks.lanes}"
    columns, outputs = shape.columns, shape.outputs
    yield f"    for (int r = 0; r < min({blocks.rows}, tiles - i); r++) {{"
    yield "      const int tile = first + i + r;"
    yield f"      {_place(shape)}"
    yield f"      const int at = ((image * {shape.rows} + ty * 2) * {columns} + tx * 2) * {outputs}"
    yield f"        + panel * {blocks.vectors * n};"
    yield f"      for (int j = 0; j < {blocks.vectors}; j++) {{"
    step = blocks.rows * blocks.vectors
    for t in range(16):
        yield f"        const {vector} m{t} = m[r * {blocks.vectors} + j + {t * step}];"
    for j in range(4):
        a, b, c, d = (f"m{4 * i + j}" for i in range(4))
        yield f"        const {vector} z0{j} = {a} + {b} + {c}, z1{j} = {b} - {c} - {d};"
    yield f"        {vector} result[4];"
    for y in range(2):
        yield f"        result[{2 * y}] = z{y}0 + z{y}1 + z{y}2;"
        yield f"        result[{2 * y + 1}] = z{y}1 - z{y}2 - z{y}3;"
    yield "        #pragma unroll"
    yield "        for (int p = 0; p < 4; p++) {"
    # The last tile of an image with odd size has a row or column outside the result.
    if shape.rows % 2:
        yield f"          if (ty * 2 + p / 2 >= {shape.rows}) continue;"
    if columns % 2:
        yield f"          if (tx * 2 + p % 2 >= {columns}) continue;"
    offset = f"p / 2 * {columns * outputs} + p % 2 * {outputs} + j * {n}"
    yield f"          EPILOGUE(result[p], at + {offset});"
    yield "        }"
    yield "      }"
    yield "    }"
