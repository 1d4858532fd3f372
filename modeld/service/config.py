"""The daemon's settings: one dataclass field each, with default, bounds and description.

``modeld.service.config_sources`` derives the keys of files, the environment variables, the options
and the sample file from these fields. Example of a file::

    model = "/usr/share/modeld/driving.pkl"
    publish_address = "ipc:///run/modeld"
    stack = "openpilot-2026"

    [realtime]
    priority = 54

    [camera.road]        # a camera that the device table does not know
    width = 960
    height = 540
    focal_px = 800.0
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from cereal.services import HashName
from cereal.stacks import DEFAULT_STACK, STACKS, Addresses, Stack
from modeld.errors import ConfigError
from modeld.service.service_log import FORMATS, LEVELS
from modeld.service.settings import (
    Setting,
    address_form,
    camera_form,
    cpu_list,
    described,
    settings_of,
)
from modeld.vehicle.cameras import DeviceCameras

RAW_PREDICTIONS_VARIABLE: Final = "SEND_RAW_PRED"
SIMULATION_VARIABLE: Final = "SIMULATION"
_NO: Final = ("", "0")  # values of a stack's variable that mean "no"
# Upper bound of the timeouts of a frame and of a run. The unit's watchdog acts after 2 s without
# progress. Before that, a loop without cameras must have iterated and two runs must have timed out.
LONGEST_WAIT_MS: Final = 800


def environment_prefix() -> str:
    """Return OPENPILOT_PREFIX, which separates stacks on one machine; "" if it is not set."""
    return os.environ.get("OPENPILOT_PREFIX", "")


@dataclass(frozen=True, slots=True)
class RealtimeConfig:
    """Real-time settings, each optional. Whether the system granted it is reported."""

    cpus: str | None = described(
        None,
        "CPUs of the loop, such as 7 or 0-3,6; default: the system chooses.",
        check=cpu_list,
        example="4-7",
        option="--cpus LIST",
    )
    priority: int = described(
        0,
        "Priority of SCHED_FIFO for the loop, 1 to 99; 0 keeps the default scheduler.",
        bounds=(0, 99),
        option="--priority N",
    )
    lock_memory: bool = described(False, "Keep all pages in memory.", option="--lock-memory")
    freeze_gc: bool = described(True, "No cyclic garbage collection while the loop runs.")
    gpu_priority: str | None = described(
        None,
        "Priority of the model's work on the device, if its driver has priorities; default: "
        "the driver's own.",
        choices=("high", "medium", "low"),
        example="high",
        option="--gpu-priority HINT",
    )
    keep_awake: bool = described(
        False,
        "Keep CPUs out of deep idle states for faster wake-up; uses more power.",
        option="--keep-awake",
    )


@dataclass(frozen=True, slots=True)
class CameraTable:
    """A camera in the configuration file, which must give the first three settings."""

    width: int | None = described(
        None, "Width of the picture, pixels.", bounds=(2, 16384), example=960
    )
    height: int | None = described(
        None, "Height of the picture, pixels.", bounds=(2, 16384), example=540
    )
    focal_px: float | None = described(
        None, "Focal length, pixels.", bounds=(1.0, 100_000.0), example=800.0
    )
    focal_y_px: float | None = described(
        None,
        "The same down a column; default: pixels are square.",
        bounds=(1.0, 100_000.0),
        example=800.0,
    )


@dataclass(frozen=True, slots=True)
class Config:
    """The settings. Construction checks all values."""

    model: Path | None = described(
        None,
        "Driving or driver monitoring artifact; default: the selected one of models_dir.",
        example="/var/lib/modeld/driving.pkl",
        option="--model FILE",
    )
    fallback_model: Path | None = described(
        None,
        "Small driving artifact that takes over for the rest of the drive if model fails.",
        example="/var/lib/modeld/small.pkl",
        option="--fallback-model FILE",
    )
    models_dir: Path | None = described(
        None,
        "Store of models; its selected one runs if model is not given.",
        example="/var/lib/modeld/models",
        option="--models-dir DIRECTORY",
    )
    role: str = described(
        "driving",
        "Which of the store's selected models to run.",
        choices=("driving", "monitoring"),
        option="--role ROLE",
    )
    state_dir: Path | None = described(
        None,
        "Directory that remembers, across restarts, that the fallback model is in use.",
        example="/run/modeld",
        option="--state-dir DIRECTORY",
    )
    device: str | None = described(
        None,
        "OpenCL device, by a part of its name, see modeld devices; default: the best.",
        example="pocl",
        option="--device NAME",
    )
    run_timeout_ms: int = described(
        300,
        "Longest run of a model before the fallback model takes over or the process restarts.",
        bounds=(50, LONGEST_WAIT_MS),
        option="--run-timeout-ms MS",
    )
    non_finite_limit: int = described(
        3,
        "Consecutive runs with non-finite outputs before the fallback model takes over.",
        bounds=(1, 100),
    )
    demo: bool = described(
        False,
        "Use a built-in car instead of waiting for carParams. It still waits for "
        "cameras; modeld demo has its own.",
        option="--demo",
    )
    bus_address: str = described(
        "tcp://127.0.0.1",
        "Bus address: tcp://HOST, tcp://HOST:+N with all ports moved by N, "
        "ipc:///DIRECTORY, or msgq: for the rings of the stack in shared memory "
        "(msgq:PREFIX for those of another OPENPILOT_PREFIX).",
        check=address_form,
        option="--bus ADDRESS",
        covers=("publish_address", "subscribe_address"),
    )
    publish_address: str | None = described(
        None,
        "Where this process publishes, for example next to a bridge that has bound all ports; "
        "default: bus_address.",
        check=address_form,
        example="tcp://127.0.0.1:+1000",
        option="--publish ADDRESS",
    )
    subscribe_address: str | None = described(
        None,
        "Where it subscribes, for example to a device's bridge; default: bus_address.",
        check=address_form,
        example="tcp://192.168.0.10",
        option="--subscribe ADDRESS",
    )
    bus_keys: Path | None = described(
        None,
        "Directory of keys for addresses of other machines, as modeld keys makes them; "
        "without them, remote traffic is neither encrypted nor authenticated.",
        example="/etc/modeld/keys",
        option="--bus-keys DIRECTORY",
    )
    stack: str = described(
        DEFAULT_STACK.name,
        "The stack on the other end of the bus: names of messages, ports, paths.",
        choices=tuple(STACKS),
        option="--stack NAME",
    )
    port_hash: HashName | None = described(
        None,
        "Hash that gives TCP ports, murmur before November 2024; default: the stack's. An "
        "address may have one of its own: tcp://HOST:murmur, tcp://HOST:murmur+1000.",
        example="fnv1a",
        option="--port-hash NAME",
    )
    params_dir: Path | None = described(
        None,
        "Directory of the stack's parameters, for CarParams; default: by the stack's rule.",
        example="/data/params/d",
        option="--params DIRECTORY",
    )
    camera_server: str = described(
        "camerad",
        "Where the camera daemon's frames are: NAME of its frame rings, visionipc:NAME with "
        "packets on msgq, or visionipc+zmq:NAME.",
        check=camera_form,
        option="--camera-server ADDRESS",
    )
    # Replace the cameras of the device table; from the tables ``[camera.road]``, ``[camera.wide]``.
    cameras: DeviceCameras | None = None
    frame_timeout_ms: int = described(
        100,
        "Longest wait for one frame; also the longest delay of a stop.",
        bounds=(1, LONGEST_WAIT_MS),
    )
    lat_smooth_s: float | None = described(
        None,
        "Time constant of the curvature filter, 0 turns it off; default: the model's.",
        bounds=(0.0, 5.0),
        example=0.1,
    )
    long_smooth_s: float | None = described(
        None,
        "Time constant of the acceleration filter, 0 turns it off; default: the model's.",
        bounds=(0.0, 5.0),
        example=0.3,
    )
    send_raw_predictions: bool = described(
        False,
        "Put the raw output vectors into modelV2 or driverStateV2; default: the "
        "variable SEND_RAW_PRED.",
        made_by=lambda: os.environ.get(RAW_PREDICTIONS_VARIABLE, "") not in _NO,
    )
    simulation: bool = described(
        False,
        "Time runs unevenly, as in a simulator: timeouts of services and frame stamps are not "
        "judged; default: the variable SIMULATION.",
        made_by=lambda: os.environ.get(SIMULATION_VARIABLE, "") not in _NO,
    )
    log_format: str = described(
        "text",
        "Log lines as text, for people and the journal, or as JSON objects.",
        choices=FORMATS,
        option="--log-format FORMAT",
    )
    log_level: str = described(
        "info",
        "Minimum log level; -v is debug, -q is error.",
        choices=tuple(LEVELS),
        option="--log-level LEVEL",
    )
    log_tracebacks: bool = described(
        False, "Exceptions in text take several lines, as in Python; -vv does so, too."
    )
    metrics_file: Path | None = described(
        None,
        "File for metrics, written once a second in Prometheus' text format.",
        example="/run/modeld/metrics.prom",
        option="--metrics-file FILE",
    )
    realtime: RealtimeConfig = field(default_factory=RealtimeConfig)

    def __post_init__(self) -> None:
        """Check all fields; raise one ConfigError with all problems."""
        problems: list[str] = []
        for key, value in self.values().items():
            try:
                if value != SETTINGS[key].default:
                    SETTINGS[key].checked(value)
            except ValueError as error:
                problems.append(f"{key}: {error}")
        if self.fallback_model is not None and self.fallback_model == self.model:
            problems.append("fallback_model: expected another artifact than model, got the same")
        if problems:
            raise ConfigError("; ".join(problems))

    def values(self) -> dict[str, Any]:
        """Return the value of every setting, by the keys of ``SETTINGS``."""
        return {key: _value(self, key.split(".")) for key in SETTINGS}

    @property
    def bus_stack(self) -> Stack:
        """The selected driving stack, with `port_hash` if it is set."""
        stack = STACKS[self.stack]
        return stack if self.port_hash is None else replace(stack, hash_name=self.port_hash)

    @property
    def addresses(self) -> Addresses:
        """The bus addresses to publish and to subscribe."""
        bus = self.bus_address
        return Addresses(self.publish_address or bus, self.subscribe_address or bus)

    @property
    def prefix(self) -> str:
        """The value of `environment_prefix`."""
        return environment_prefix()

    def parameters(self) -> Path:
        """Return the directory of the stack's parameters: `params_dir`, else the stack's own."""
        if self.params_dir is not None:
            return self.params_dir
        # In a container, the user may have no home directory. That is no error here, because some
        # stacks do not use it.
        return self.bus_stack.params_dir(
            Path(os.path.expanduser("~")),  # noqa: PTH111 -- Path.home() raises where there is none
            root=os.environ.get("PARAMS_ROOT", ""),
            prefix=self.prefix,
        )


def _all_settings() -> dict[str, Setting]:
    found = settings_of(Config)
    realtime = {key: found.pop(key) for key in list(found) if "." in key}
    for name in ("road", "wide"):
        found |= settings_of(CameraTable, f"camera.{name}.")
    return found | realtime


# All settings by key. Those in tables are last, as in a file.
SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(_all_settings())


def _value(config: Config, path: list[str]) -> Any:
    value: Any = config
    # The table is named "camera", the field "cameras".
    for name in ("cameras" if name == "camera" else name for name in path):
        value = None if value is None else getattr(value, name)
    return value
