"""Convolution, pooling, normalisation; Resize and Upsample: modes, coordinates, policies."""

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, f, k, own, pos, w

WINDOWS: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 1]}
SYMMETRIC, TORCH = "half_pixel_symmetric", "pytorch_half_pixel"
COORDINATES = ("half_pixel", SYMMETRIC, TORCH, "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def scales(*values: float) -> Const:
    return k(*values, dtype=np.float32)


def crop(mode: str, *sizes: int) -> Case:
    region = scales(0, 0, 0.2, -0.1, 1, 1, 0.8, 1.3)
    how: dict[str, Any] = {
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 7.0,
    }
    return case("Resize", f(1, 2, 6, 7), region, None, k(1, 2, *sizes), opset=13, mode=mode, **how)


def nearest(rounding: str, coordinates: str, *region: Any, **given: Any) -> Case:
    how: dict[str, Any] = {"nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    roi = region or (None,)
    return case("Resize", f(1, 2, 5, 4), *roi, scales(1, 1, 0.6, 2.5), **how, **given)


def smooth(mode: str, *factors: float, opset: int = 19, **how: Any) -> Case:
    given = None, scales(1, 1, *factors)
    return case("Resize", f(1, 2, 16, 11), *given, opset=opset, mode=mode, **how)


def keeping(policy: str) -> Case:
    how: dict[str, Any] = {"axes": [3, 2], "keep_aspect_ratio_policy": policy}
    return case("Resize", f(1, 2, 3, 4), None, None, k(7, 6), opset=18, **how)


CASES = [
    case("Conv", f(2, 4, 9, 11), w(8, 1, 7, 7), w(8), group=4, pads=[3, 3, 3, 3], strides=[2, 2]),
    *(
        case("Conv", f(1, 3, 8, 9), w(5, 3, 4, 3), auto_pad=mode, strides=[2, 3])
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("Conv", f(1, 3, 6, 6), f(4, 3, 1, 1)),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 2, 2), w(3), strides=[2, 2]),
    case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 2, 2), strides=[2, 2], pads=[0, 0, 1, 1]),
    *(
        case("ConvTranspose", f(1, 4, 5, 6), w(4, 3, 3, 3), strides=[2, 2], auto_pad=mode)
        for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")
    ),
    case("ConvTranspose", f(1, 2, 5, 6), w(2, 3, 3, 3), strides=[2, 2], output_shape=[10, 12]),
    case("ConvTranspose", f(1, 2, 3, 3), w(2, 3, 3, 3), strides=[3, 2], output_shape=[10, 8]),
    *(case(op, f(2, 3, 4, 5)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    case("AveragePool", f(1, 2, 9, 9), kernel_shape=[3, 3], dilations=[2, 1], opset=19),
    case("MaxPool", f(1, 2, 9, 9), kernel_shape=[2, 3], dilations=[3, 2]),
    case("MaxPool", -pos(1, 2, 4, 4), kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2),
    case("DepthToSpace", f(1, 12, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", f(1, 3, 4, 6), blocksize=2),
    *(
        case("MaxPool", f(2, 2, 7, 8), **WINDOWS, outputs=2, storage_order=o, ceil_mode=1)
        for o in (0, 1)
    ),
    case("MaxPool", f(2, 3, 9), kernel_shape=[3], dilations=[2], outputs=2),
    case("MaxPool", f(1, 2, 5, 4, 6), kernel_shape=[2, 2, 3], outputs=2, auto_pad="SAME_LOWER"),
    case("MaxPool", np.zeros((1, 1, 4, 4), np.uint8), **WINDOWS, outputs=2),
    case("MaxPool", np.arange(-9, 7, dtype=np.int8).reshape(1, 1, 4, 4), **WINDOWS),
    *(case("LpPool", f(1, 2, 7, 8), kernel_shape=[3, 2], strides=[2, 1], p=p) for p in (1, 2, 3)),
    case("LpPool", f(1, 2, 7, 8), **WINDOWS, dilations=[2, 1], ceil_mode=1, opset=18),
    *(case("GlobalLpPool", f(2, 3, 4, 5), p=p) for p in (2, 3)),
    *(case("LRN", f(1, 5, 4, 3), size=n, alpha=0.2, beta=0.6, bias=1.5) for n in (3, 5)),
    case("Conv", f(1, 4, 9), f(2, 2, 3), f(2), group=2, auto_pad="SAME_UPPER"),
    case("BatchNormalization", f(2, 3, 4, 5), w(3), w(3), w(3), Const(pos(3)), epsilon=1e-3),
    case("BatchNormalization", f(2, 3), w(3), w(3), w(3), Const(pos(3)), opset=9),
    # Resize and Upsample
    case("Upsample", f(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", f(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
    case("Upsample", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=9),
    case("Upsample", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=9, mode="linear"),
    case("Resize", f(1, 2, 3, 4), scales(1, 1, 2, 2), opset=10),
    case("Resize", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=10, mode="linear"),
    *(
        nearest(rounding, coordinates)
        for rounding in ROUNDINGS
        for coordinates in ("half_pixel", "asymmetric", "align_corners", TORCH)
    ),
    nearest("floor", "tf_half_pixel_for_nn", scales(), opset=11),
    case("Resize", f(1, 2, 3, 4), None, None, k(1, 2, 6, 7)),
    *(keeping(policy) for policy in ("not_larger", "not_smaller")),
    *(
        smooth(mode, 1.7, 0.6, coordinate_transformation_mode=coordinates)
        for mode in ("linear", "cubic")
        for coordinates in COORDINATES
    ),
    smooth("cubic", 2.5, 0.7, cubic_coeff_a=-0.5, exclude_outside=1),
    *(
        smooth(mode, 0.4, 0.2, antialias=1, exclude_outside=outside)
        for mode in ("linear", "cubic")
        for outside in (0, 1)
    ),
    smooth("linear", 1.5, 0.5, antialias=1, opset=18),
    *(crop(mode, 3, 5) for mode in ("nearest", "linear", "cubic")),
    crop("linear", 1, 4),
    # 23 * 40 / 23 is below 40, unless it is computed in float32.
    case("Resize", f(1, 23), None, scales(1, 40 / 23), opset=13, mode="linear"),
    case("Upsample", f(1, 1, 1, 23), scales(1, 1, 1, 40 / 23), opset=9),
    case("Resize", f(1, 2, 4, 5, 6), None, scales(1, 1, 2, 1.5, 0.7), opset=13, mode="linear"),
    own(
        *("Resize", np.arange(40, 200, 4, dtype=np.uint8).reshape(1, 2, 4, 5)),
        *(None, scales(1, 1, 2, 1.5)),
        mode="cubic",
    ),
]
