"""docs/regression.md says of quantities and figures what the code has."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.behaviour.difference import figure_names
from tools.behaviour.quantities import QUANTITIES

PAGE = (Path(__file__).parents[3] / "docs/regression.md").read_text(encoding="utf-8")
FIGURES = [
    *("lateral_2s_mean_m", "lateral_2s_p99_m", "lateral_2s_max_m", "lateral_2s_bias_m"),
    *("lead_distance_lost_frames", "lead_distance_new_frames", "lead_seen_mean"),
    *("error.left_line_10m_mean_m", "error.left_line_10m_p99_m", "error.left_line_10m_max_m"),
    "error.left_line_10m_missed_frames",
]


def test_the_table_has_every_quantity_and_no_other() -> None:
    found = [
        f"| {one.name} | {one.unit or '-'} | {one.meaning} | {'yes' if one.truth else 'no'} |"
        for one in QUANTITIES
    ]
    start = PAGE.index(found[0])
    assert PAGE[start:].split("\n\n")[0].splitlines() == found


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_is_named_exists(name: str) -> None:
    assert f"`{name}`" in PAGE
    assert name in figure_names()
