"""Mirrors samples left to right: twice the roads for nothing, and no side is ever preferred.

The middle of a view is column 256 of 512 luma columns, whose numbers are the middles of pixels: so
column c becomes 512 - c, and column 0, which has no partner, takes that of column 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from modeld.vehicle.desire import Desire
from tools.training.heads import Head, Singles

Bytes = NDArray[np.uint8]

# What each desire becomes.
_DESIRES = np.array(
    [
        Desire.NONE,
        Desire.TURN_RIGHT,
        Desire.TURN_LEFT,
        Desire.LANE_CHANGE_RIGHT,
        Desire.LANE_CHANGE_LEFT,
        Desire.KEEP_RIGHT,
        Desire.KEEP_LEFT,
        7,
    ]
)
# Of x, y, z and of roll, pitch, yaw: what changes its sign.
_PLACE = (1.0, -1.0, 1.0)
_ANGLE = (-1.0, 1.0, -1.0)


def mirror_images(images: Bytes) -> Bytes:
    """Return mirrored views.

    They are (..., 12 or 6, 128, 256) uint8; of each six channels the luma at (even, even), (odd,
    even), (even, odd), (odd, odd) row and column, then U, V.
    """
    mirrored = images[..., ::-1].copy()
    # Even columns: 512 - 2 i = 2 (256 - i). Odd ones: 512 - (2 i + 1) = 2 (255 - i) + 1, as it is.
    for channel in range(0, images.shape[-3], 6):
        even = mirrored[..., channel : channel + 2, :, :]
        even[..., 1:] = even[..., :-1].copy()
        # Chroma lies half way between: the mean of both neighbours.
        chroma = mirrored[..., channel + 4 : channel + 6, :, :]
        chroma[..., 1:] = ((chroma[..., 1:].astype(np.uint16) + chroma[..., :-1] + 1) // 2).astype(
            np.uint8
        )
    return mirrored


def mirror_target(heads: tuple[Head, ...], target: Singles) -> Singles:
    """Return mirrored targets (..., size) float32; `heads` are its parts in order."""
    parts, start = [], 0
    for head in heads:
        values = target[..., start : start + head.size]
        start += head.size
        shaped = values.reshape(*values.shape[:-1], *head.shape)
        parts.append(_mirror(head, shaped).reshape(values.shape))
    return np.concatenate(parts, axis=-1, dtype=np.float32)


def mirror_desires(desires: Singles) -> Singles:
    """Return mirrored desires, (..., 8)."""
    return np.asarray(desires[..., _DESIRES], np.float32)


def _mirror(head: Head, values: Singles) -> Singles:
    if head.name in ("desire_pred", "desire_state"):
        return mirror_desires(values)
    if head.name == "plan":
        return np.asarray(values * np.array(_PLACE * 3 + _ANGLE * 2), np.float32)
    if head.name in ("pose", "road_transform"):
        return np.asarray(values * np.array(_PLACE + _ANGLE), np.float32)
    if head.name == "wide_from_device_euler":
        return np.asarray(values * np.array(_ANGLE), np.float32)
    if head.name in ("lane_lines", "road_edges"):
        return np.asarray(values[..., ::-1, :, :] * np.array((-1.0, 1.0)), np.float32)
    if head.name == "lane_lines_prob":
        return values[..., ::-1, :]
    if head.name == "lead":
        return np.asarray(values * np.array((1.0, -1.0, 1.0, 1.0)), np.float32)
    return values if head.name != "meta" else _mirror_meta(values)


def _mirror_meta(values: Singles) -> Singles:
    """Swap the blinkers, the last two of each four columns from 31 on."""
    mirrored = values.copy()
    mirrored[..., 33:55:4], mirrored[..., 34:55:4] = values[..., 34:55:4], values[..., 33:55:4]
    return mirrored
