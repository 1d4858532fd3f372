"""Limits on the size of a model: a larger one is refused before anything is allocated for it.

No supported device has room for more, so a larger size is damage or malice.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from scheduler.errors import ModelError

MAX_FILE_BYTES = 2**31 - 1  # protobuf reads no more
MAX_TENSOR_BYTES = 2**33  # 8 GiB
MAX_RANK = 16  # axes of a tensor
MAX_DEPTH = 16  # graphs inside of nodes
MAX_PORTS = 4096  # inputs, and outputs, of a model
MAX_EXPANDED_NODES = 1_000_000  # with every call of a function written out
# Least and most of attributes that count steps or elements.
COUNTS = {
    "dilations": (1, 65536),
    "kernel_shape": (1, 65536),
    "num_outputs": (1, 4096),
    "num_scan_inputs": (0, 4096),
    "output_padding": (0, 65536),
    "strides": (1, 65536),
}
# Values that are filled in here rather than read: a sparse weight made dense.
MAX_FILLED_BYTES = 2**28
# Values that are computed while importing.
MAX_KNOWN_BYTES = 2**31


def check_shape(
    shape: Sequence[int], itemsize: int, where: str, most: int = MAX_TENSOR_BYTES
) -> None:
    """Refuse a tensor whose size is no size, or more than `most` bytes.

    Sizes of axes may have any magnitude; `itemsize` is bytes. Raises ModelError if a size is
    negative, there are too many axes, or too many bytes.
    """
    if len(shape) > MAX_RANK:
        raise ModelError(f"{where}: {len(shape)} axes, at most {MAX_RANK} are supported")
    if any(size < 0 for size in shape):
        raise ModelError(f"{where}: shape {list(shape)} has a negative size")
    if prod(shape) * itemsize > most:
        raise ModelError(
            f"{where}: shape {list(shape)} takes {prod(shape) * itemsize:.3g} bytes, at most "
            f"{most} are supported; is the shape right?"
        )
