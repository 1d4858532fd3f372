"""What a training keeps and tells: history, curves, card, drives, sizes, and that it diverges."""

import json
import math
from contextlib import nullcontext
from math import prod
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest

from tests.tools.page import Page
from tools.errors import TrainingError
from tools.simulator.training.figures import Figures
from tools.simulator.training.model_files import (
    MOST_BYTES,
    MOST_PARAMETERS,
    POLICY_FILE,
    VISION_FILE,
    Written,
    write_card,
)
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.records import Records, Watch
from tools.simulator.training.samples.drives import DRIVES, DriveRecord, read_drives, write_drive

MODELS = Path(__file__).parents[3] / "tools/models"


def test_page_has_a_chart_for_each_figure_and_loads_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for step in range(1000):
        loss = math.exp(-step / 300) + 0.01 * (step % 7)
        records.add(stage="vision", step=step, minutes=step / 60, loss=loss, plan=2 * loss)
    records.add(stage="policy", step=1, minutes=20.0, loss=1.0)
    records.add(stage="policy", step=2, minutes=20.1, loss=float("nan"))
    records.write_page("Curves", [("path", "0.1", "held out")])
    page = Page(tmp_path / "curves.html")
    assert page.seen.count("svg") == 3
    assert page.links == []
    assert "vision: loss" in page.text


def test_picture_of_a_stage_is_whole_and_loads_nothing(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for step in range(10):
        figures = {"path at 1 s, m": 0.5 / (1 + step), "lines < found": 0.9, "speed": 1.0 + step}
        records.add(stage="held out", step=step, minutes=float(step), **figures, leads=0.5)
    records.write_picture("held out", "Errors")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    inner = [element for element in ElementTree.fromstring(text) if element.tag.endswith("}svg")]  # noqa: S314 - our own file
    places = [(element.get("x"), element.get("y")) for element in inner]
    assert places == [("0", "22"), ("370", "22"), ("740", "22"), ("0", "272")]
    assert "href" not in text


def test_history_takes_back_rows_after_a_checkpoint_or_an_interrupt_but_not_of_an_error(
    tmp_path: Path,
) -> None:
    first = Records(tmp_path)
    for loss in (1.0, 2.0):
        first.add(stage="vision", step=0, minutes=0.1, loss=loss)
    records = Records(tmp_path, first.rows[:1])
    for loss, end in (
        (0.9, KeyboardInterrupt()),
        (0.8, None),
        (9e9, ValueError("diverged")),
    ):
        with pytest.raises(type(end)) if end else nullcontext(), records.whole():
            records.add(stage="policy", step=20, minutes=0.2, loss=loss)
            if end is not None:
                raise end
    lines = (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == records.rows
    assert [row["loss"] for row in records.rows] == [1.0, 0.8, 9e9]


def test_card_has_sizes_figures_and_limits(tmp_path: Path) -> None:
    figures = Figures(10, (0.05, 0.123), (0.01, 0.04, np.nan), 1.5, 0.4, 2.25, 0.75, 5.0, 0.9, 0.8)
    written = Written(3_600_000, 1_810_000, 410_000_000, "float16")
    options = TrainingOptions(tmp_path, minutes=40)
    write_card(tmp_path, options, written, {"all": figures, "day": figures}, {"steps": "12"})
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for said in (
        "modeld train --minutes 40 --seed 0",
        "1.81 M parameters, 0.41 GFLOP a frame, 3.6 MB (float16)",
        "| lane line at 30 m, m | 0.12 | 0.12 |",
        "| path at 4 s, m | n/a | n/a |",
        "What it cannot do",
    ):
        assert said in card
    found = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert (found["minutes"], found["seed"]) == (40, 0)
    assert found["held_out"]["day"]["line_30m_m"] == 0.123
    assert found["held_out"]["all"]["path_4s_m"] is None


def test_drives_come_back_in_order_as_many_as_are_known_and_damage_is_one_line(
    tmp_path: Path,
) -> None:
    (tmp_path / DRIVES).mkdir()
    for rows in (2, 3, 4):
        seen, mirrored = (np.full((rows, 512), x, np.float16) for x in (0.5, 0.25))
        targets, pulses = np.ones((rows, 7), np.float32), np.zeros((rows, 8), np.float32)
        off_m = np.arange(rows, dtype=np.float32)
        record = DriveRecord(seen, mirrored, targets, pulses, True, off_m)
        write_drive(tmp_path, rows - 2, record)
    found = read_drives(tmp_path, 0, 2)
    assert [len(drive.features) for drive in found] == [2, 3]
    assert found[1].is_student is True
    assert (found[1].features[0, 0], found[1].mirrored[0, 0]) == (0.5, 0.25)
    np.testing.assert_array_equal(found[1].off_m, [0.0, 1.0, 2.0])
    assert [len(drive.features) for drive in read_drives(tmp_path, 1, 3)] == [3, 4]
    path = tmp_path / DRIVES / "000001.npz"
    path.write_bytes(path.read_bytes()[:100])
    for number, first, end in ((3, 2, 4), (1, 1, 3)):
        found_none = f"expected drive {number} of {end}, found none that can be read"
        with pytest.raises(TrainingError, match=found_none):
            read_drives(tmp_path, first, end)


def test_the_model_that_is_kept_is_as_small_as_is_promised() -> None:
    assert (MOST_PARAMETERS, MOST_BYTES) == (2_000_000, 5_000_000)
    files = [MODELS / name for name in (VISION_FILE, POLICY_FILE)]
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES
    # Weights are initializers; tables that were not learnt are constants of the graph.
    weights = [weight for path in files for weight in onnx.load(path).graph.initializer]
    assert 1_000_000 < sum(prod(weight.dims) for weight in weights) <= MOST_PARAMETERS


def test_noisy_falling_losses_go_on() -> None:
    rng, watch = np.random.default_rng(0), Watch("begin again")
    for step in range(3000):
        watch.see("vision", step, 5.0 * math.exp(-step / 500) - 1.0 + 0.3 * rng.standard_t(3))


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_loss_that_is_no_number_ends_it(loss: float) -> None:
    with pytest.raises(TrainingError, match=r"^vision stage, step 7: .*diverged; begin again$"):
        Watch("begin again").see("vision", 7, loss)


def test_losses_far_above_their_median_end_it_and_one_does_not() -> None:
    rng, watch = np.random.default_rng(0), Watch("begin again")
    losses = [(step, 1.0 + 0.1 * rng.normal()) for step in range(200)]
    for step, loss in [*losses, (200, 1e6), (201, 1.0), *((step, 1e6) for step in range(300, 309))]:
        watch.see("policy", step, loss)
    with pytest.raises(TrainingError, match=r"^policy stage, step 309: .* found 1e\+06") as caught:
        watch.see("policy", 309, 1e6)
    assert "\n" not in str(caught.value)
