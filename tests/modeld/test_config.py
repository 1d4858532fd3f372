from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from modeld.calibration import Camera, DeviceCameras
from modeld.config import Config, load_config
from modeld.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "modeld.toml"
    path.write_text(text)
    return path


def test_defaults() -> None:
    config = load_config()
    assert config == Config()
    # Those of the model.
    assert (config.lat_smooth_s, config.long_smooth_s) == (None, None)
    assert config.bus_address == "tcp://127.0.0.1"
    assert not config.demo


def test_config_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().demo = True  # type: ignore[misc]  # what is tested


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        model = "driving.pkl"
        demo = true
        device = "pocl"
        bus_address = "ipc:///run/modeld"
        stack = "openpilot-2026"
        port_hash = "murmur"
        params_dir = "params/d"
        camera_server = "cams"
        frame_timeout_ms = 50
        lat_smooth_s = 0
        long_smooth_s = 0.5
        send_raw_predictions = true
        [camera.road]
        width = 960
        height = 540
        focal_px = 800
        [camera.wide]
        width = 960
        height = 540
        focal_px = 300.5
        """,
    )
    assert load_config(path) == Config(
        model=tmp_path / "driving.pkl",
        demo=True,
        device="pocl",
        bus_address="ipc:///run/modeld",
        stack="openpilot-2026",
        port_hash="murmur",
        params_dir=tmp_path / "params/d",
        camera_server="cams",
        frame_timeout_ms=50,
        lat_smooth_s=0.0,
        long_smooth_s=0.5,
        send_raw_predictions=True,
        cameras=DeviceCameras(Camera(960, 540, 800.0), Camera(960, 540, 300.5)),
    )


def test_stack_and_hash_give_the_ports() -> None:
    assert Config().bus_stack.port("modelV2") == 58537
    assert Config(port_hash="murmur").bus_stack.port("modelV2") == 27098
    assert Config(stack="openpilot-2026").bus_stack.port("liveDelay") == 34210
    old = Config(stack="openpilot-2026", port_hash="murmur").bus_stack
    assert old.port("liveDelay") == 51688


def test_parameters_lie_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMS_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENPILOT_PREFIX", "P")
    assert Config().parameters() == tmp_path / "P"
    monkeypatch.delenv("OPENPILOT_PREFIX")
    assert Config().parameters() == tmp_path / "d"
    monkeypatch.delenv("PARAMS_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().parameters() == tmp_path / ".comma/params/d"
    assert Config(params_dir=Path("here")).parameters() == Path("here")


def test_options_win_over_the_file_unless_not_given(tmp_path: Path) -> None:
    path = write(tmp_path, 'model = "a.pkl"\ncamera_server = "file"\n')
    config = load_config(path, {"model": "b.pkl", "camera_server": None, "demo": True})
    assert config.model == Path("b.pkl")
    assert config.camera_server == "file"
    assert config.demo


def test_raw_predictions_follow_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for value in ("1", "yes", "0", ""):
        monkeypatch.setenv("SEND_RAW_PRED", value)
        results.append(Config().send_raw_predictions)
    monkeypatch.delenv("SEND_RAW_PRED")
    results.append(load_config().send_raw_predictions)
    assert results == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", r"unknown key modle; known keys are model, demo"),
        ("demo = 1", r"demo: expected bool, got int 1"),
        ("frame_timeout_ms = true", r"frame_timeout_ms: expected int, got bool True"),
        ("frame_timeout_ms = 0", r"frame_timeout_ms: expected 1\.\.10000, got 0"),
        ("lat_smooth_s = nan", r"lat_smooth_s: expected 0\.0\.\.5\.0, got nan"),
        ("long_smooth_s = -0.1", r"long_smooth_s: expected 0\.0\.\.5\.0, got -0\.1"),
        ("lat_smooth_s = '1'", r"lat_smooth_s: expected float, got str '1'"),
        ("bus_address = 'http://x'", r"bus_address: expected tcp://HOST"),
        (
            "stack = 'openpilot'",
            r"stack: expected one of openpilot-2025, openpilot-2026, sunnypilot, got 'openpilot'",
        ),
        ("port_hash = 'md5'", r"port_hash: expected one of murmur, fnv1a, got 'md5'"),
        ("camera_server = 'a/b'", r"camera_server: expected a name"),
        ("demo =", r"expected TOML"),
        ("camera = 3", r"\[camera\]: expected tables"),
        ("[camera.side]\nwidth = 3", r"\[camera\]: expected tables"),
        ("[camera.road]\nwidth = 960", r"\[camera\.road\]: missing focal_px, height"),
        (
            "[camera.road]\nwidth = 960\nheight = 540\nfocal_px = 1\nfov = 2",
            r"unknown key camera\.road\.fov",
        ),
        (
            "[camera.road]\nwidth = 960\nheight = 0\nfocal_px = 800",
            r"camera\.road\.height: expected 2\.\.16384, got 0",
        ),
    ],
)
def test_bad_files_are_rejected_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


def test_bytes_that_are_no_text_are_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected TOML"):
        load_config(path)


def test_unknown_option_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="option 'modle'"):
        load_config(None, {"modle": "x"})
