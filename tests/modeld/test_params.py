import logging
import os
from pathlib import Path

import pytest

from cereal.schema import new_event
from modeld.errors import ParameterError
from modeld.inputs import CarParameters
from modeld.params import LIMIT_BYTES, UserDelay, car_of_params, read_param


def car_params(name: str = "TEST CAR", delay_s: float = 0.25) -> bytes:
    """The value of the parameter: the structure itself, framed, without an Event around it."""
    event = new_event("carParams", mono_time_ns=1)
    event.carParams.carFingerprint = name
    event.carParams.longitudinalActuatorDelay = delay_s
    data: bytes = event.carParams.as_reader().as_builder().to_bytes()
    return data


def test_parameter_is_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "LagdToggle").write_bytes(b"1")
    assert read_param(tmp_path, "LagdToggle") == b"1"
    assert read_param(tmp_path, "CarParams") is None
    assert read_param(tmp_path / "none", "CarParams") is None
    assert read_param(tmp_path / "LagdToggle", "CarParams") is None


def test_what_is_no_file_or_too_large_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for key, reason in {
        "pipe": "expected a file",
        "directory": "expected a file",
        "huge": f"expected at most {LIMIT_BYTES} bytes",
        "loop": "expected a parameter, found Too many levels",
    }.items():
        with pytest.raises(ParameterError, match=reason) as caught:
            read_param(tmp_path, key)
        assert str(tmp_path / key) in str(caught.value)


def test_car_of_the_parameter_through_the_link_that_the_stack_makes(tmp_path: Path) -> None:
    values = tmp_path / ".tmp_abcdef"
    values.mkdir()
    (tmp_path / "d").symlink_to(values)
    assert car_of_params(tmp_path / "d") is None
    (values / "CarParams").write_bytes(car_params())
    found = car_of_params(tmp_path / "d")
    assert found is not None
    assert (found.name, found.longitudinal_actuator_delay_s) == ("TEST CAR", 0.25)


def test_parameter_of_the_last_drive_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "CarParamsPersistent").write_bytes(car_params())
    assert car_of_params(tmp_path) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        b"garbage!" * 8,
        bytes(64),
        car_params()[:-8],
        car_params(name=""),
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
    data = car_params()
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
def test_delay_that_is_none_is_said_once(
    tmp_path: Path, value: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "LagdToggle").write_bytes(b"1")
    (tmp_path / "LagdValueCache").write_bytes(value)
    delay = UserDelay(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert [delay.update(0.3, update) for update in (0, 60, 120)] == [0.3] * 3
    assert len(caplog.messages) == 1
    assert "LagdValueCache: expected seconds from 0 to 5" in caplog.messages[0]
