"""The table of fusion: programs, and the launches, bytes and memory they take at most."""

from __future__ import annotations

from tests.scheduler.fusion import (
    rows_convolutions,
    rows_elements,
    rows_joins,
    rows_products,
    rows_reductions,
    rows_results,
    rows_training,
)

THEMES = {
    "elements": rows_elements.ROWS,
    "joins": rows_joins.ROWS,
    "reductions": rows_reductions.ROWS,
    "results": rows_results.ROWS,
    "convolutions": rows_convolutions.ROWS,
    "products": rows_products.ROWS,
    "training": rows_training.ROWS,
}
ROWS = [row for rows in THEMES.values() for row in rows]
