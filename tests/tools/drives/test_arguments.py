from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tools.drives.arguments import add_drive_arguments, drive_options
from tools.drives.open_drive import DriveOptions


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_drive_arguments(parser)
    return parser


def test_options_reach_the_drive() -> None:
    given = ["--data-dir", "d", "--telemetry", "car.csv", "--focal-px", "900", "--rate", "20"]
    assert drive_options(_parser().parse_args([])) == DriveOptions()
    assert drive_options(_parser().parse_args(given)) == DriveOptions(
        data_dir=Path("d"), telemetry=Path("car.csv"), focal_px=900.0, rate_hz=20.0
    )


@pytest.mark.parametrize(
    "word", ["first video frame", "m/s", "degrees, positive to the left", "interpolated", "hold"]
)
def test_help_says_what_telemetry_means(word: str) -> None:
    assert word in " ".join(_parser().format_help().split())
