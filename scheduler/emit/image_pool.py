"""Let intermediates share an image: those of one size whose lives do not overlap.

    t0 128x64 [0, 1]   t1 128x64 [1, 2]   t2 128x64 [2, 3]     ->     images A: t0, t2   B: t1

OpenCL 1.2 has no images inside a buffer, so they cannot lie in the arena; only images of equal
width, height and type are used again. (Adreno has `cl_khr_image2d_from_buffer`; that is the
runtime's to use.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.ir.node import Node
from scheduler.kernelize.memory_plan import Lifetime
from scheduler.loops.images import Image
from scheduler.lower import LoweredKernel


def image_nodes(kernels: Sequence[LoweredKernel]) -> dict[Node, Image]:
    """Return the intermediates that are images, in the order in which they are written."""
    return {
        p.argument: p.image
        for kernel in kernels
        for p in kernel.code.parameters
        if p.written and p.image is not None and isinstance(p.argument, Node)
    }


def share_images(images: Mapping[Node, Image], lives: Mapping[Node, Lifetime]) -> dict[Node, Node]:
    """Return for each image the one whose memory it takes, itself if it has its own.

    Images are in the order in which they are written.
    """
    owner: dict[Node, Node] = {}
    pool: dict[tuple[Image, str], list[tuple[Node, int]]] = {}
    for node, image in images.items():
        slots = pool.setdefault((image, node.dtype.name), [])
        free = next((i for i, (_, last) in enumerate(slots) if last < lives[node].first), None)
        if free is None:
            slots.append((node, lives[node].last))
            owner[node] = node
        else:
            owner[node] = slots[free][0]
            slots[free] = (slots[free][0], lives[node].last)
    return owner
