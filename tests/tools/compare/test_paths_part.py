"""The worst frame of a comparison, drawn from the logs alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tools.compare.made_logs import drive, unchanged, write_log
from tests.tools.conftest import Modeld
from tools.compare.page import paths_part

SIDES = ("left", "right")


def test_the_page_shows_the_frame_in_which_the_path_moves_most(
    tmp_path: Path, modeld: Modeld
) -> None:
    def move(service: str, frame_id: int, event: Any) -> None:
        if service == "modelV2" and frame_id >= 120:
            lateral = event.modelV2.position.y
            for point in range(len(lateral)):
                lateral[point] += 1e-5 * point * (frame_id - 119)

    logs = [
        write_log(tmp_path / name, drive(range(100, 130), change))
        for name, change in (("left.rlog", unchanged), ("right.rlog", move))
    ]
    modeld(1, "compare", *logs, "--html", tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "The path moves by at most 1.4 mm after 2 s (frame 129)." in text
    assert "<title>Both paths of frame 129 from above</title>" in text
    # At the end of the path it is 32 * 1e-5 * 10 m; the axis of the picture says so.
    assert "mm to the right" in text


@pytest.mark.parametrize(
    "path",
    [
        np.zeros((0, 2)),
        np.zeros((33, 2)),
        np.full((33, 2), np.nan),
        np.stack([np.linspace(500.0, 600.0, 33), np.zeros(33)], axis=1),
    ],
)
def test_a_path_that_cannot_be_drawn_costs_the_picture_only(path: NDArray[np.float64]) -> None:
    straight = np.stack([np.linspace(0.0, 90.0, 33), np.zeros(33)], axis=1)
    assert paths_part(7, path, straight, SIDES) == ""
    assert paths_part(7, straight, path, SIDES) == ""


def test_a_path_that_turns_back_is_drawn_as_far_as_it_goes_ahead() -> None:
    x = np.array([0.0, 10.0, 20.0, 15.0, 16.0, 30.0])
    path = np.stack([x, np.array([0.0, 0.1, 0.2, 9.0, 9.0, 0.3])], axis=1)
    text = paths_part(7, path, path + np.array([0.0, 0.5]), SIDES)
    assert text.count("<svg") == 2
    assert "m to the right" in text
    assert "nan" not in text
