import math
import random
from pathlib import Path

import pytest

from tools.errors import TelemetryError
from tools.messages.telemetry import CarSample, constant_telemetry, read_telemetry

# Raise it after changes of the parser.
MUTATIONS = 500
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


def test_what_was_not_measured_is_interpolated_or_held(tmp_path: Path) -> None:
    rows = "t_s,speed_mps,left_blinker\n0,10,1\n1,,nan\n1.5,NaN,\n2,30,0\n"
    telemetry = read_telemetry(_write(tmp_path / "car.csv", rows))
    assert telemetry.at(1.0) == CarSample(20.0, 0.0, left_blinker=True, right_blinker=False)
    assert telemetry.at(1.9).left_blinker
    assert not telemetry.at(2.0).left_blinker


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("0,1\n2,1\n4,1\n", []),
        ("2,1\n3,1\n", []),
        ("2.5,1\n4.5,1\n", ["starts 2.50 s after drive.mp4 does; its first values hold"]),
        ("-9,1\n1,1\n", ["ends 3.00 s before drive.mp4 does", "1 gap longer than 2 s"]),
        ("0,1\n4,1\n", ["speed_mps has 1 gap longer than 2 s, the longest from 0.00 to 4.00"]),
        ("0,1\n1,\n2,nan\n3,1\n", ["speed_mps has 1 gap longer than 2 s"]),
        ("-90,1\n-50,1\n0,1\n1,1\n2,1\n30,1\n90,1\n", ["1 gap longer than 2 s"]),
    ],
)
def test_what_has_to_be_guessed_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: str, expected: list[str]
) -> None:
    telemetry = read_telemetry(_write(tmp_path / "car.csv", "t_s,speed_mps\n" + rows))
    telemetry.check_covers("drive.mp4", 4.0)
    said = _warnings(caplog)
    assert len(said) == len(expected)
    assert all(text in line for text, line in zip(expected, said, strict=True)), said


@pytest.mark.parametrize(("rows", "found"), [("5,1\n9,1", "5.00 to 9.00"), ("-3,1", "-3.00 to")])
def test_times_outside_the_video_are_an_error_that_names_both_ranges(
    tmp_path: Path, rows: str, found: str
) -> None:
    telemetry = read_telemetry(_write(tmp_path / "car.csv", "t_s,speed_mps\n" + rows))
    text = rf"car.csv: expected .* drive.mp4, 0 to 4.00 s .* found {found}"
    with pytest.raises(TelemetryError, match=text):
        telemetry.check_covers("drive.mp4", 4.0)


def test_constant_car_never_changes() -> None:
    car = constant_telemetry(7.0)
    car.check_covers("drive.mp4", 1e4)
    assert car.at(0.0) == car.at(1e4) == CarSample(7.0, 0.0, False, False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"line 1: expected the columns t_s,speed_mps .* found nothing"),
        ("t_s,speed\n0,1\n", r"line 1: expected the columns"),
        ("t_s,speed_mps,t_s\n0,1,2\n", r"line 1: expected the columns"),
        ("t_s,speed_mps\n", r"at least one row"),
        ("t_s,speed_mps\n0,fast\n", r"line 2: column speed_mps: .* found 'fast'"),
        ("t_s,speed_mps\n0,1_0\n", r"line 2: column speed_mps: .* found '1_0'"),
        ("t_s,speed_mps\n\u0665,1\n", r"line 2: column t_s: .* found '\u0665'"),
        ("t_s,speed_mps\n0,nan\n", r"speed_mps: expected at least one number, found none"),
        ("t_s,speed_mps\nnan,1\n", r"line 2: column t_s"),
        ("t_s,speed_mps\n,1\n", r"line 2: column t_s"),
        ("t_s,speed_mps\n0,inf\n", r"line 2: column speed_mps: .* found 'inf'"),
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


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    rng = random.Random(8)  # noqa: S311 - repeatable, not secret
    path = tmp_path / "car.csv"
    refused = 0
    for _ in range(MUTATIONS):
        data = bytearray(GOOD.encode())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b'0123456789.,-en\n\r"\x00\xff a')
        path.write_bytes(data)
        try:
            car = read_telemetry(path).at(0.7)
            assert math.isfinite(car.speed_mps)
            assert math.isfinite(car.steering_angle_deg)
        except TelemetryError:
            refused += 1
    assert MUTATIONS // 10 < refused < MUTATIONS
