"""The table of fusion: programs, and the launches, bytes and memory they take at most."""

from __future__ import annotations

from tests.scheduler.fusion import (
    rows_arithmetic,
    rows_concat,
    rows_convolutions,
    rows_eager,
    rows_gather,
    rows_movement,
    rows_outputs,
    rows_products,
    rows_reductions,
    rows_rows,
    rows_training,
    rows_writes,
)

THEMES = (
    rows_arithmetic,
    rows_movement,
    rows_concat,
    rows_gather,
    rows_reductions,
    rows_rows,
    rows_outputs,
    rows_convolutions,
    rows_products,
    rows_training,
    rows_writes,
    rows_eager,
)
ROWS = [row for theme in THEMES for row in theme.ROWS]
