"""Chooses which tensors are stored as OpenCL images, and computes their texel coordinates.

GPUs read images through their texture cache. A texel holds four elements:

    t[h, w, c] in a buffer, at (h*W + w)*C + c     ->     image of W*C/4 x H texels,
                                                          t[h, w, 4*k .. 4*k+3] at (w*C/4 + k, h)

Inputs, outputs and states remain buffers. An intermediate can be an image if every kernel writes
whole texels of it, and reads whole texels or a component known at compile time. Lowering detects
tensors that do not fit and lowers again with them as buffers (`ImagePlan.again`). Reads outside an
image return zero, so zero padding along the outermost axis of rows or columns needs no predicate,
unless texels split that axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final, NamedTuple

from scheduler.device.spec import Images
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix
from scheduler.ir.node import Node
from scheduler.loops.pack import Argument, PackedWeight
from scheduler.loops.place import Layout, PlacedStore

TEXEL: Final = 4  # elements of a texel (CL_RGBA)
DTYPES: Final = (dt.float32, dt.float16)


@dataclass(frozen=True, slots=True)
class Image:
    """Size of a two-dimensional image in texels."""

    width: int
    height: int

    def fits(self, most: Images) -> bool:
        """Whether the image is within the maximum size of a device."""
        return self.width <= most.max_width and self.height <= most.max_height

    def holds(self, x: Ix, y: Ix) -> bool:
        """Whether coordinates are known to be inside."""
        return min(x.lo, y.lo) >= 0 and x.hi < self.width and y.hi < self.height


class Texel(NamedTuple):
    """An access to an image."""

    x: Ix
    y: Ix
    component: int | None  # component of the texel, 0 to 3; None for all four
    by_axis: bool  # whether an outermost index out of range puts a coordinate outside the image


@dataclass(frozen=True, slots=True)
class ImageTensor:
    """An intermediate that is stored as an image."""

    image: Image
    shape: tuple[int, ...]
    # axes of rows and columns in memory order; four elements of the last one form a texel
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def at(self, index: tuple[Ix, ...], lane: Atom) -> Texel | None:
        """Return the texel of an element that `lane` moves; None if unknown or unaligned."""
        inner = _split_texel(index[self.columns[-1]], lane)
        if inner is not None:
            parts = [index[a] for a in self.columns[:-1]] + [inner[0]]
            sizes = [self.shape[a] for a in self.columns[:-1]]
            x = ixs.flatten(parts, [*sizes, self.shape[self.columns[-1]] // TEXEL])
            y = ixs.flatten([index[a] for a in self.rows], [self.shape[a] for a in self.rows])
            return Texel(x, y, inner[1], by_axis=True)
        order = (*self.rows, *self.columns)
        whole = ixs.flatten([index[a] for a in order], [self.shape[a] for a in order])
        inner = _split_texel(whole, lane)
        if inner is None:
            return None
        width = self.image.width
        x, y = ixs.mod(inner[0], width), ixs.floordiv(inner[0], width)
        return Texel(x, y, inner[1], by_axis=False)

    def is_zero_outside(self, index: tuple[Ix, ...], bound: tuple[Ix, int, int]) -> bool:
        """Whether coordinates are outside the image wherever a bound of the index is violated."""
        ix, low, high = bound
        for axes in (self.rows, self.columns):
            long = [a for a in axes if self.shape[a] > 1]
            axis = long[0] if long else None
            if axis is None or axis == self.columns[-1]:
                continue
            if index[axis] is ixs.shift(ix, -low) and high - low == self.shape[axis] - 1:
                return True
        return False


@dataclass(slots=True)
class ImagePlan:
    """The tensors of an entry point that are images, as known while kernels are lowered."""

    most: Images  # maximum image size of the device
    tensors: dict[Node, ImageTensor] = field(default_factory=dict)
    weights: dict[PackedWeight, Image] = field(default_factory=dict)
    # tensors with an access that does not fit an image
    refused: dict[Node, None] = field(default_factory=dict)

    def again(self) -> ImagePlan | None:
        """Return the plan for lowering all kernels again; None if this plan is valid."""
        if self.refused.keys().isdisjoint(self.tensors):
            return None
        return ImagePlan(self.most, refused=dict(self.refused))

    def anew(self) -> ImagePlan:
        """Return a plan with the same intermediates, to render one of its kernels again."""
        return ImagePlan(self.most, dict(self.tensors))

    def offer(self, store: PlacedStore, layout: Layout) -> None:
        """Make a result an image, if possible."""
        target = store.target
        if target in self.refused or store.row is not None or target.dtype not in DTYPES:
            return
        tensor = _tensor_of(target.shape, layout.order, self.most)
        if tensor is not None:
            self.tensors[target] = tensor

    def image_of(self, argument: Argument) -> Image | None:
        """Return the image that stores an argument; None for a buffer."""
        if isinstance(argument, PackedWeight):
            return self.weights.get(argument)
        tensor = self.tensors.get(argument)
        return None if tensor is None else tensor.image


def _split_texel(ix: Ix, lane: Atom) -> tuple[Ix, int | None] | None:
    """Return (ix / 4, component, or None if lanes run over a texel); None if it is not aligned."""
    step = ixs.coefficient(ix, lane)
    start = ixs.substitute(ix, {lane: ixs.ZERO})
    if step not in (0, 1) or any(c % TEXEL for _, c in start.terms):
        return None
    component = start.const % TEXEL
    if step and component:
        return None
    return ixs.floordiv(start, TEXEL), None if step else component


def _tensor_of(shape: tuple[int, ...], order: Sequence[int], most: Images) -> ImageTensor | None:
    """Return a tensor as an image whose columns are its innermost axes; None if impossible."""
    if not order or shape[order[-1]] % TEXEL:
        return None
    long = [i for i, a in enumerate(order) if shape[a] > 1] or [0]
    natural = long[-2] if len(long) > 2 else long[-1]
    splits = (natural, *range(natural - 1, -1, -1), *range(natural + 1, len(order)))
    for at in splits:
        rows, columns = tuple(order[:at]), tuple(order[at:])
        image = Image(prod(shape[a] for a in columns) // TEXEL, prod(shape[a] for a in rows))
        if image.fits(most):
            return ImageTensor(image, shape, rows, columns)
    return None


def weight_image(packed: PackedWeight, most: Images) -> Image | None:
    """Return the image of a packed weight, with rows that end where an axis does, or None."""
    size = packed.data.size
    if packed.source.dtype not in DTYPES or size % TEXEL:
        return None
    steps = {s for strides in packed.strides.values() for s in strides if s % TEXEL == 0 and s}
    widths = sorted(step // TEXEL for step in {*steps, size})
    # The texture cache holds tiles, so width and height should be about equal.
    images = [Image(w, size // TEXEL // w) for w in widths if size // TEXEL % w == 0]
    fitting = [i for i in images if i.fits(most)]
    return min(fitting, key=lambda i: max(i.width, i.height), default=None)


def texel_bytes(dtype: dt.DType) -> int:
    """Return the bytes per texel of an element type."""
    return TEXEL * dtype.itemsize
