"""Settings from files, variables and options; what is wrong in them; the sample."""

import re
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from modeld.errors import ConfigError
from modeld.service.config import SETTINGS, Config, RealtimeConfig
from modeld.service.config_sources import (
    OTHER_VARIABLES,
    Given,
    changed_settings,
    load_config,
    load_settings,
    sample_config,
)
from modeld.vehicle.cameras import Camera, DeviceCameras
from tests.modeld.bench import Patch

# A table that is not closed.
CAMERA = "{width = 960, height = 540, focal_px = 1"


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
    with pytest.raises(FrozenInstanceError):
        config.demo = True  # type: ignore[misc]  # what is tested


# Each setting as a file has it, and its value; paths are relative to the file.
KEYS: dict[str, tuple[str, object]] = {
    "model": ("'driving.pkl'", "driving.pkl"),
    "demo": ("true", True),
    "device": ("'pocl'", "pocl"),
    "bus_address": ("'ipc:///run/modeld'", "ipc:///run/modeld"),
    "publish_address": ("'tcp://127.0.0.1:+1000'", "tcp://127.0.0.1:+1000"),
    "subscribe_address": ("'tcp://10.0.0.7:murmur'", "tcp://10.0.0.7:murmur"),
    "bus_keys": ("'keys'", "keys"),
    "stack": ("'openpilot-2026'", "openpilot-2026"),
    "port_hash": ("'murmur'", "murmur"),
    "params_dir": ("'params/d'", "params/d"),
    "camera_server": ("'cams'", "cams"),
    "frame_timeout_ms": ("50", 50),
    "lat_smooth_s": ("0", 0.0),
    "long_smooth_s": ("0.5", 0.5),
    "send_raw_predictions": ("true", True),
    "fallback_model": ("'../small.pkl'", "../small.pkl"),
    "models_dir": ("'/var/lib/models'", "/var/lib/models"),
    "role": ("'monitoring'", "monitoring"),
    "simulation": ("true", True),
    "state_dir": ("'state'", "state"),
    "run_timeout_ms": ("200", 200),
    "non_finite_limit": ("5", 5),
    "log_format": ("'json'", "json"),
    "log_level": ("'debug'", "debug"),
    "log_tracebacks": ("true", True),
    "metrics_file": ("'metrics.prom'", "metrics.prom"),
    "realtime.cpus": ("'0-3,6'", "0-3,6"),
    "realtime.priority": ("54", 54),
    "realtime.lock_memory": ("true", True),
    "realtime.freeze_gc": ("false", False),
    "realtime.gpu_priority": ("'high'", "high"),
    "realtime.keep_awake": ("true", True),
    "camera.road.width": ("960", 960),
    "camera.road.height": ("540", 540),
    "camera.road.focal_px": ("800", 800.0),
    "camera.road.focal_y_px": ("1600", 1600.0),
    "camera.wide.width": ("960", 960),
    "camera.wide.height": ("540", 540),
    "camera.wide.focal_px": ("300.5", 300.5),
    "camera.wide.focal_y_px": ("300.5", 300.5),
}
PATHS = (
    *("model", "params_dir", "fallback_model", "models_dir", "state_dir"),
    *("metrics_file", "bus_keys"),
)


def test_every_key_of_a_file_is_read(tmp_path: Path) -> None:
    assert set(KEYS) == set(SETTINGS)
    path = write(tmp_path, "\n".join(f"{key} = {text}" for key, (text, _) in KEYS.items()))
    expected = {key: value for key, (_, value) in KEYS.items()}
    expected |= {key: tmp_path / str(expected[key]) for key in PATHS}
    loaded = load_settings(path)
    assert loaded.config.values() == expected
    assert loaded.config.cameras == DeviceCameras(
        Camera(960, 540, 800.0, 1600.0), Camera(960, 540, 300.5, 300.5)
    )
    assert loaded.config.realtime.priority == 54
    assert set(loaded.sources.values()) == {f"file {path}"}


def test_stack_and_hash_give_the_ports() -> None:
    assert Config().bus_stack.port("modelV2") == 58537
    assert Config(port_hash="murmur").bus_stack.port("modelV2") == 27098
    assert Config(stack="openpilot-2026").bus_stack.port("liveDelay") == 34210
    old = Config(stack="openpilot-2026", port_hash="murmur").bus_stack
    assert old.port("liveDelay") == 51688


def test_parameters_lie_where_the_environment_says(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PARAMS_ROOT", str(tmp_path))
    monkeypatch.setenv("OPENPILOT_PREFIX", "P")
    assert Config().parameters() == tmp_path / "P"
    monkeypatch.delenv("OPENPILOT_PREFIX")
    assert Config().parameters() == tmp_path / "d"
    monkeypatch.delenv("PARAMS_ROOT")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Config().parameters() == tmp_path / ".comma/params/d"
    assert Config(params_dir=Path("here")).parameters() == Path("here")


BY_STACK = pytest.mark.parametrize(
    ("key", "variable"), [("send_raw_predictions", "SEND_RAW_PRED"), ("simulation", "SIMULATION")]
)


@BY_STACK
def test_variables_of_the_other_stack_are_defaults(
    key: str, variable: str, monkeypatch: Patch
) -> None:
    results = []
    for value in ("1", "yes", "0", ""):
        monkeypatch.setenv(variable, value)
        results.append(Config().values()[key])
    monkeypatch.delenv(variable)
    results.append(load_config().values()[key])
    assert results == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", r"unknown key modle; did you mean model\?"),
        ("bus_adress = 'x'", r"unknown key bus_adress; did you mean bus_address\?"),
        ("bus = 'x'", r"unknown key bus; did you mean bus_address\?"),
        ("zzz = 1", r"unknown key zzz$"),
        ("priority = 5", r"unknown key priority; did you mean realtime\.priority\?"),
        ("[realtme]\npriority = 5", r"unknown table \[realtme\]; did you mean realtime\?"),
        ("[realtime]\nprio = 5", r"unknown key realtime\.prio; did you mean realtime\.priority"),
        ("[realtime]\ndemo = true", r"unknown key realtime\.demo; did you mean demo\?"),
        ("realtime = 3", r"realtime: expected \[realtime\], got 3"),
        ("[realtime]\npriority = 100", r"realtime\.priority: expected 0\.\.99, got 100"),
        ("[realtime]\ncpus = '3-1'", r"realtime\.cpus: expected CPUs as 7 or 0-3,6, got '3-1'"),
        ("[realtime]\ncpus = 3", r"realtime\.cpus: expected str such as '4-7', got int 3"),
        ("[realtime]\ngpu_priority = 'max'", r"expected one of high, medium, low, got 'max'"),
        ("run_timeout_ms = 49", r"run_timeout_ms: expected 50\.\.800, got 49"),
        ("run_timeout_ms = 801", r"run_timeout_ms: expected 50\.\.800, got 801"),
        ("non_finite_limit = 101", r"non_finite_limit: expected 1\.\.100, got 101"),
        ("log_format = 'xml'", r"log_format: expected one of text, json, got 'xml'"),
        ("log_level = 'INFO'", r"log_level: expected one of debug, info, warning, error, got"),
        ("model = 'a'\nfallback_model = 'a'", r"fallback_model: expected another artifact"),
        ('metrics_file = "a\\u0000"', r"metrics_file: expected a path, got 'a\\x00'"),
        ("demo = 1\nb = 2\nlog_level = 'x'", r"demo: .*; unknown key b; log_level: "),
        ("demo = 1", r"demo: expected bool, got int 1"),
        ("frame_timeout_ms = true", r"frame_timeout_ms: expected int, got bool True"),
        ("frame_timeout_ms = 0", r"frame_timeout_ms: expected 1\.\.800, got 0"),
        ("frame_timeout_ms = 801", r"frame_timeout_ms: expected 1\.\.800, got 801"),
        ("lat_smooth_s = nan", r"lat_smooth_s: expected 0\.0\.\.5\.0, got nan"),
        ("long_smooth_s = -0.1", r"long_smooth_s: expected 0\.0\.\.5\.0, got -0\.1"),
        ("lat_smooth_s = '1'", r"lat_smooth_s: expected float.*, got str '1'"),
        ("bus_address = 'http://x'", r"bus_address: expected tcp://HOST, .* or msgq:PREFIX"),
        (
            "publish_address = 'tcp://h:5'\nsubscribe_address = ''\nport_hash = 'md5'",
            r"publish_address: expected .*, got 'tcp://h:5'; subscribe_address: .* got ''; port_h",
        ),
        (
            "stack = 'x'",
            r"stack: expected one of openpilot-2025, openpilot-2026, sunnypilot, sunnypilot-2026",
        ),
        ("port_hash = 'md5'", r"port_hash: expected one of murmur, fnv1a, got 'md5'"),
        *(
            (f"camera_server = '{text}'", r"camera_server: expected NAME of a frame ring, vision")
            for text in ("a/b", "", "visionipc:", "udp:cams", "visionipc+zmq:cams")
        ),
        ("demo =", r"expected TOML"),
        ("camera = 3", r"camera: expected \[camera\.road\] and \[camera\.wide\], got 3"),
        ("[[camera]]\nroad = 3", r"camera: expected \[camera\.road\] and \[camera\.wide\], got"),
        ("[camera.side]\nwidth = 3", r"unknown table \[camera\.side\]; did you mean camera\.wide"),
        ("[camera.road]\nwidth = 960", r"\[camera\.road\]: missing height, focal_px"),
        (f"camera.wide = {CAMERA}}}", r"\[camera\.wide\]: expected \[camera\.road\], too"),
        (f"camera.road = {CAMERA}, fov = 2}}", r"unknown key camera\.road\.fov"),
        (
            "camera.road = {width = 960, height = 0, focal_px = 800}",
            r"toml: camera\.road\.height: expected 2\.\.16384, got 0$",
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


def test_what_is_no_file_of_text_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected TOML"):
        load_config(tmp_path / "binary.toml")


ENVIRONMENT = {
    "MODELD_CACHE_DIR": "/cache",
    "MODELD_TEST_SESSION": "1",
    "HOME": "/",
    "MODELD_BUS_ADDRESS": "ipc:///variable",
    "MODELD_REALTIME_PRIORITY": "7",
    "MODELD_REALTIME_FREEZE_GC": "off",
    "MODELD_CAMERA_ROAD_FOCAL_PX": "900",
    "MODELD_MODEL": "variable.pkl",
    "MODELD_LAT_SMOOTH_S": "0.25",
    "MODELD_DEVICE": "",
}


def test_each_source_wins_over_those_before_it(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        bus_address = "ipc:///file"
        camera_server = "file"
        model = "file.pkl"
        device = "file"
        [realtime]
        priority = 1
        [camera]
        road = {width = 960, height = 540, focal_px = 800}
        """,
    )
    options = [Given("bus_address", "ipc:///option", "--bus"), Given("demo", "true", "--demo")]
    loaded = load_settings(path, ENVIRONMENT, options)
    assert loaded.config == Config(
        bus_address="ipc:///option",
        camera_server="file",
        model=Path("variable.pkl"),
        device="file",
        demo=True,
        lat_smooth_s=0.25,
        realtime=RealtimeConfig(priority=7, freeze_gc=False),
        cameras=DeviceCameras(Camera(960, 540, 900.0), None),
    )
    sources = loaded.sources
    assert list(sources) == list(SETTINGS)
    assert sources["bus_address"] == "option --bus"
    assert sources["realtime.priority"] == "variable MODELD_REALTIME_PRIORITY"
    assert sources["camera.road.width"] == f"file {path}"
    assert sources["camera.road.focal_px"] == "variable MODELD_CAMERA_ROAD_FOCAL_PX"
    assert sources["device"] == f"file {path}"
    assert sources["stack"] == "default"


OTHER, THIRD = "tcp://127.0.0.1:+1", "ipc:///third"
PUBLISH, BUS = f"publish_address = '{OTHER}'", "bus_address = 'ipc:///bus'"
BUS_OPTION = Given("bus_address", THIRD, "--bus")
PUBLISH_OPTION = Given("publish_address", OTHER, "--publish")


@pytest.mark.parametrize(
    ("text", "environment", "options", "addresses"),
    [
        ("", {}, [], ("tcp://127.0.0.1", "tcp://127.0.0.1")),
        (BUS, {}, [], ("ipc:///bus", "ipc:///bus")),
        (PUBLISH, {}, [], (OTHER, "tcp://127.0.0.1")),
        # In one place the order does not matter.
        (f"{PUBLISH}\n{BUS}", {}, [], (OTHER, "ipc:///bus")),
        (f"{BUS}\n{PUBLISH}", {}, [], (OTHER, "ipc:///bus")),
        (BUS, {}, [PUBLISH_OPTION, BUS_OPTION], (OTHER, THIRD)),
        # A later place that says both says so of whatever a place before it has.
        (PUBLISH, {}, [BUS_OPTION], (THIRD, THIRD)),
        (PUBLISH, {"MODELD_BUS_ADDRESS": THIRD}, [], (THIRD, THIRD)),
        (PUBLISH, {"MODELD_BUS_ADDRESS": THIRD}, [PUBLISH_OPTION], (OTHER, THIRD)),
        (BUS, {"MODELD_SUBSCRIBE_ADDRESS": THIRD}, [], ("ipc:///bus", THIRD)),
        (BUS, {"MODELD_SUBSCRIBE_ADDRESS": OTHER}, [BUS_OPTION], (THIRD, THIRD)),
    ],
)
def test_bus_address_stands_for_both_addresses(
    tmp_path: Path,
    text: str,
    environment: dict[str, str],
    options: list[Given],
    addresses: tuple[str, str],
) -> None:
    loaded = load_settings(write(tmp_path, text), environment, options)
    assert loaded.config.addresses == addresses
    # What is shown is what is in force, with where it comes from.
    for key in ("publish_address", "subscribe_address"):
        assert (loaded.sources[key] == "default") is (loaded.config.values()[key] is None)


def test_wrong_variables_and_options_are_told_together(tmp_path: Path) -> None:
    path = write(tmp_path, "modle = 'x'")
    environment = {"MODELD_BUS_ADDRES": "x", "MODELD_DEMO": "maybe", "MODELD_RUN_TIMEOUT_MS": "1"}
    options = [
        Given("realtime.priority", "5_0", "--priority"),
        Given("lat_smooth_s", "nan", "--set lat_smooth_s"),
        Given("demmo", "1", "--set demmo"),
    ]
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment, options)
    assert str(caught.value) == (
        f"{path}: unknown key modle; did you mean model?; "
        "environment: unknown variable MODELD_BUS_ADDRES; did you mean MODELD_BUS_ADDRESS?; "
        "MODELD_DEMO: expected true or false, got 'maybe'; "
        "MODELD_RUN_TIMEOUT_MS: expected 50..800, got 1; "
        "options: --priority: expected 0..99, got '5_0'; "
        "--set lat_smooth_s: expected 0.0..5.0, got nan; "
        "unknown key demmo; did you mean demo?"
    )


@BY_STACK
def test_the_variable_of_the_other_stack_loses_against_the_file_and_is_named(
    key: str, variable: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv(variable, "1")
    loaded = load_settings(None, {variable: "1"})
    assert loaded.config.values()[key]
    assert loaded.sources[key] == f"variable {variable}"
    path = write(tmp_path, f"{key} = false")
    loaded = load_settings(path, {variable: "1"})
    assert not loaded.config.values()[key]
    assert loaded.sources[key] == f"file {path}"


def test_every_field_is_a_setting_with_a_variable_of_its_own() -> None:
    variables = [setting.variable for setting in SETTINGS.values()]
    assert len(set(variables)) == len(variables)
    assert not set(variables) & set(OTHER_VARIABLES)
    assert not [name for name in variables if name.startswith("MODELD_TEST_")]
    first = {key.partition(".")[0] for key in SETTINGS}
    assert first == {item.name for item in fields(Config)} - {"cameras"} | {"camera"}


def test_a_config_checks_itself() -> None:
    with pytest.raises(ConfigError) as caught:
        Config(frame_timeout_ms=0, realtime=RealtimeConfig(cpus="all"))
    assert str(caught.value) == (
        "frame_timeout_ms: expected 1..800, got 0; "
        "realtime.cpus: expected CPUs as 7 or 0-3,6, got 'all'"
    )


def test_changed_settings_are_those_that_are_no_defaults() -> None:
    assert changed_settings(Config()) == ""
    config = Config(
        model=Path("a b.pkl"),
        realtime=RealtimeConfig(lock_memory=True),
        cameras=DeviceCameras(Camera(960, 540, 800.0), None),
    )
    assert changed_settings(config) == (
        'model = "a b.pkl", camera.road.width = 960, camera.road.height = 540, '
        "camera.road.focal_px = 800.0, realtime.lock_memory = true"
    )


def test_the_sample_sets_nothing_and_fits_a_terminal(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, sample_config())) == Config()
    assert max(map(len, sample_config().splitlines())) <= 100


def test_the_sample_holds_every_setting_once_and_can_be_uncommented(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in sample_config().splitlines()]
    # What explains has two of them, besides the head.
    lines = [line for line in lines if line.startswith("[") or re.match(r"\w+ = ", line)]
    loaded = load_settings(write(tmp_path, "\n".join(lines)))
    assert set(loaded.sources.values()) == {f"file {tmp_path / 'modeld.toml'}"}
    assert sum(" = " in line for line in lines) == len(SETTINGS)
    for key, value in loaded.config.values().items():
        if SETTINGS[key].default is not None:
            assert value == SETTINGS[key].default


def test_the_sample_takes_values_that_are_in_force(tmp_path: Path) -> None:
    text = sample_config({"model": Path('/a"b\\c\n.pkl'), "realtime.priority": 54})
    config = load_config(write(tmp_path, text))
    assert config == Config(model=Path('/a"b\\c\n.pkl'), realtime=RealtimeConfig(priority=54))
