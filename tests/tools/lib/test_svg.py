import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tools.report.report_page import Chart, Margins, padded_range, path_data, ticks


@pytest.mark.parametrize(
    ("value_range", "count", "expected"),
    [
        ((0.0, 10.0), 5, [0, 2, 4, 6, 8, 10]),
        ((0.0, 1.0), 4, [0, 0.5, 1.0]),
        ((0.0, 0.35), 4, [0, 0.1, 0.2, 0.3]),
        ((-14.0, 14.0), 3, [-10, 0, 10]),
        ((95.0, 105.0), 2, [95, 100, 105]),
    ],
)
def test_ticks_are_round_and_inside(
    value_range: tuple[float, float], count: int, expected: list[float]
) -> None:
    assert ticks(value_range, count) == expected


def test_path_lifts_the_pen_at_nan() -> None:
    nan = float("nan")
    points = np.array([[0, 0], [1, 2], [nan, 3], [4, 4], [5, 5.25]])
    assert path_data(points) == "M0.0 0.0L1.0 2.0M4.0 4.0L5.0 5.2"


def test_range_has_air_and_a_minimum_width() -> None:
    assert padded_range(np.array([0.0, 100.0])) == pytest.approx((-8.0, 108.0))
    assert padded_range(np.array([5.0, np.nan]), minimum_span=2.0) == pytest.approx((3.84, 6.16))
    assert padded_range(np.array([])) == pytest.approx((-0.08, 1.08))


def test_chart_maps_data_to_its_inner_area() -> None:
    chart = Chart(200, 100, (0, 10), (0, 5), "x", "y", "s", Margins(20, 10, 5, 15))
    chart.line(np.array([0.0, 10.0]), np.array([0.0, 5.0]), "line")
    # Inner area: x 20..190, y 85 (bottom) .. 5 (top).
    assert 'd="M20.0 85.0L190.0 5.0"' in chart.render()


def test_level_outside_the_range_is_left_out() -> None:
    chart = Chart(200, 100, (0, 10), (0, 5), "x", "y", "s")
    chart.level(4.0, "inside", "level")
    chart.level(6.0, "outside", "level")
    text = chart.render()
    assert "inside" in text
    assert "outside" not in text


def test_labels_of_close_levels_do_not_overlap() -> None:
    chart = Chart(200, 100, (0, 10), (0, 5), "x", "y", "s")
    for name, value in (("a", 2.00), ("b", 2.01)):
        chart.level(value, name, "level")
    root = ET.fromstring(chart.render())  # noqa: S314 - our own text
    at = [float(item.get("y", "nan")) for item in root if item.get("class") == "level-label"]
    assert len(at) == 2
    assert abs(at[1] - at[0]) >= 12


def test_text_is_escaped_and_svg_is_well_formed() -> None:
    chart = Chart(200, 100, (0, 10), (0, 5), "a<b", "c&d", 'say "x"')
    root = ET.fromstring(chart.render())  # noqa: S314 - our own text
    assert root.get("aria-label") == 'say "x"'
