"""Draws flat upright objects into a picture: sprites, boxes and slanted sides.

A *card* is a sprite with an alpha channel in several sizes. Objects are blended with the exact
share of each pixel that they cover.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.simulator.world.curves import Floats
from tools.simulator.world.painting.backdrop import Picture
from tools.simulator.world.painting.light import BLACK, WHITE, Floats32, Lighting
from tools.simulator.world.view import Bytes

# Planes of a sprite: coverage, reflected brightness, U and V less 128, and emitted brightness.
PLANES = 5
# If a sprite pixel is wider than this many picture pixels, it is copied without interpolation.
_COARSE = 3.0
# Sprites are halved until a side is at most this many pixels, or has an odd number of them.
_SMALLEST_PX = 6
# Boxes narrower than this do not change the chroma planes.
_COLOUR_PX = 2.0

# Sides narrower than this are not drawn.
_SIDE_PX = 1.2

Sprite = NDArray[np.float32]


class Frame(NamedTuple):
    """The rectangle of an object in the picture; pixel i extends from i to i + 1."""

    left: float
    right: float
    top: float
    bottom: float
    # Row below which a crest of the road hides the object.
    cut: float


class Lit(NamedTuple):
    """The illumination of an object: gain on its reflection, and share of contrast left by haze."""

    gain: float
    seen: float


class Card:
    """A sprite in several sizes, each half of the one before.

    The sprite is (``PLANES``, h, w), premultiplied by the coverage; without emitted light it has
    one plane less. With powers of 2 as h and w, all sizes exist.
    """

    def __init__(self, sprite: Sprite) -> None:
        self.sizes: list[Sprite] = [sprite]
        while min(sprite.shape[1:]) > _SMALLEST_PX and not (sprite.shape[1] | sprite.shape[2]) & 1:
            sprite = 0.25 * (
                sprite[:, ::2, ::2]
                + sprite[:, 1::2, ::2]
                + sprite[:, ::2, 1::2]
                + sprite[:, 1::2, 1::2]
            )
            self.sizes.append(sprite)
        self._sums: list[Floats] = []
        for size in self.sizes:
            sums = np.zeros((len(size), size.shape[1] + 1, size.shape[2] + 1))
            sums[:, 1:, 1:] = np.cumsum(np.cumsum(size, axis=1, dtype=np.float64), axis=2)
            self._sums.append(sums)

    def size_for(self, width: float, height: float) -> int:
        """Return the index of the smallest size that is at least as fine as the pixels, else 0."""
        pick = 0
        for index, size in enumerate(self.sizes):
            if size.shape[2] >= width and size.shape[1] >= height:
                pick = index
        return pick

    def sample(self, frame: Frame, rows: range, columns: range) -> Floats32:
        """Return the sprite drawn into a frame, averaged over pixels, (planes, rows, columns)."""
        wide, high = frame.right - frame.left, frame.bottom - frame.top
        sums = self._sums[self.size_for(wide, high)]
        down, across = sums.shape[1] - 1, sums.shape[2] - 1
        index, part = _edges(rows, frame.top, down / high, down)
        level = sums[:, index]
        level += (sums[:, index + 1] - level) * part[:, None]
        line = ((level[:, 1:] - level[:, :-1]) * (high / down)).astype(np.float32)
        index, part = _edges(columns, frame.left, across / wide, across)
        if wide > _COARSE * across:
            line = line[:, :, 1:] - line[:, :, :-1]
            return np.asarray(line[:, :, index[:-1]])
        upto = line[:, :, index]
        upto += (line[:, :, index + 1] - upto) * part.astype(np.float32)
        mean = upto[:, :, 1:] - upto[:, :, :-1]
        mean *= np.float32(wide / across)
        return np.asarray(mean)


def _edges(pixels: range, low: float, scale: float, last: int) -> tuple[NDArray[np.int64], Floats]:
    """Return the positions of pixel borders in a table of sums: index and remainder."""
    at = (np.arange(pixels.start, pixels.stop + 1) - low) * scale
    at = np.clip(at, 0.0, float(last))
    index = np.minimum(at.astype(np.int64), last - 1)
    return index, at - index


def window(frame: Frame, picture: Picture) -> tuple[range, range] | None:
    """Return the even ranges of rows and columns that a frame touches; None if there are none."""
    height, width = picture.luma.shape
    bottom = min(frame.bottom, frame.cut)
    if not (frame.right > 0.0 and frame.left < width and bottom > 0.0 and frame.top < height):
        return None
    top, left = max(math.floor(frame.top), 0) // 2 * 2, max(math.floor(frame.left), 0) // 2 * 2
    last = min((math.ceil(bottom) + 1) // 2 * 2, height)
    right = min((math.ceil(frame.right) + 1) // 2 * 2, width)
    return (range(top, last), range(left, right)) if last > top and right > left else None


def stamp(picture: Picture, card: Card, frame: Frame, lit: Lit, lighting: Lighting) -> None:
    """Blend a sprite upright into a frame of the picture."""
    found = window(frame, picture)
    if found is None:
        return
    rows, columns = found
    samples = card.sample(frame, rows, columns)
    if frame.cut < frame.bottom:
        row = np.arange(rows.start, rows.stop, dtype=np.float32)
        keep = np.clip(np.float32(frame.cut) - row, 0.0, 1.0)
        samples *= keep[:, None].astype(np.float32)
    blend(picture, rows, columns, samples, lit, lighting)


def blend(
    picture: Picture,
    rows: range,
    columns: range,
    samples: Floats32,
    lit: Lit,
    lighting: Lighting,
) -> None:
    """Blend samples (planes, rows, columns) into a picture; the ranges start and end even."""
    gain, seen = np.float32(lit.gain), np.float32(lit.seen)
    alpha = samples[0]
    haze = np.float32((lighting.haze[0] - BLACK) * (1.0 - lit.seen) + BLACK)
    over = samples[1] * gain
    if len(samples) == PLANES:
        over += samples[4]
    over *= seen
    over += alpha * haze
    _over(picture.luma, rows, columns, alpha, over)
    half = samples[:4, ::2, ::2] + samples[:4, 1::2, ::2]
    half += samples[:4, ::2, 1::2]
    half += samples[:4, 1::2, 1::2]
    half *= np.float32(0.25)
    rows = range(rows.start // 2, rows.stop // 2)
    columns = range(columns.start // 2, columns.stop // 2)
    for plane, target in ((1, picture.u), (2, picture.v)):
        grey = np.float32((lighting.haze[plane] - 128.0) * (1.0 - lit.seen) + 128.0)
        _over(target, rows, columns, half[0], half[1 + plane] * seen + half[0] * grey)


def _over(target: Bytes, rows: range, columns: range, alpha: Floats32, over: Floats32) -> None:
    part = target[rows.start : rows.stop, columns.start : columns.stop]
    over -= part * alpha
    over += part
    over += np.float32(0.5)
    np.clip(over, np.float32(BLACK), np.float32(WHITE), out=over)
    part[...] = over


def stamp_box(
    picture: Picture, colour: tuple[float, float, float], frame: Frame, lit: Lit, lighting: Lighting
) -> None:
    """Blend a box of one colour (brightness, U and V less 128) into a picture."""
    bottom = min(frame.bottom, frame.cut)
    bright = colour[0] * lit.gain
    values = (bright, colour[1] * lighting.chroma, colour[2] * lighting.chroma)
    for plane, target in enumerate(picture):
        scale = 1.0 if plane == 0 else 0.5
        if plane and frame.right - frame.left < _COLOUR_PX:
            return
        across = _coverage(frame.left * scale, frame.right * scale, target.shape[1])
        down = _coverage(frame.top * scale, bottom * scale, target.shape[0])
        if across is None or down is None:
            return
        haze = lighting.haze[plane] * (1.0 - lit.seen)
        black = BLACK if plane == 0 else 128.0
        value = np.float32(min((values[plane] + black) * lit.seen + haze, 235.0))
        part = target[down[0], across[0]]
        part[...] = part + (value - part) * (down[1][:, None] * across[1]) + np.float32(0.5)


def _coverage(low: float, high: float, size: int) -> tuple[slice, Floats32] | None:
    """Return the pixels from low to high and their coverage; None if there are none."""
    first, last = max(0, math.floor(low)), min(size, math.ceil(high))
    if last <= first:
        return None
    pixels = np.arange(first, last, dtype=np.float32)
    share = np.minimum(pixels + 1, np.float32(high)) - np.maximum(pixels, np.float32(low))
    return slice(first, last), np.clip(share, 0.0, 1.0)


class Side(NamedTuple):
    """A flat upright side seen at an angle, given by its near and its far vertical edge.

    Each field holds the value of the near and of the far edge. `part` is the position within the
    sprite, 0..1.
    """

    column: tuple[float, float]
    top: tuple[float, float]
    bottom: tuple[float, float]
    depth_m: tuple[float, float]
    part: tuple[float, float]


def stamp_side(
    picture: Picture, card: Card, side: Side, cut: float, lit: Lit, lighting: Lighting
) -> None:
    """Blend a sprite into a picture in perspective; rows below `cut` are hidden."""
    left, right = min(side.column), max(side.column)
    frame = Frame(left, right, min(side.top), max(side.bottom), cut)
    found = window(frame, picture)
    if found is None or right - left < _SIDE_PX:
        return
    rows, columns = found
    column = np.arange(columns.start, columns.stop) + 0.5
    covered = np.minimum(column + 0.5, right) - np.maximum(column - 0.5, left)
    t = (column - side.column[0]) / (side.column[1] - side.column[0])
    t = np.clip(t, 0.0, 1.0)
    near, far = side.depth_m
    along = t * near / ((1.0 - t) * far + t * near)
    along = side.part[0] + (side.part[1] - side.part[0]) * along
    top = side.top[0] + (side.top[1] - side.top[0]) * t
    bottom = side.bottom[0] + (side.bottom[1] - side.bottom[0]) * t
    size = card.sizes[card.size_for(right - left, float((bottom - top).max()))]
    high, wide = size.shape[1:]
    row = np.arange(rows.start, rows.stop, dtype=np.float32)[:, None] + np.float32(0.5)
    # Sprite rows, counted from the top of the side in each column.
    scale = (high / np.maximum(bottom - top, 1e-3)).astype(np.float32)
    upper, lower = top.astype(np.float32), np.minimum(bottom, cut).astype(np.float32)
    under = row - upper
    index = np.clip(under * scale, np.float32(0.0), np.float32(high - 1)).astype(np.int32)
    index *= np.int32(wide)
    index += np.minimum((along * wide).astype(np.int32), wide - 1)
    samples = size.reshape(len(size), -1).take(index, axis=1)
    share = np.minimum(under, lower - row)
    share += np.float32(0.5)
    np.clip(share, np.float32(0.0), np.float32(1.0), out=share)
    share *= np.clip(covered, 0.0, 1.0).astype(np.float32)
    samples *= share
    blend(picture, rows, columns, samples, lit, lighting)
