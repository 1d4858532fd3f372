"""Parameters of the stack: what is read when, what is believed, what the loop makes of them."""

import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cereal.schema import new_event
from modeld.errors import ParameterError
from modeld.vehicle.inputs import CarParameters
from modeld.vehicle.model_params import (
    BUNDLE,
    CALIBRATION,
    CAMERA_OFFSET,
    CAR,
    CAR_BEFORE,
    DELAY,
    DONGLE_ID,
    IS_RHD,
    OWN_DELAY,
    PARAMETERS,
    CarWatch,
    StoredCalibration,
    StoredDelay,
    UserDelay,
    log_differences,
)
from modeld.vehicle.params import LIMIT_BYTES, Parameter, Params
from runtime.format.manifest import ModelSource
from tests.modeld.bench import Log, Patch, car_event, car_parameter
from tests.modeld.fake_program import SPLIT_ACTION

BUNDLE_VALUES = {
    "displayName": "Steam Powered (August 2025)",
    "internalName": "SPV1",
    "ref": "5b6436a90cf6",
    "generation": 12,
    "runner": "tinygrad",
    "models": [{"type": "vision", "artifact": {"fileName": "driving_vision_SPV1_tinygrad.pkl"}}],
    "overrides": [{"key": "lat", "value": ".1"}, {"key": "folder", "value": "Release Models"}],
}


def bundle_bytes(**changes: Any) -> bytes:
    return json.dumps({**BUNDLE_VALUES, **changes}).encode()


def event_bytes(service: str, **fields: Any) -> bytes:
    event = new_event(service, mono_time_ns=1)
    for name, value in fields.items():
        setattr(getattr(event, service), name, value)
    return bytes(event.to_bytes())


def calibration_bytes(*rpy: float, **fields: Any) -> bytes:
    return event_bytes("liveCalibration", rpyCalib=list(rpy), **fields)


def put(directory: Path, key: str, data: bytes, age_s: float = 60.0) -> None:
    """Write a value as the stack does: renamed into place; of some age, as most are."""
    other = directory / f".tmp_{key}"
    other.write_bytes(data)
    stamp = other.stat().st_mtime - age_s
    os.utime(other, (stamp, stamp))
    other.rename(directory / key)


def test_parameter_is_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "LagdToggle").write_bytes(b"1")
    assert Params(tmp_path).read("LagdToggle") == b"1"
    for directory in (tmp_path, tmp_path / "none", tmp_path / "LagdToggle"):
        assert Params(directory).read("CarParams") is None


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("pipe", "expected a file"),
        ("directory", "expected a file"),
        ("huge", f"expected at most {LIMIT_BYTES} bytes"),
        ("loop", "expected a parameter, found Too many levels"),
    ],
)
def test_what_is_no_file_or_too_large_is_refused_each_time_and_said_once(
    tmp_path: Path, key: str, reason: str, caplog: Log
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    params = Params(tmp_path, period_ms=1_000_000)
    for _ in range(2):
        with pytest.raises(ParameterError, match=reason) as caught:
            params.read(key)
        assert str(tmp_path / key) in str(caught.value)
        assert params.usable(Parameter(key, bytes)) is None
    (said,) = caplog.messages
    assert reason in said


def test_a_file_is_opened_again_only_when_it_is_another_one(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    opened: list[str] = []
    really: Callable[..., int] = os.open

    def count(path: Any, *more: Any) -> int:
        opened.append(str(path))
        return really(path, *more)

    monkeypatch.setattr(os, "open", count)
    params = Params(tmp_path)
    put(tmp_path, "DongleId", b"0123456789abcdef")
    assert [params.value(DONGLE_ID) for _ in range(5)] == ["0123456789abcdef"] * 5
    assert len(opened) == 1
    # Of the same size and age: another file in its place.
    put(tmp_path, "DongleId", b"fedcba9876543210")
    assert params.value(DONGLE_ID) == "fedcba9876543210"
    assert len(opened) == 2
    # One that was written just now may change again within the tick of its time.
    put(tmp_path, "DongleId", b"0123456789abcdef", age_s=0.0)
    place = (tmp_path / "DongleId").stat()
    monkeypatch.setattr(time, "time_ns", lambda: place.st_mtime_ns + 1_000_000)
    assert params.read("DongleId") == b"0123456789abcdef"
    (tmp_path / "DongleId").write_bytes(b"aaaaaaaaaaaaaaaa")
    os.utime(tmp_path / "DongleId", ns=(place.st_mtime_ns, place.st_mtime_ns))
    assert params.read("DongleId") == b"aaaaaaaaaaaaaaaa"
    (tmp_path / "DongleId").unlink()
    assert params.read("DongleId") is None


def test_a_key_is_looked_at_no_more_often_than_its_period(tmp_path: Path) -> None:
    now_ns = 0
    params = Params(tmp_path, period_ms=100, clock_ns=lambda: now_ns)
    assert params.read("IsOnroad") is None
    put(tmp_path, "IsOnroad", b"1")
    now_ns = 99_999_999
    assert params.read("IsOnroad") is None
    now_ns += 1
    assert params.read("IsOnroad") == b"1"


def test_the_link_that_the_stack_makes_may_come_to_lead_elsewhere(tmp_path: Path) -> None:
    for name, car in (("first", "A CAR"), ("second", "B CAR")):
        (tmp_path / name).mkdir()
        # That of the last drive is not taken.
        put(tmp_path / name, "CarParamsPersistent", car_parameter(car_event("OLD CAR")))
        put(tmp_path / name, "CarParams", car_parameter(car_event(car)))
    params, link = Params(tmp_path / "d"), tmp_path / "d"
    assert params.value(CAR) is None
    for name, car in (("first", "A CAR"), ("second", "B CAR"), ("first", "A CAR")):
        (tmp_path / "link").symlink_to(name)
        (tmp_path / "link").rename(link)
        found = params.value(CAR)
        assert found is not None
        assert found.name == car
    before = params.value(CAR_BEFORE)
    assert before is not None
    assert before.name == "OLD CAR"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "first", "second"]


@pytest.mark.parametrize(
    ("parameter", "data", "value"),
    [
        (CAR, car_parameter(car_event(steer_s=0.125)), CarParameters(0.25, "A CAR", 0.125)),
        (
            CALIBRATION,
            calibration_bytes(0.0, 0.125, -0.0625, height=[1.25], calStatus="calibrated"),
            StoredCalibration((0.0, 0.125, -0.0625), "calibrated", 1.25),
        ),
        (
            DELAY,
            event_bytes("liveDelay", lateralDelay=0.25, status="estimated"),
            StoredDelay(0.25, "estimated"),
        ),
        (IS_RHD, b"1", True),
        (IS_RHD, b"0", False),
        (OWN_DELAY, b"0.35", 0.35),
        (CAMERA_OFFSET, b"-0.04", -0.04),
        (DONGLE_ID, b"0123456789abcdef", "0123456789abcdef"),
    ],
)
def test_values(tmp_path: Path, parameter: Parameter[Any], data: bytes, value: Any) -> None:
    put(tmp_path, parameter.key, data)
    assert Params(tmp_path).value(parameter) == value


def test_a_bundle(tmp_path: Path) -> None:
    put(tmp_path, BUNDLE.key, bundle_bytes())
    bundle = Params(tmp_path).value(BUNDLE)
    assert bundle is not None
    assert (bundle.name, bundle.generation) == ("Steam Powered (August 2025)", 12)
    assert (bundle.smoothing_s("lat"), bundle.smoothing_s("long")) == (0.1, 0.0)
    assert bundle.files == ("driving_vision_SPV1_tinygrad.pkl",)


NAMELESS = car_parameter(car_event(name=""))
# An Event holds other pointers where the fingerprint would be.
CAR_MESSAGE = bytes(new_event("carParams", mono_time_ns=1).to_bytes())


@pytest.mark.parametrize(
    ("parameter", "data", "reason"),
    [
        (CAR, b"", ""),
        (CAR, b"garbage", ""),
        (CAR, b"garbage!" * 8, ""),
        (CAR, bytes(64), ""),
        (CAR, car_parameter(car_event())[:-8], ""),
        (CAR, NAMELESS, "expected the fingerprint"),
        (CAR, CAR_MESSAGE, ""),
        (CALIBRATION, CAR_MESSAGE, "expected a message liveCalibration, found carParams"),
        (CALIBRATION, calibration_bytes(), "expected 3 angles, found 0"),
        (CALIBRATION, calibration_bytes(0.0, 1.5, 0.0), r"rpyCalib\[1\]: expected -0.19"),
        (CALIBRATION, calibration_bytes(0.0, math.nan, 0.0), "found nan"),
        (CALIBRATION, calibration_bytes(0.0, 0.0, 0.0, height=[math.inf]), "0 to 10 m"),
        (DELAY, event_bytes("liveDelay", lateralDelay=-1.0), "expected 0 to 2 s, found -1"),
        (DELAY, bytes(8), ""),
        (IS_RHD, b"yes", "expected 0 or 1"),
        (IS_RHD, b"", "expected 0 or 1"),
        (DONGLE_ID, b"\x1b[2J", "expected a name"),
        (DONGLE_ID, b"x" * 65, "expected a name"),
        *((OWN_DELAY, data, "seconds from 0 to 5") for data in (b"", b"fast", b"nan", b"-1", b"9")),
        (CAMERA_OFFSET, b"inf", "metres from -1 to 1"),
        (BUNDLE, b"", "expected JSON"),
        (BUNDLE, b"[" * 100_000, "expected JSON"),
        (BUNDLE, b"[]", r"expected a bundle, found \[\]"),
        (BUNDLE, bundle_bytes(generation=1e300), "generation: expected 0 to"),
        (BUNDLE, bundle_bytes(generation=True), "generation: expected 0 to"),
        (BUNDLE, bundle_bytes(displayName="", internalName=""), "the name of a model"),
        (BUNDLE, bundle_bytes(ref="x" * 257), "ref: expected a line of text"),
        (BUNDLE, bundle_bytes(ref="a\nb"), "ref: expected a line of text"),
        (BUNDLE, bundle_bytes(models=[{}] * 33), "models: expected a list of at most 32"),
        (BUNDLE, bundle_bytes(models=[{"artifact": 1}]), "expected an artifact"),
        (BUNDLE, bundle_bytes(overrides=[{"key": "long", "value": "1e9"}]), "long: expected sec"),
    ],
)
def test_what_is_no_value_is_one_typed_error(
    tmp_path: Path, parameter: Parameter[Any], data: bytes, reason: str, caplog: Log
) -> None:
    put(tmp_path, parameter.key, data)
    params = Params(tmp_path)
    with pytest.raises(ParameterError, match=f"{parameter.key}: .*{reason}") as caught:
        params.value(parameter)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert [params.usable(parameter) for _ in range(2)] == [None, None]
    assert caplog.messages == [f"parameter not used: {caught.value}"]


@pytest.mark.parametrize(
    ("parameter", "data"),
    [
        (CAR, car_parameter(car_event())),
        (CALIBRATION, calibration_bytes(0.0, 0.1, 0.0, height=[1.2])),
        (BUNDLE, bundle_bytes()),
    ],
)
def test_every_flipped_byte_gives_a_value_or_one_typed_error(
    tmp_path: Path, parameter: Parameter[Any], data: bytes
) -> None:
    params = Params(tmp_path)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0xFF
        (tmp_path / parameter.key).write_bytes(damaged)
        try:
            found = params.value(parameter)
        except ParameterError:
            continue
        assert found is not None


def test_every_known_key_is_another_one() -> None:
    assert len({parameter.key for parameter in PARAMETERS}) == len(PARAMETERS) == 13


def test_user_delay_is_looked_up_each_60_updates(tmp_path: Path) -> None:
    delay = UserDelay(Params(tmp_path))
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


def test_delay_that_is_none_is_not_used(tmp_path: Path) -> None:
    put(tmp_path, "LagdToggle", b"1")
    put(tmp_path, "LagdValueCache", b"fast")
    delay = UserDelay(Params(tmp_path))
    assert [delay.update(0.3, update) for update in (0, 60, 120)] == [0.3] * 3


def test_the_car_of_the_next_drive_is_taken_once_it_is_there(tmp_path: Path, caplog: Log) -> None:
    caplog.set_level("INFO")
    watch, first = CarWatch(Params(tmp_path)), CarParameters(0.25, "A CAR")
    steps = [
        (car_parameter(car_event("A CAR")), 0, "A CAR"),
        (None, 60, "A CAR"),  # a drive begins
        (b"garbage", 120, "A CAR"),
        (car_parameter(car_event("B CAR")), 121, "A CAR"),
        (None, 180, "A CAR"),
        (car_parameter(car_event("B CAR")), 240, "B CAR"),
        (None, 300, "B CAR"),
    ]
    car = first
    for data, update, expected in steps:
        (tmp_path / "CarParams").unlink(missing_ok=True)
        if data is not None:
            put(tmp_path, "CarParams", data)
        car = watch.update(car, update)
        assert car.name == expected, update
    assert caplog.messages[1:] == ["car changed: B CAR"]
    assert CarWatch(None).update(first, 0) is first


SMOOTHED = [
    "the stack smooths the outputs of 'Steam Powered (August 2025)' with long 0 s, here with 0.3 s"
]


@pytest.mark.parametrize(
    ("key", "data", "checkpoint", "said"),
    [
        (CAMERA_OFFSET.key, b"0.0", "x", []),
        (CAMERA_OFFSET.key, b"0.04", "x", ["CameraOffset is 0.04 m and is not applied"]),
        (BUNDLE.key, b"{}", "x", ["parameter not used: "]),
        (BUNDLE.key, bundle_bytes(), "example/seed-0", ["the stack's model is 'Steam Powered"]),
        # By the commit, the short name or the long one, however these are written.
        (BUNDLE.key, bundle_bytes(), "5b6436a90cf6/400", SMOOTHED),
        (BUNDLE.key, bundle_bytes(), "spv1-vision", SMOOTHED),
        (BUNDLE.key, bundle_bytes(), "steam_powered_august_2025", SMOOTHED),
        (BUNDLE.key, bundle_bytes(displayName="ab", internalName="", ref=""), "ab", ["the stack"]),
    ],
)
def test_what_the_user_of_the_stack_chose_otherwise_is_a_line(
    tmp_path: Path, key: str, data: bytes, checkpoint: str, said: list[str], caplog: Log
) -> None:
    put(tmp_path, key, data)
    models = [ModelSource("vision", "vision.onnx", "", checkpoint)]
    log_differences(Params(tmp_path), models, SPLIT_ACTION)
    assert len(caplog.messages) == len(said)
    for text, expected in zip(caplog.messages, said, strict=True):
        assert expected in text
