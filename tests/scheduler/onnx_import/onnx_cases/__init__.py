"""Operator cases for the tests of the ONNX front end, by theme."""

from __future__ import annotations

from tests.scheduler.onnx_import.onnx_cases import (
    attention,
    contrib,
    elementwise,
    indexing,
    layers,
    patterns,
    products,
    sampling,
    spatial,
)
from tests.scheduler.onnx_import.onnx_cases.case import Case

THEMES = (
    *(elementwise, spatial, sampling, products, indexing, patterns),
    *(attention, contrib, layers),
)
CASES: list[Case] = [case for theme in THEMES for case in theme.CASES]
