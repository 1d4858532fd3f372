"""Images in the buffer table of an artifact: what the manifest says of one, checked.

    {"kind": "image", "dtype": "float16", "image": [width, height], ...}

A texel is four elements (CL_RGBA). Needs no device.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from runtime.errors import ArtifactError
from runtime.fields import Fields

KEY: Final = "image"
KIND: Final = "image"  # an intermediate; a weight may be an image too
TEXEL: Final = 4
DTYPES: Final = ("float16", "float32")
MAX_EXTENT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """Texels of a two-dimensional image."""

    width: int
    height: int


def parse_image(fields: Fields, kind: str, dtype: str, size: int) -> ImageSpec | None:
    """Return the image that a buffer is, None if it is none.

    Args:
        fields: of the buffer.
        kind: of the buffer.
        dtype: of its elements.
        size: in bytes.

    Raises:
        ArtifactError: the field is missing, does not belong there, or does not fit the size.
    """
    if KEY not in fields.value:
        if kind == KIND:
            raise ArtifactError(f"{fields.where}: kind {KIND} without its width and height")
        return None
    extent = fields.numbers(KEY, 1, MAX_EXTENT)
    if len(extent) != 2:
        raise ArtifactError(f"{fields.where}.{KEY}: expected width and height, found {extent}")
    if kind not in (KIND, "weight") or dtype not in DTYPES:
        raise ArtifactError(
            f"{fields.where}.{KEY}: expected {KIND} or weight of {' or '.join(DTYPES)}, "
            f"found {kind} of {dtype}"
        )
    needed = extent[0] * extent[1] * TEXEL * np.dtype(dtype).itemsize
    if needed != size:
        raise ArtifactError(
            f"{fields.where}.{KEY}: {extent[0]}x{extent[1]} texels of {dtype} take {needed} bytes, "
            f"size is {size}"
        )
    return ImageSpec(extent[0], extent[1])
