from __future__ import annotations

from pathlib import Path

import pytest

from tools.errors import TelemetryError
from tools.lib.telemetry import CarSample, constant_telemetry, read_telemetry

GOOD = """t_s, speed_mps, steering_angle_deg, left_blinker, right_blinker
0.0, 10.0, 0.0, 0, 0
1.0, 20.0, -4.0, 1, false

2.0, 20.0, 4.0, 0, true
"""


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [
        (-1.0, CarSample(10.0, 0.0, left_blinker=False, right_blinker=False)),
        (0.5, CarSample(15.0, -2.0, left_blinker=False, right_blinker=False)),
        (1.0, CarSample(20.0, -4.0, left_blinker=True, right_blinker=False)),
        (1.5, CarSample(20.0, 0.0, left_blinker=True, right_blinker=False)),
        (9.0, CarSample(20.0, 4.0, left_blinker=False, right_blinker=True)),
    ],
)
def test_numbers_are_interpolated_and_switches_hold(
    tmp_path: Path, time_s: float, expected: CarSample
) -> None:
    telemetry = read_telemetry(_write(tmp_path / "car.csv", GOOD))
    assert telemetry.at(time_s) == expected


def test_constant_car_never_changes() -> None:
    car = constant_telemetry(7.0)
    assert car.at(0.0) == car.at(1e4) == CarSample(7.0, 0.0, False, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: expected the columns t_s,speed_mps .* found nothing"),
        ("t_s,speed\n0,1\n", r"line 1: expected the columns"),
        ("t_s,speed_mps,t_s\n0,1,2\n", r"line 1: expected the columns"),
        ("t_s,speed_mps\n", r"at least one row"),
        ("t_s,speed_mps\n0,fast\n", r"line 2: column speed_mps: .* found 'fast'"),
        ("t_s,speed_mps\n0,nan\n", r"line 2: column speed_mps"),
        ("t_s,speed_mps\n0,1e39\n", r"line 2: column speed_mps: .* at most 1e\+09, found '1e39'"),
        ("t_s,speed_mps\n0," + "1" * 200_000 + "\n", r"line 2: expected comma-separated numbers"),
        ("t_s,speed_mps\n0,1\n1\n", r"line 3: expected 2 cells, found 1"),
        ("t_s,speed_mps\n0,1\n2,1\n1,1\n", r"data row 3: expected t_s above 2, found 1"),
    ],
)
def test_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TelemetryError, match=message):
        read_telemetry(_write(tmp_path / "car.csv", text))


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="No such file"):
        read_telemetry(tmp_path / "none.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(TelemetryError, match="expected UTF-8"):
        read_telemetry(tmp_path / "binary.csv")
