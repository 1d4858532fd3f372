"""`modeld params`: the directory in force, and what is in it in words."""

import json
from pathlib import Path

import pytest

from modeld.vehicle.model_params import PARAMETERS
from tests.modeld.bench import Patch, car_event, car_parameter
from tests.modeld.test_params import bundle_bytes, calibration_bytes, event_bytes, put
from tests.tools.conftest import Modeld

WORDS = {
    "CarParams": "A CAR, actuators: steering 0.12 s, longitudinal 0.25 s",
    "CarParamsPersistent": "-",
    "CalibrationParams": (
        "calibrated, roll 0.00, pitch 7.16, yaw -3.58 degrees, camera 1.25 m above the road"
    ),
    "LiveDelay": "0.25 s from steering command to curvature, estimated",
    "IsRhdDetected": "the driver sits on the right",
    "IsDriverViewEnabled": "no",
    "IsOnroad": "yes",
    "CurrentRoute": "-",
    "DongleId": "0123456789abcdef",
    "LagdToggle": "the user sets the lateral delay",
    "LagdValueCache": "0.35 s",
    "CameraOffset": "-0.04 m",
    "ModelManager_ActiveBundle": (
        "Steam Powered (August 2025), generation 12, tinygrad, 5b6436a90cf6, lat .1, "
        "folder Release Models"
    ),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Parameters where the environment says, behind the link that the stack makes."""
    monkeypatch.setenv("PARAMS_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENPILOT_PREFIX", "P")
    (tmp_path / ".tmp_x").mkdir()
    (tmp_path / "P").symlink_to(".tmp_x")
    values = {
        "CarParams": car_parameter(car_event(steer_s=0.12)),
        "CalibrationParams": calibration_bytes(
            0.0, 0.125, -0.0625, height=[1.25], calStatus="calibrated"
        ),
        "LiveDelay": event_bytes("liveDelay", lateralDelay=0.25, status="estimated"),
        "ModelManager_ActiveBundle": bundle_bytes(),
        "DongleId": b"0123456789abcdef",
        "LagdValueCache": b"0.35",
        "CameraOffset": b"-0.04",
    }
    flags = {
        "IsRhdDetected": b"1",
        "IsDriverViewEnabled": b"0",
        "IsOnroad": b"1",
        "LagdToggle": b"1",
    }
    for key, data in (values | flags).items():
        put(tmp_path / "P", key, data)
    return tmp_path / "P"


def test_each_key_is_said_in_words(directory: Path, modeld: Modeld) -> None:
    title, _, *lines = modeld(0, "params", "--stack", "sunnypilot").out.splitlines()
    assert title == f"{directory}, of sunnypilot"
    width = max(map(len, WORDS))
    assert lines == [f"{key:{width}}  {words}" for key, words in WORDS.items()]
    assert list(WORDS) == [parameter.key for parameter in PARAMETERS]


def test_what_cannot_be_used_is_said_and_exit_code_1(directory: Path, modeld: Modeld) -> None:
    put(directory, "IsOnroad", b"maybe")
    expected = f"{directory}/IsOnroad: expected 0 or 1, found b'maybe'"
    assert f"IsOnroad                   NOT USABLE: {expected}\n" in modeld(1, "params").out
    found = modeld(1, "params", "--json").json
    assert (found["directory"], found["stack"]) == (str(directory), "openpilot-2025")
    rows = found["parameters"]
    assert rows["IsOnroad"] == {"value": None, "text": expected, "problem": expected}
    assert rows["IsRhdDetected"]["value"] is True
    assert rows["CurrentRoute"] == {"value": None, "text": "-", "problem": None}
    assert rows["CalibrationParams"]["value"]["rpy_rad"] == [0.0, 0.125, -0.0625]
    assert rows["ModelManager_ActiveBundle"]["value"]["overrides"]["lat"] == ".1"
    json.dumps(found)


def test_no_directory_is_one_line(tmp_path: Path, modeld: Modeld) -> None:
    text = f"{tmp_path}/none: expected the parameters of the stack, found no directory"
    said = "expected the directory of parameters, found no such file"
    modeld.refused(2, said, "params", "--params", tmp_path / "none")
    (tmp_path / "modeld.toml").write_text('params_dir = "none"\n', encoding="utf-8")
    modeld.refused(1, text, "params", "--config", tmp_path / "modeld.toml")
