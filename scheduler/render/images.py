"""Images: what the texture cache of a GPU reads, four elements a texel.

    t[h, w, c] in a buffer, at (h*W + w)*C + c     ->     image of W*C/4 x H texels,
                                                          t[h, w, 4*k .. 4*k+3] at (w*C/4 + k, h)

Intermediates and packed weights may be images; inputs, outputs and states stay buffers, as callers
fill and read those. An intermediate is one if every kernel writes it in whole texels and reads
whole texels or a component that is known when the kernel is generated. That is found out by
lowering: what an access does not fit is lowered again as a buffer (`ImagePlan.again`).

Coordinates outside an image read as zero. So a convolution's zero padding costs nothing where the
padded axis is the outermost one of rows or of columns: the predicate is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Final, NamedTuple

from scheduler.device import spec as device_spec
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.index import Atom, Ix, Predicate
from scheduler.ir.node import Node
from scheduler.loops.pack import PackedWeight
from scheduler.loops.place import Layout, Place, PlacedStore
from scheduler.render import opencl_c as clang
from scheduler.render.emitter import Val

if TYPE_CHECKING:
    from scheduler.render.pointers import Argument
    from scheduler.render.values import Instance, Values

TEXEL: Final = 4  # elements: CL_RGBA
DTYPES: Final = (dt.float32, dt.float16)
# What is read outside is zero.
SAMPLER: Final = (
    "__constant sampler_t m_nearest =\n"
    "  CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_CLAMP | CLK_FILTER_NEAREST;\n"
)


@dataclass(frozen=True, slots=True)
class Image:
    """Texels of a two-dimensional image."""

    width: int
    height: int

    def fits(self) -> bool:
        """Whether the device in force takes it."""
        most = device_spec.current().images
        return most is not None and self.width <= most.max_width and self.height <= most.max_height


class Texel(NamedTuple):
    """An access to an image.

    Attributes:
        x, y: coordinates.
        component: of the texel; None for all four.
        by_axis: whether a coordinate is outside the image where an outermost index is.
    """

    x: Ix
    y: Ix
    component: int | None
    by_axis: bool


@dataclass(frozen=True, slots=True)
class ImageTensor:
    """An intermediate that is stored as an image.

    Attributes:
        image: its texels.
        shape: of the tensor.
        rows, columns: its axes in the order of memory; the last column axis is four to a texel.
    """

    image: Image
    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def at(self, index: tuple[Ix, ...], lane: Atom) -> Texel | None:
        """Return the texel of an access; None where it crosses texels, or its component is unknown.

        Args:
            index: logical index of the element, of the first one where lanes move it.
            lane: the range of the lanes.
        """
        inner = _quarter(index[self.columns[-1]], lane)
        if inner is not None:
            parts = [index[a] for a in self.columns[:-1]] + [inner[0]]
            sizes = [self.shape[a] for a in self.columns[:-1]]
            x = ixs.flatten(parts, [*sizes, self.shape[self.columns[-1]] // TEXEL])
            y = ixs.flatten([index[a] for a in self.rows], [self.shape[a] for a in self.rows])
            return Texel(x, y, inner[1], by_axis=True)
        order = (*self.rows, *self.columns)
        whole = ixs.flatten([index[a] for a in order], [self.shape[a] for a in order])
        inner = _quarter(whole, lane)
        if inner is None:
            return None
        width = self.image.width
        x, y = ixs.mod(inner[0], width), ixs.floordiv(inner[0], width)
        return Texel(x, y, inner[1], by_axis=False)

    def is_zero_outside(self, index: tuple[Ix, ...], bound: tuple[Ix, int, int]) -> bool:
        """Whether coordinates are outside the image wherever a bound of the index is broken."""
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
    """Which tensors of an entry point are images, as far as kernels are lowered.

    Attributes:
        tensors: intermediates that are.
        weights: packed weights that are.
        refused: intermediates that some access does not fit.
    """

    tensors: dict[Node, ImageTensor] = field(default_factory=dict)
    weights: dict[PackedWeight, Image] = field(default_factory=dict)
    refused: dict[Node, None] = field(default_factory=dict)

    def again(self) -> ImagePlan | None:
        """Return the plan to lower all kernels with once more, None if this one held."""
        if self.refused.keys().isdisjoint(self.tensors):
            return None
        return ImagePlan(refused=dict(self.refused))

    def offer(self, store: PlacedStore, layout: Layout) -> None:
        """Make a result an image, if it may be one.

        Args:
            store: of a result whose layout is up to us.
            layout: chosen for it.
        """
        target = store.target
        if target in self.refused or store.row is not None or target.dtype not in DTYPES:
            return
        tensor = _tensor_of(target.shape, layout.order)
        if tensor is not None:
            self.tensors[target] = tensor

    def image_of(self, argument: Argument) -> Image | None:
        """Return the image that an argument is, None for a buffer."""
        if isinstance(argument, PackedWeight):
            return self.weights.get(argument)
        tensor = self.tensors.get(argument)
        return None if tensor is None else tensor.image

    def parameter(self, argument: Argument, name: str, *, written: bool) -> str | None:
        """Return the declaration of an image parameter, None for a buffer."""
        if self.image_of(argument) is None:
            return None
        return f"__{'write' if written else 'read'}_only image2d_t {name}"

    # --- accesses -----------------------------------------------------------------------------

    def read(self, values: Values, load: Node, instance: Instance) -> Val | None:
        """Emit a load from an image; None if its source is none, which is noted if it should be.

        Args:
            values: of the kernel.
            load: placed LOAD.
            instance: where it is evaluated.
        """
        source, place = load.src[0], load.arg
        tensor = self.tensors.get(source)
        valid = ixs.substitute_predicate(place.valid, instance.mapping)
        if tensor is None or valid == ixs.NEVER:
            return None
        index = tuple(ixs.substitute(ix, instance.mapping) for ix in place.index)
        at = tensor.at(index, values.lane)
        gates: Predicate = valid
        if at is not None and at.by_axis and place.fill == 0:
            gates = tuple(b for b in valid if not tensor.is_zero_outside(index, b))
        moving = at is None or any(values.moves(ix) for ix in (at.x, at.y, *(g[0] for g in gates)))
        if at is None or moving or (at.component is None and values.lanes != TEXEL):
            self.refused[source] = None
            return None
        return _texel(values, load, at, gates)

    def read_packed(self, values: Values, packed: PackedWeight, offset: Ix) -> Val | None:
        """Emit a load of four elements of a packed weight; None if it is a buffer."""
        image = self.weights.get(packed)
        if image is None:
            image = _weight_image(packed) if values.lanes == TEXEL else None
            if image is None:
                return None
            self.weights[packed] = image
        whole = ixs.floordiv(offset, TEXEL)
        x, y = ixs.mod(whole, image.width), ixs.floordiv(whole, image.width)
        name = values.pointers.argument(packed)
        code = f"read_imagef({name}, m_nearest, (int2)({values.e.index(x)}, {values.e.index(y)}))"
        depth = max(values.e.depth_of(x), values.e.depth_of(y))
        return values.e.define(("texel", name, x, y), "float4", code, vector=True, depth=depth)

    def write(
        self, values: Values, store: PlacedStore, instance: Instance, name: str, code: str
    ) -> str | None:
        """Return the statement that stores four elements; None if the result is a buffer.

        Args:
            values: of the kernel.
            store: of the body.
            instance: where it is evaluated.
            name: of the parameter.
            code: what is stored, lanes wide if the offset moves with the lane.
        """
        tensor = self.tensors.get(store.target)
        if tensor is None:
            return None
        index = tuple(ixs.substitute(ix, instance.mapping) for ix in store.index)
        at = tensor.at(index, values.lane)
        whole = at is not None and at.component is None and values.lanes == TEXEL
        if at is None or not whole or values.moves(at.x) or values.moves(at.y):
            self.refused[store.target] = None
            return None
        x, y = values.e.index(at.x), values.e.index(at.y)
        return f"write_imagef({name}, (int2)({x}, {y}), {code});"


def _texel(values: Values, load: Node, at: Texel, gates: Predicate) -> Val:
    place: Place = load.arg
    x, y, component, _ = at
    name = values.pointers.argument(load.src[0])
    code = f"read_imagef({name}, m_nearest, (int2)({values.e.index(x)}, {values.e.index(y)}))"
    depth = max(values.e.depth_of(x), values.e.depth_of(y))
    if gates:
        condition = values.condition(gates)
        fill = clang.widen(clang.literal(place.fill, load.dtype), load.dtype, TEXEL)
        code, depth = f"{condition.code} ? {code} : {fill}", max(depth, condition.depth)
    key = ("texel", name, x, y, gates, place.fill)
    found = values.e.define(key, "float4", code, vector=True, depth=depth)
    if component is None:
        return found
    return Val(f"{found.code}.s{component}", vector=False, depth=found.depth)


def _quarter(ix: Ix, lane: Atom) -> tuple[Ix, int | None] | None:
    """Return (ix / 4, component, None if lanes run over a texel); None if neither is known."""
    step = ixs.coefficient(ix, lane)
    start = ixs.substitute(ix, {lane: ixs.ZERO})
    if step not in (0, 1) or any(c % TEXEL for _, c in start.terms):
        return None
    component = start.const % TEXEL
    if step and component:
        return None
    return ixs.floordiv(start, TEXEL), None if step else component


def _tensor_of(shape: tuple[int, ...], order: Sequence[int]) -> ImageTensor | None:
    """Return how a tensor is an image, None if it is none.

    Columns are the two innermost axes of a picture, the innermost one of a matrix, or more or fewer
    if that is too wide or too high.
    """
    if not order or shape[order[-1]] % TEXEL:
        return None
    long = [i for i, a in enumerate(order) if shape[a] > 1] or [0]
    natural = long[-2] if len(long) > 2 else long[-1]
    splits = (natural, *range(natural - 1, -1, -1), *range(natural + 1, len(order)))
    for at in splits:
        rows, columns = tuple(order[:at]), tuple(order[at:])
        image = Image(prod(shape[a] for a in columns) // TEXEL, prod(shape[a] for a in rows))
        if image.fits():
            return ImageTensor(image, shape, rows, columns)
    return None


def _weight_image(packed: PackedWeight) -> Image | None:
    """Return the image of a packed weight, split where one of its axes ends; None if it is none."""
    size = packed.data.size
    if packed.source.dtype not in DTYPES or size % TEXEL:
        return None
    steps = {s for strides in packed.strides.values() for s in strides if s % TEXEL == 0 and s}
    widths = sorted(step // TEXEL for step in {*steps, size})
    # As many rows as columns, about: the cache holds tiles.
    images = [Image(w, size // TEXEL // w) for w in widths if size // TEXEL % w == 0]
    fitting = [i for i in images if i.fits()]
    return min(fitting, key=lambda i: max(i.width, i.height), default=None)


def image_prelude(text: str) -> str:
    """Return what kernels that read images need before them."""
    return SAMPLER if "m_nearest" in text else ""


def texel_bytes(dtype: dt.DType) -> int:
    """Return the bytes of a texel of an element type."""
    return TEXEL * dtype.itemsize


def image_arguments(plan: ImagePlan, arguments: Collection[Argument]) -> dict[Argument, Image]:
    """Return those arguments that are images."""
    found = {a: plan.image_of(a) for a in arguments}
    return {a: image for a, image in found.items() if image is not None}
