"""Samples at run-time positions, unpooling, regions, Fourier transforms."""

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
    Case,
    Const,
    case,
    draw,
    f,
    k,
    one,
    own,
    pos,
    w,
)

How = dict[str, Any]


def grid(*shape: int) -> Array:
    """Return positions in and a little outside of -1 .. 1."""
    return (draw().random(shape) * 2.6 - 1.3).astype(np.float32)


def boxes(count: int, side: float) -> Array:
    corners = draw().random((count, 2)) * side / 2
    ends = corners + 0.5 + draw().random((count, 2)) * side
    return np.concatenate([corners, ends], 1).astype(np.float32)


def sample(mode: str, padding: str, opset: int = 20, aligned: int = 0) -> Case:
    how: How = {"mode": mode, "padding_mode": padding, "align_corners": aligned}
    return case("GridSample", f(2, 3, 5, 6), grid(2, 4, 3, 2), opset=opset, **how)


def pooled(kernel: int, stride: int) -> tuple[Array, Array]:
    """Return values (1, 2, 3, 3) and positions in an image that MaxPool may find them at."""
    side = 2 * stride + kernel
    place = np.arange(3) * stride + 1
    index = np.arange(2)[:, None, None] * side * side + place[:, None] * side + place
    return f(1, 2, 3, 3), index[None].astype(np.int64)


ROIS = k(0, 1, 0, 1)
NO_ATTRIBUTES: How = {}
NEAREST: How = {"mode": "nearest", "padding_mode": "border"}
SMALL_GRID: How = {"output_height": 2, "output_width": 2}
ROI_GRID: How = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.7}
DEFORM: How = {"group": 2, "offset_group": 2, "pads": [1, 1, 1, 2], "strides": [2, 2]}
CAUSAL = "CausalConvWithState"
OF_27: How = {"outputs": 2, "opset": 27}
COLUMNS: How = {"strides": [2, 2], "dilations": [1, 2], "pads": [1, 0, 1, 0]}

CASES = [
    *(
        sample(mode, padding, aligned=a)
        for mode in ("linear", "nearest", "cubic")
        for padding, a in (("zeros", 0), ("border", 1), ("reflection", 0))
    ),
    *(
        case("GridSample", f(1, 2, 3, 4, 5), grid(1, 2, 3, 2, 3), opset=20, **how)
        for how in (NO_ATTRIBUTES, NEAREST)
    ),
    *(case("AffineGrid", f(2, 2, 3), k(2, 3, 4, 5), opset=20, align_corners=a) for a in (0, 1)),
    case("AffineGrid", f(1, 3, 4), k(1, 2, 3, 4, 2), opset=20),
    *(
        case("RoiAlign", f(2, 3, 9, 8), boxes(4, 9), ROIS, opset=opset, **ROI_GRID, mode=mode)
        for opset, mode in ((10, "avg"), (16, "avg"), (16, "max"))
    ),
    case("RoiAlign", f(2, 3, 9, 8), Const(boxes(4, 9)), ROIS, opset=16, **SMALL_GRID),
    case("MaxUnpool", *pooled(2, 2), opset=11, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxUnpool", *pooled(3, 2), opset=11, kernel_shape=[3, 3], strides=[2, 2]),
    own("Col2Im", f(1, 12, 20), k(5, 6), k(2, 2), opset=18),
    own("Col2Im", f(2, 6, 12), k(5, 7), k(3, 1), opset=18, **COLUMNS),
    own("Col2Im", f(1, 8, 8), k(3, 3, 3), k(2, 2, 2), opset=18),
    case("CenterCropPad", f(5, 8, 3), k(8, 5, 3), opset=18),
    case("CenterCropPad", f(5, 8, 3), k(4, 4), opset=18, axes=[-1, 0]),
    case("DeformConv", f(1, 2, 5, 6), w(3, 2, 2, 2), f(1, 8, 4, 5), w(3), opset=19),
    case(
        *("DeformConv", f(2, 4, 5, 6), w(4, 2, 3, 3), f(2, 36, 3, 4), w(4), pos(2, 18, 3, 4)),
        opset=19,
        **DEFORM,
    ),
    case(
        *("NonMaxSuppression", Const(boxes(6, 4)[None]), Const(pos(1, 2, 6))),
        *(k(3), k(0.4, dtype=np.float32)),
        opset=11,
    ),
    own("DFT", f(2, 8, 1)),
    own("DFT", f(2, 7, 2), one(9), axis=1, inverse=1),
    own("DFT", f(2, 9, 3, 1), one(8), one(1), opset=20, onesided=1),
    own("DFT", f(2, 6, 2), None, one(-2), opset=20, inverse=1),
    own("STFT", f(2, 40, 1), one(7), w(16), None),
    own("STFT", f(1, 24, 1), one(4), None, one(12), onesided=0),
    *(
        own(f"{name}Window", one(11), periodic=p)
        for name in ("Hann", "Hamming", "Blackman")
        for p in (0, 1)
    ),
    case("MelWeightMatrix", *map(one, (8, 64, 8000)), one(20, np.float32), one(3800, np.float32)),
    own(CAUSAL, f(2, 3, 9), w(3, 1, 4), **OF_27),
    own(CAUSAL, f(2, 3, 2), w(3, 1, 4), w(3), f(2, 3, 3), **OF_27, activation="silu"),
]
