"""Creates the inputs of a program for a manual run or a benchmark, from a file or at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from cereal.frame_ring import FrameFormat, nv12_format
from modeld.vehicle.cameras import (
    MED_MODEL_INTRINSICS,
    SBIG_MODEL_INTRINSICS,
    VIEW_INTRINSICS,
    find_cameras,
    pinhole_matrix,
    warp_matrix,
)
from tools.lib.given_data import read_npz

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from runtime import TensorSpec

# The cameras of most devices, with 1928x1208 pixels.
CAMERAS: Final = find_cameras("mici", "ox03c10")
LEVEL: Final = (0.0, 0.0, 0.0)


def make_frame_inputs(
    specs: Sequence[TensorSpec], generator: np.random.Generator
) -> dict[str, NDArray[Any]]:
    """Return random frames for the camera inputs of an entry, with geometries and transforms.

    A camera NAME has an input ``NAME_frame`` (uint8, capacity in bytes) and an input
    ``NAME_geometry`` (int32: width, height, stride, offset of the chroma plane). If there is a
    ``NAME_transform``, it is that of a camera without rotation. Frames have the layout of
    `fitting_format`.
    """
    known = {spec.name: spec for spec in specs}
    found: dict[str, NDArray[Any]] = {}
    for geometry in known:
        name = geometry.removesuffix("_geometry")
        frame = known.get(f"{name}_frame")
        if name == geometry or frame is None or len(frame.shape) != 1:
            continue
        layout = fitting_format(frame.shape[0])
        taken = layout.payload_bytes if frame.partial else frame.shape[0]
        found[frame.name] = generator.integers(0, 256, taken, np.uint8)
        found[geometry] = geometry_of(layout)
        if f"{name}_transform" in known:
            found[f"{name}_transform"] = _transform(name, layout)
    return found


def geometry_of(layout: FrameFormat) -> NDArray[np.int32]:
    """Return a program's geometry input for a frame: (4,) int32."""
    return np.array([layout.width, layout.height, layout.stride, layout.uv_offset], np.int32)


def fitting_format(capacity: int) -> FrameFormat:
    """Return the layout of 1928x1208 frames, halving both sizes until `capacity` bytes suffice."""
    width, height = CAMERAS.road.width, CAMERAS.road.height
    while nv12_format(width, height).payload_bytes > capacity and height > 2:
        width, height = max(width // 4 * 2, 2), max(height // 4 * 2, 2)
    return nv12_format(width, height)


def _transform(name: str, layout: FrameFormat) -> NDArray[np.float32]:
    assert CAMERAS.wide is not None
    camera = CAMERAS.road if name == "road" else CAMERAS.wide
    views: Mapping[str, NDArray[np.float64]] = {
        "wide": SBIG_MODEL_INTRINSICS,
        "driver": VIEW_INTRINSICS,
    }
    focal_px = camera.focal_px * layout.width / camera.width
    seen = pinhole_matrix(focal_px, layout.width / 2, layout.height / 2)
    return warp_matrix(LEVEL, seen, views.get(name, MED_MODEL_INTRINSICS))


def inputs_for(
    specs: Sequence[TensorSpec], path: Path | None, seed: int
) -> Mapping[str, NDArray[Any]]:
    """Return the arrays of an .npz file, one per input by name, or random ones without a path.

    Raises:
        UsageError: the file cannot be read.
    """
    return make_inputs(specs, seed) if path is None else read_npz(path)


def make_inputs(specs: Sequence[TensorSpec], seed: int) -> dict[str, NDArray[Any]]:
    """Return random inputs for timing; equal seeds give equal inputs.

    Frames of cameras come from `make_frame_inputs`. Other uint8 inputs are uniformly distributed
    and floats normally distributed. Other integers and booleans are 0 and 1, which are valid
    indices in nearly all models.
    """
    generator = np.random.default_rng(seed)
    inputs = make_frame_inputs(specs, generator)
    for spec in specs:
        value: NDArray[Any]
        if spec.name in inputs:
            continue
        if spec.dtype == np.uint8:
            value = generator.integers(0, 256, spec.shape)
        elif spec.dtype.kind == "f":
            value = generator.standard_normal(spec.shape)
        else:
            value = generator.integers(0, 2, spec.shape)
        inputs[spec.name] = np.asarray(value, spec.dtype, order="C").reshape(spec.shape)
    return inputs
