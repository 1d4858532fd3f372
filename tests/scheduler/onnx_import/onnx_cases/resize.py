"""Resize and Upsample: modes, coordinates, roundings, antialiasing, policies."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, f, k, own

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
    case("Upsample", f(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
    case("Upsample", f(1, 2, 3, 4), opset=7, scales=[1.0, 1.0, 2.0, 3.0], mode="linear"),
    case("Upsample", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=9),
    case("Upsample", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=9, mode="linear"),
    case("Resize", f(1, 2, 3, 4), scales(1, 1, 2, 2), opset=10),
    case("Resize", f(1, 2, 3, 4), scales(1, 1, 2, 1.5), opset=10, mode="linear"),
    case("Resize", f(1, 2, 3, 4), None, scales(1, 1, 2, 2)),
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
    *(smooth(mode, 2, 3) for mode in ("linear", "cubic")),
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
    case("Resize", f(5, 6), None, scales(2, 1.5), opset=13, mode="linear"),
    case("Resize", f(1, 2, 4, 5, 6), None, scales(1, 1, 2, 1.5, 0.7), opset=13, mode="linear"),
    own(
        *("Resize", np.arange(40, 200, 4, dtype=np.uint8).reshape(1, 2, 4, 5)),
        *(None, scales(1, 1, 2, 1.5)),
        mode="cubic",
    ),
]
