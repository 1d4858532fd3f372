"""Operator cases for the tests of the ONNX front end, by theme."""

from __future__ import annotations

from tests.scheduler.onnx_cases import (
    activation,
    elementwise,
    movement,
    products,
    reduction,
    spatial,
)
from tests.scheduler.onnx_cases.case import Case

THEMES = (
    elementwise,
    activation,
    spatial,
    products,
    reduction,
    movement,
)
CASES: list[Case] = [case for theme in THEMES for case in theme.CASES]
