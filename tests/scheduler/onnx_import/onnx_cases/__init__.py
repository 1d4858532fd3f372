"""Operator cases for the tests of the ONNX front end, by theme."""

from __future__ import annotations

from tests.scheduler.onnx_import.onnx_cases import (
    activation,
    attention,
    bits,
    contrib,
    elementwise,
    generators,
    indexing,
    losses,
    movement,
    normalize,
    products,
    quantized,
    recurrent,
    reduction,
    resize,
    sampling,
    spatial,
    trigonometry,
)
from tests.scheduler.onnx_import.onnx_cases.case import Case

THEMES = (
    elementwise,
    activation,
    spatial,
    resize,
    sampling,
    products,
    quantized,
    reduction,
    indexing,
    movement,
    bits,
    generators,
    losses,
    trigonometry,
    attention,
    contrib,
    normalize,
    recurrent,
)
CASES: list[Case] = [case for theme in THEMES for case in theme.CASES]
