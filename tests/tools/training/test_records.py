"""History, curves and card of a training: whole, readable, without anything to load."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tools.training.card import write_card
from tools.training.export import Written
from tools.training.figures import Figures
from tools.training.options import TrainingOptions
from tools.training.records import Records


class Tags(HTMLParser):
    """Counts tags and keeps what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href")]


def test_page_has_a_chart_for_each_figure_and_loads_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for step in range(1000):
        loss = math.exp(-step / 300) + 0.01 * (step % 7)
        records.add(stage="vision", step=step, minutes=step / 60, loss=loss, plan=2 * loss)
    records.add(stage="policy", step=1, minutes=20.0, loss=1.0)
    records.add(stage="policy", step=2, minutes=20.1, loss=float("nan"))
    records.write_page("Curves", [("path", "0.1", "held out")])
    page = (tmp_path / "curves.html").read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(page)
    assert tags.seen.count("svg") == 3
    assert tags.addresses == []
    assert "vision: loss" in page


def test_picture_of_a_stage_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for step in range(10):
        figures = {"path at 1 s, m": 0.5 / (1 + step), "lines < found": 0.9, "speed": 1.0 + step}
        records.add(stage="held out", step=step, minutes=float(step), **figures, leads=0.5)
    records.write_picture("held out", "Errors")
    root = ElementTree.parse(tmp_path / "curves.svg").getroot()  # noqa: S314 - our own file
    inner = [element for element in root if element.tag.endswith("}svg")]
    assert [(e.get("x"), e.get("y")) for e in inner] == [
        ("0", "22"),
        ("370", "22"),
        ("740", "22"),
        ("0", "272"),
    ]
    assert "href" not in (tmp_path / "curves.svg").read_text(encoding="utf-8")


def test_history_goes_on_after_a_checkpoint(tmp_path: Path) -> None:
    first = Records(tmp_path)
    for step in range(3):
        first.add(stage="vision", step=step, minutes=0.1, loss=1.0)
    # The last row was written after the checkpoint, and is taken back.
    again = Records(tmp_path, first.rows[:2])
    again.add(stage="vision", step=2, minutes=0.2, loss=0.9)
    lines = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["loss"] for row in rows] == [1.0, 1.0, 0.9]


def _learn(records: Records, loss: float, end: BaseException | None) -> None:
    with records.whole():
        records.add(stage="policy", step=20, minutes=0.2, loss=loss)
        if end is not None:
            raise end


def test_rows_of_what_was_interrupted_are_taken_back_those_before_an_error_stay(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path)
    records.add(stage="vision", step=0, minutes=0.1, loss=1.0)
    with pytest.raises(KeyboardInterrupt):
        _learn(records, 0.9, KeyboardInterrupt())
    _learn(records, 0.8, None)
    with pytest.raises(ValueError, match="diverged"):
        _learn(records, 9e9, ValueError("diverged"))
    lines = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [1.0, 0.8, 9e9]
    assert [row["loss"] for row in records.rows] == [1.0, 0.8, 9e9]


def test_card_has_sizes_figures_and_limits(tmp_path: Path) -> None:
    figures = Figures(
        samples=10,
        line_m=(0.05, 0.123),
        path_m=(0.01, 0.04, np.nan),
        speed_mps=1.5,
        acceleration_mps2=0.4,
        lead_m=2.25,
        lead_mps=0.75,
        far_lead_m=5.0,
        lines_found=0.9,
        leads_found=0.8,
    )
    written = Written(3_600_000, 1_810_000, 410_000_000, "float16")
    options = TrainingOptions(tmp_path, minutes=40)
    write_card(tmp_path, options, written, {"all": figures, "day": figures}, {"steps": "12"})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "modeld train --minutes 40 --seed 0" in card
    assert "1.81 M parameters, 0.41 GFLOP a frame, 3.6 MB (float16)" in card
    assert "| lane line at 30 m, m | 0.12 | 0.12 |" in card
    assert "| path at 4 s, m | n/a | n/a |" in card
    assert "What it cannot do" in card
    found = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert (found["minutes"], found["seed"]) == (40, 0)
    assert found["held_out"]["day"]["line_30m_m"] == 0.123
    assert found["held_out"]["all"]["path_4s_m"] is None
