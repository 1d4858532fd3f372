"""Settings of the daemon: a TOML file, overridden by command line options.

Example::

    model = "/usr/share/modeld/driving.pkl"
    bus_address = "ipc:///run/modeld"
    stack = "openpilot-2026"

    [camera.road]        # a camera that the device table does not know
    width = 960
    height = 540
    focal_px = 800.0
"""

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, get_args

from cereal.services import HashName
from cereal.stacks import DEFAULT_STACK, STACKS, Stack
from modeld.calibration import Camera, DeviceCameras
from modeld.errors import ConfigError

RAW_PREDICTIONS_VARIABLE: Final = "SEND_RAW_PRED"


def raw_predictions_wanted() -> bool:
    """Whether the environment asks for raw vectors in the messages; "" and "0" do not."""
    return os.environ.get(RAW_PREDICTIONS_VARIABLE, "") not in ("", "0")


@dataclass(frozen=True, slots=True)
class RealtimeConfig:
    """What the process asks of the system; each is optional, and whether it took effect is said.

    Attributes:
        cpus: CPUs of the loop, as "7" or "0-3,6"; None leaves them to the system.
        priority: Of SCHED_FIFO for the loop, 1 to 99; 0 leaves the ordinary scheduler.
        lock_memory: Keep all pages in memory.
        freeze_gc: No cyclic garbage collection while the loop runs.
        gpu_priority: "high", "medium" or "low"; None leaves the driver's.
    """

    cpus: str | None = None
    priority: int = 0
    lock_memory: bool = False
    freeze_gc: bool = True
    gpu_priority: str | None = None


@dataclass(frozen=True, slots=True)
class Config:
    """Settings; every instance has been range-checked.

    Attributes:
        model: The driving or driver monitoring artifact; only a daemon that is given its program
            does without.
        demo: Use a built-in car instead of waiting for ``carParams``.
        device: Name of the OpenCL device; None takes the best.
        bus_address: Where sockets bind and connect, ``tcp://HOST`` or ``ipc:///DIR``.
        stack: The stack on the other end of the bus, one of ``cereal.stacks``: names, ports, paths.
        port_hash: Hash that gives TCP ports, "fnv1a" or "murmur"; None takes the stack's.
        params_dir: Directory of the stack's parameters; None takes the stack's.
        camera_server: Name under which the camera daemon publishes its frames.
        frame_timeout_ms: Longest wait for one frame; also how fast a stop is noticed.
        lat_smooth_s: Time constant of the curvature filter; 0 turns it off, None takes the one
            that belongs to the model.
        long_smooth_s: Likewise of the acceleration filter.
        cameras: Cameras to use instead of looking up the device; None looks up.
        send_raw_predictions: Put the raw output vectors into ``modelV2`` or ``driverStateV2``.
        simulation: Time does not run evenly, as in a simulator or a replay: services that fall
            silent are not judged.
        fallback_model: A small driving artifact that takes over when ``model`` fails; None: none.
        models_dir: Store of models; its selected one is run where ``model`` is not given.
        role: Which of the store's selected models is run: "driving" or "monitoring".
        state_dir: Where it is kept, over restarts, that a drive goes on with the fallback model;
            None keeps nothing.
        run_timeout_ms: Longest run of ``model`` before the fallback model takes over.
        non_finite_limit: Runs in a row whose outputs are not finite, before it takes over.
        log_format: "text" or "json": one line a record.
        log_level: "debug", "info", "warning" or "error".
        metrics_file: Where figures are written once a second, in Prometheus' text format.
        realtime: What the process asks of the system.
    """

    model: Path | None = None
    demo: bool = False
    device: str | None = None
    bus_address: str = "tcp://127.0.0.1"
    stack: str = DEFAULT_STACK.name
    port_hash: HashName | None = None
    params_dir: Path | None = None
    camera_server: str = "camerad"
    frame_timeout_ms: int = 100
    lat_smooth_s: float | None = None
    long_smooth_s: float | None = None
    cameras: DeviceCameras | None = None
    send_raw_predictions: bool = field(default_factory=raw_predictions_wanted)
    simulation: bool = False
    fallback_model: Path | None = None
    models_dir: Path | None = None
    role: str = "driving"
    state_dir: Path | None = None
    run_timeout_ms: int = 300
    non_finite_limit: int = 3
    log_format: str = "text"
    log_level: str = "info"
    metrics_file: Path | None = None
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)

    def __post_init__(self) -> None:
        """Check ranges.

        Raises:
            ConfigError: A value is out of range.
        """
        _check_range("frame_timeout_ms", self.frame_timeout_ms, 1, 10_000)
        for name in ("lat_smooth_s", "long_smooth_s"):
            if getattr(self, name) is not None:
                _check_range(name, getattr(self, name), 0.0, 5.0)
        if not self.bus_address.startswith(("tcp://", "ipc://")):
            raise ConfigError(
                f"bus_address: expected tcp://HOST or ipc:///DIRECTORY, got {self.bus_address!r}"
            )
        if self.stack not in STACKS:
            raise ConfigError(f"stack: expected one of {', '.join(STACKS)}, got {self.stack!r}")
        if self.port_hash not in (None, *get_args(HashName)):
            raise ConfigError(
                f"port_hash: expected one of {', '.join(get_args(HashName))}, got "
                f"{self.port_hash!r}"
            )
        if not self.camera_server or "/" in self.camera_server:
            raise ConfigError(
                f"camera_server: expected a name without '/', got {self.camera_server!r}"
            )

    @property
    def bus_stack(self) -> Stack:
        """The row of the stack, with the hash of ports that is in force."""
        stack = STACKS[self.stack]
        return stack if self.port_hash is None else replace(stack, hash_name=self.port_hash)

    def parameters(self) -> Path:
        """Return the directory of the stack's parameters; without one given, by environment."""
        if self.params_dir is not None:
            return self.params_dir
        # A user of a container may have no home; then only another directory can be meant.
        return self.bus_stack.params_dir(
            Path(os.path.expanduser("~")),  # noqa: PTH111 -- Path.home() raises where there is none
            root=os.environ.get("PARAMS_ROOT", ""),
            prefix=os.environ.get("OPENPILOT_PREFIX", ""),
        )


# What a file may hold, besides the tables of [camera].
_FILE_TYPES: Final[Mapping[str, type]] = {
    "model": str,
    "demo": bool,
    "device": str,
    "bus_address": str,
    "stack": str,
    "port_hash": str,
    "params_dir": str,
    "camera_server": str,
    "frame_timeout_ms": int,
    "lat_smooth_s": float,
    "long_smooth_s": float,
    "send_raw_predictions": bool,
    "simulation": bool,
}
_PATHS: Final = frozenset({"model", "params_dir"})
_CAMERA_TYPES: Final[Mapping[str, type]] = {"width": int, "height": int, "focal_px": float}


def load_config(
    path: str | Path | None = None, overrides: Mapping[str, object] | None = None
) -> Config:
    """Read the settings.

    Args:
        path: TOML file; None uses the defaults. Relative paths in it, ``model`` and ``params_dir``,
            are relative to the file.
        overrides: Values that win over the file, by ``Config`` field name; None values are
            options that were not given.

    Raises:
        ConfigError: The file cannot be read, or a key or value is not acceptable.
    """
    values = {} if path is None else _read_file(Path(path))
    known = {item.name for item in fields(Config)}
    for name, value in (overrides or {}).items():
        if name not in known:
            raise ConfigError(f"option {name!r}: expected one of {', '.join(sorted(known))}")
        if value is not None:
            values[name] = value
    for name in _PATHS & set(values):
        values[name] = Path(values[name])
    return Config(**values)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    try:
        cameras = _read_cameras(content.pop("camera", None))
        values = _read_table("", content, _FILE_TYPES)
        for name in _PATHS & set(values):
            values[name] = path.parent / values[name]
        values["cameras"] = cameras
        # Ranges are checked here too, so that the message can name the file.
        Config(**values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return values


def _read_cameras(table: object) -> DeviceCameras | None:
    if table is None:
        return None
    if not isinstance(table, dict) or "road" not in table or set(table) - {"road", "wide"}:
        raise ConfigError("[camera]: expected tables [camera.road] and optionally [camera.wide]")
    cameras = {name: _read_camera(f"camera.{name}", value) for name, value in table.items()}
    return DeviceCameras(road=cameras["road"], wide=cameras.get("wide"))


def _read_camera(where: str, table: object) -> Camera:
    if not isinstance(table, dict):
        raise ConfigError(f"[{where}]: expected a table, got {table!r}")
    values = _read_table(f"{where}.", table, _CAMERA_TYPES)
    missing = sorted(set(_CAMERA_TYPES) - set(values))
    if missing:
        raise ConfigError(f"[{where}]: missing {', '.join(missing)}")
    _check_range(f"{where}.width", values["width"], 2, 16384)
    _check_range(f"{where}.height", values["height"], 2, 16384)
    _check_range(f"{where}.focal_px", values["focal_px"], 1.0, 100_000.0)
    return Camera(**values)


def _read_table(where: str, table: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of a table after checking keys and types."""
    unknown = sorted(set(table) - set(types))
    if unknown:
        names = ", ".join(where + name for name in unknown)
        raise ConfigError(f"unknown key {names}; known keys are {', '.join(types)}")
    values: dict[str, Any] = {}
    for name, value in table.items():
        expected = types[name]
        # TOML writes 1 for 1.0; a bool is an int to Python but not to the reader of a file.
        integer = isinstance(value, int) and not isinstance(value, bool)
        if expected is float and integer:
            values[name] = float(value)
        elif type(value) is expected:
            values[name] = value
        else:
            raise ConfigError(
                f"{where}{name}: expected {expected.__name__}, got {type(value).__name__} {value!r}"
            )
    return values


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise ConfigError(f"{name}: expected {low}..{high}, got {value}")
