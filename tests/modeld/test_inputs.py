"""What the model is told of driver and car; parameters of the stack."""

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event
from modeld.errors import ParameterError
from modeld.inputs import DEMO_CAR, CarParameters, DesirePulse, action_times, read_car_parameters
from modeld.params import LIMIT_BYTES, UserDelay, car_of_params, read_param
from modeld.validity import Reason
from tests.modeld.bench import Log, car_event, car_parameter
from tests.modeld.fake_program import SPLIT_ACTION


@pytest.mark.parametrize(
    ("desires", "pulses"),
    [
        # At the rising edge only, and when it changes.
        ([0, 3, 3, 3, 0, 3], [[], [3], [], [], [], [3]]),
        ([3, 4, 4, 3], [[3], [4], [], [3]]),
        # None and what is no desire never pulse.
        ([0, 8, -1, 7], [[], [], [], [7]]),
    ],
)
def test_desires_become_pulses(desires: list[int], pulses: list[list[int]]) -> None:
    pulse = DesirePulse()
    for desire, expected in zip(desires, pulses, strict=True):
        found = pulse.update(desire)
        assert found.dtype == np.float32
        assert found.tolist() == [float(index in expected) for index in range(8)]


CAR = CarParameters(longitudinal_actuator_delay_s=0.5, name="x", steer_actuator_delay_s=0.12)
OLD = {"lateral_delay": "steerActuatorDelay", "lateral_delay_extra_s": 0.2}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # August 2025: .2 measured + .1; .5 + .3; one period more.
        ({}, (0.3, 0.35, 0.85)),
        # 2026: no lateral filter, a period and a half.
        ({"lat_smooth_s": 0.0, "frame_delay_s": 0.075}, (0.2, 0.275, 0.875)),
        # Until May 2025: the car's own .12 + .2 + .3 of the filter.
        ({**OLD, "lat_smooth_s": 0.3}, (0.62, 0.67, 0.85)),
        # 2024: .12 + .2 and nothing else.
        (
            {**OLD, "lat_smooth_s": 0.0, "long_smooth_s": 0.0, "frame_delay_s": 0.0},
            (0.32, 0.32, 0.5),
        ),
    ],
)
def test_delays_and_action_times_of_the_generations(
    changes: dict[str, Any], expected: tuple[float, float, float]
) -> None:
    times = action_times(0.2, CAR, replace(SPLIT_ACTION, **changes))
    found = (times.lateral_delay_s, times.lateral_s, times.longitudinal_s)
    assert found == pytest.approx(expected)


# --- the car ----------------------------------------------------------------------------------

LONG, STEER = "carParams.longitudinalActuatorDelay", "carParams.steerActuatorDelay"


def test_the_car_is_read_from_its_fields() -> None:
    for name, delay_s, steer_s in (("A CAR", 0.25, 0.125), ("x", 0.0, 5.0)):
        car = read_car_parameters(car_event(name, delay_s, steer_s).carParams)
        assert car == CarParameters(delay_s, name, steer_s)
    assert DEMO_CAR.longitudinal_actuator_delay_s > 0
    assert DEMO_CAR.steer_actuator_delay_s > 0


@pytest.mark.parametrize(
    ("value", "found"),
    [(math.nan, "nan"), (math.inf, "inf"), (-0.1, "-0.1"), (5.1, "5.1"), (1e9, "1e+09")],
)
def test_a_delay_out_of_bounds_counts_as_zero_and_is_a_reason(value: float, found: str) -> None:
    car = read_car_parameters(car_event("A CAR", value, 0.25).carParams)
    assert (car.longitudinal_actuator_delay_s, car.steer_actuator_delay_s) == (0.0, 0.25)
    text = f"{LONG}: expected 0 to 5 s, found {found}; it counts as 0"
    assert car.reasons == (Reason(f"{LONG} out of bounds", text),)
    car = read_car_parameters(car_event("A CAR", value, value).carParams)
    assert car.steer_actuator_delay_s == 0.0
    assert [one.kind.partition(" ")[0] for one in car.reasons] == [LONG, STEER]


# --- parameters of the stack ------------------------------------------------------------------


def test_parameter_is_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "LagdToggle").write_bytes(b"1")
    assert read_param(tmp_path, "LagdToggle") == b"1"
    for directory in (tmp_path, tmp_path / "none", tmp_path / "LagdToggle"):
        assert read_param(directory, "CarParams") is None


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("pipe", "expected a file"),
        ("directory", "expected a file"),
        ("huge", f"expected at most {LIMIT_BYTES} bytes"),
        ("loop", "expected a parameter, found Too many levels"),
    ],
)
def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path, key: str, reason: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ParameterError, match=reason) as caught:
        read_param(tmp_path, key)
    assert str(tmp_path / key) in str(caught.value)


def test_car_of_the_parameter_through_the_link_that_the_stack_makes(tmp_path: Path) -> None:
    values = tmp_path / ".tmp_abcdef"
    values.mkdir()
    (tmp_path / "d").symlink_to(values)
    # That of the last drive is not taken.
    (values / "CarParamsPersistent").write_bytes(car_parameter(car_event()))
    assert car_of_params(tmp_path / "d") is None
    (values / "CarParams").write_bytes(car_parameter(car_event(steer_s=0.125)))
    assert car_of_params(tmp_path / "d") == CarParameters(0.25, "A CAR", 0.125)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"garbage!" * 8,
        bytes(64),
        car_parameter(car_event())[:-8],
        car_parameter(car_event(name="")),
        # An Event holds other pointers where the fingerprint would be.
        new_event("carParams", mono_time_ns=1).to_bytes(),
    ],
)
def test_damaged_parameter_is_one_typed_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "CarParams").write_bytes(data)
    with pytest.raises(ParameterError, match="CarParams: ") as caught:
        car_of_params(tmp_path)
    assert "\n" not in str(caught.value)


def test_every_flipped_byte_gives_a_car_or_one_typed_error(tmp_path: Path) -> None:
    data = car_parameter(car_event())
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        (tmp_path / "CarParams").write_bytes(damaged)
        try:
            found = car_of_params(tmp_path)
        except ParameterError:
            continue
        assert isinstance(found, CarParameters)
        assert 0.0 <= found.longitudinal_actuator_delay_s < float("inf")


def test_user_delay_is_looked_up_each_60_updates(tmp_path: Path) -> None:
    delay = UserDelay(tmp_path)
    # The first loop finds the default, and keeps it for 3 s, as the stack's own daemon does.
    found = [delay.update(0.0 if update == 0 else 0.3, update) for update in range(61)]
    assert found == [0.0] * 60 + [0.3]
    (tmp_path / "LagdValueCache").write_bytes(b"0.2")
    assert delay.update(0.3, 120) == 0.3
    (tmp_path / "LagdToggle").write_bytes(b"1")
    assert delay.update(0.3, 121) == 0.3
    assert delay.update(0.3, 180) == 0.2
    (tmp_path / "LagdToggle").write_bytes(b"0")
    assert delay.update(0.4, 240) == 0.4


@pytest.mark.parametrize("value", [b"", b"fast", b"nan", b"-1", b"9", b"\xff"])
def test_delay_that_is_none_is_said_once(tmp_path: Path, value: bytes, caplog: Log) -> None:
    (tmp_path / "LagdToggle").write_bytes(b"1")
    (tmp_path / "LagdValueCache").write_bytes(value)
    delay = UserDelay(tmp_path)
    assert [delay.update(0.3, update) for update in (0, 60, 120)] == [0.3] * 3
    (said,) = caplog.messages
    assert "LagdValueCache: expected seconds from 0 to 5" in said
