"""Parts of a checkup that read the system: versions, permissions, device nodes and clocks.

Each part is a function that returns a `Section` of the report of ``modeld doctor``. Clocks and
temperatures are those of the GPU, the memory bus and the CPUs::

    /sys/class/kgsl/kgsl-3d0       Adreno with the vendor's kernel: clocks in Hz, °C or 1/1000 °C
    /sys/class/devfreq/*           other GPUs and buses
    /sys/class/thermal/*           zones, 1/1000 °C
    /sys/devices/system/cpu/*      cpufreq, kHz
    nvidia-smi                     NVIDIA GPUs, which have none of these files

All of them are optional. A file that cannot be read counts as a missing sensor.
"""

from __future__ import annotations

import grp
import os
import platform
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from runtime.texts import size_text
from tools.checkup.findings import Section

OUR_PACKAGES: Final = ("modeld", "numpy", "pyzmq", "pycapnp", "pyopencl")
OPTIONAL_PACKAGES: Final = ("pocl-binary-distribution", "onnx", "onnxruntime", "av")
# From about this temperature on, drivers lower the clocks.
HOT_CELSIUS: Final = 85.0
# Twice the size of two cameras' frame rings.
LEAST_SHM_BYTES: Final = 64 << 20
# Memory of a process with a loaded model.
LOCKED_BYTES: Final = 1 << 30
SHM: Final = Path("/dev/shm")  # noqa: S108 -- memory shared with the camera process
LATENCY: Final = Path("/dev/cpu_dma_latency")
_CAP_SYS_NICE: Final = 23  # <linux/capability.h>
_CAP_IPC_LOCK: Final = 14
KGSL: Final = "sys/class/kgsl/kgsl-3d0"
# Zones report 1/1000 °C, but some files of kgsl whole degrees. No sensor exceeds this temperature.
MAX_CELSIUS: Final = 200.0
SMI_TIMEOUT_S: Final = 5.0
_SMI_FIELDS: Final = "clocks.sm,clocks.max.sm,temperature.gpu"


@dataclass(frozen=True, slots=True)
class Driver:
    """An OpenCL driver of GPUs."""

    name: str
    libraries: tuple[str, ...]  # names to try in order; the first that loads is used
    nodes: tuple[str, ...]  # glob patterns of its device nodes


DRIVERS: Final = (
    Driver("NVIDIA", ("libnvidia-opencl.so.1",), ("/dev/nvidia[0-9]*",)),
    Driver(
        "Adreno",
        (
            "libOpenCL_adreno.so.1",
            "/vendor/lib64/libOpenCL.so",
            "/system/vendor/lib64/libOpenCL.so",
        ),
        ("/dev/kgsl-3d0",),
    ),
    Driver("Mesa", ("libRusticlOpenCL.so.1", "libRusticlOpenCL.so"), ("/dev/dri/renderD*",)),
    Driver("AMD", ("libamdocl64.so", "/opt/rocm/lib/libamdocl64.so"), ("/dev/kfd",)),
    Driver("Mali", ("libmali.so.1", "libmali.so"), ("/dev/mali0",)),
)


def versions() -> Section:
    """Check the versions of modeld and its dependencies."""
    section = Section("versions")
    found = {name: _version(name) for name in (*OUR_PACKAGES, *OPTIONAL_PACKAGES)}
    section.facts = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "system": _system(),
        "libc": " ".join(platform.libc_ver()),
        **{name: version for name, version in found.items() if version},
    }
    modeld = found["modeld"] or "(run from its source)"
    section.good(
        f"modeld {modeld}, Python {platform.python_version()}, {section.facts['system']}, "
        f"{platform.machine()}, {section.facts['kernel']}"
    )
    missing = [name for name in OUR_PACKAGES[1:] if not found[name]]
    if missing:
        section.bad(
            f"not installed: {', '.join(missing)}",
            "install modeld's dependencies: pip install modeld",
        )
    return section


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"


def permissions(root: Path = Path("/")) -> Section:
    """Check the permissions that the daemon needs, and those that it can make use of."""
    section = Section("permissions")
    groups = sorted(_group_names())
    section.facts["groups"] = [name for name in groups if name in ("video", "render")]
    _device_nodes(section, root)
    _shared_memory(section)
    _realtime(section)
    return section


def _group_names() -> set[str]:
    names = set()
    for number in {*os.getgroups(), os.getegid()}:
        try:
            names.add(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return names


def _device_nodes(section: Section, root: Path) -> None:
    nodes = list(dict.fromkeys(node for driver in DRIVERS for node in nodes_of(driver, root)))
    section.facts["nodes"] = [f"/{node.relative_to(root)}" for node in nodes]
    closed = [node for node in nodes if not os.access(node, os.R_OK | os.W_OK)]
    for node in closed:
        try:
            owner = grp.getgrgid(node.stat().st_gid).gr_name
        except (KeyError, OSError):
            owner = "video"
        name = f"/{node.relative_to(root)}"
        section.bad(
            f"{name} cannot be opened by this user",
            f"add the user to its group: sudo usermod -aG {owner} USER, then log in again",
        )
    if nodes and not closed:
        section.good(f"accessible device nodes: {', '.join(section.facts['nodes'])}")
    if not nodes:
        section.good("no GPU device node found")


def _shared_memory(section: Section, place: Path = SHM) -> None:
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        section.bad(
            f"{place} cannot be written",
            "mount a tmpfs there: rings of frames and messages need it",
        )
        return
    space = os.statvfs(place)
    free = space.f_bavail * space.f_frsize
    section.facts["shm_free_bytes"] = free
    if free < LEAST_SHM_BYTES:
        section.look(
            f"{place} has {size_text(free)} free",
            f"give it at least {size_text(LEAST_SHM_BYTES)}: mount -o remount,size=512M {place}",
        )
    else:
        section.good(f"{place} has {size_text(free)} free")


def _realtime(section: Section) -> None:
    capabilities = _capabilities()
    priority = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    may = {
        "a real-time priority": bool(capabilities >> _CAP_SYS_NICE & 1) or priority != 0,
        "locked memory": bool(capabilities >> _CAP_IPC_LOCK & 1)
        or locked == resource.RLIM_INFINITY
        or locked >= LOCKED_BYTES,
        "CPUs kept awake": os.access(LATENCY, os.W_OK),
    }
    section.facts["realtime"] = may
    able = [name for name, can in may.items() if can]
    unable = [name for name, can in may.items() if not can]
    if able:
        section.good(f"allowed: {', '.join(able)}")
    if unable:
        section.look(
            f"not allowed: {', '.join(unable)}",
            "needed only for the settings of [realtime]: run the unit of modeld install-unit, or "
            "set rtprio and memlock in /etc/security/limits.d",
        )


def _capabilities(status: Path = Path("/proc/self/status")) -> int:
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def clocks(root: Path = Path("/")) -> Section:
    """Report the current clocks and temperatures, at rest."""
    section = Section("clocks")
    sensors = read_sensors(root)
    section.facts = sensors.plain()
    judge_heat(section, sensors)
    for clock in sensors.gpu:
        most = f" of {clock.most:.0f}" if clock.most else ""
        how = f", governor {clock.governor}" if clock.governor else ""
        section.good(f"GPU {clock.name}: {clock.now:.0f}{most} MHz at rest{how}")
    slow = [clock.name for clock in sensors.other if clock.governor == "powersave"]
    if slow:
        section.look(
            f"governor powersave: {', '.join(slow)}",
            "it wakes slowly between frames; choose schedutil or performance in "
            "/sys/devices/system/cpu/cpufreq",
        )
    if not sensors.gpu and not sensors.other and not sensors.celsius:
        section.good("the system reports no clocks or temperatures")
    return section


def judge_heat(section: Section, sensors: Sensors) -> None:
    """Add a finding about the temperatures to a section."""
    if not sensors.celsius:
        return
    name, hottest = max(sensors.celsius.items(), key=lambda item: item[1])
    if hottest >= HOT_CELSIUS:
        section.look(
            f"{name} is at {hottest:.0f} °C",
            "heat lowers clocks: let it cool down, and check its ventilation",
        )
    else:
        section.good(f"hottest of {len(sensors.celsius)} sensors: {name}, {hottest:.0f} °C")


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock in MHz. `most` is its maximum, 0 if unknown."""

    name: str
    now: float  # current value
    most: float  # maximum
    governor: str = ""  # frequency governor; "" if unknown

    @property
    def share(self) -> float:
        """The current clock relative to the maximum, 0 to 1; 1 if the maximum is unknown."""
        return self.now / self.most if self.most else 1.0


@dataclass(slots=True)
class Sensors:
    """Clocks of the GPU, buses and CPUs, and temperatures in °C by name."""

    gpu: list[Clock] = field(default_factory=list)
    other: list[Clock] = field(default_factory=list)
    celsius: dict[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the readings as plain data for JSON."""
        return {
            "gpu_mhz": [asdict(clock) for clock in self.gpu],
            "other_mhz": [asdict(clock) for clock in self.other],
            "celsius": self.celsius,
        }


def read_sensors(root: Path = Path("/"), *, smi: bool = True) -> Sensors:
    """Return the current readings. With `smi` it may run nvidia-smi, which takes some 0.1 s."""
    found = Sensors()
    kgsl = root / KGSL
    gpu_hz = _number(kgsl / "gpuclk") or _number(kgsl / "devfreq/cur_freq")
    if gpu_hz is not None:
        most = _number(kgsl / "max_gpuclk") or _number(kgsl / "devfreq/max_freq") or 0.0
        governor = _text(kgsl / "devfreq/governor")
        found.gpu.append(Clock("kgsl-3d0", gpu_hz / 1e6, most / 1e6, governor))
    _add_celsius(found, "kgsl-3d0", _number(kgsl / "temp"))
    for place in sorted((root / "sys/class/devfreq").glob("*")):
        clock = _devfreq(place)
        if clock is not None and "kgsl" not in clock.name:
            (found.gpu if "gpu" in clock.name.lower() else found.other).append(clock)
    for place in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        _add_celsius(found, _text(place / "type") or place.name, _number(place / "temp"))
    found.other += _cpus(root)
    if smi and (root / "dev/nvidiactl").exists():
        _add_nvidia(found)
    return found


def _devfreq(place: Path) -> Clock | None:
    now = _number(place / "cur_freq")
    if now is None:
        return None
    most = _number(place / "max_freq") or 0.0
    return Clock(place.name, now / 1e6, most / 1e6, _text(place / "governor"))


def _cpus(root: Path) -> Iterator[Clock]:
    for place in sorted((root / "sys/devices/system/cpu/cpufreq").glob("policy*")):
        now = _number(place / "scaling_cur_freq")
        if now is not None:
            most = _number(place / "cpuinfo_max_freq") or 0.0
            yield Clock(
                f"cpu {place.name}", now / 1e3, most / 1e3, _text(place / "scaling_governor")
            )


def _add_nvidia(found: Sensors) -> None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return
    arguments = [command, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        # A fixed command of the driver; no shell is involved.
        done = subprocess.run(  # noqa: S603
            arguments, capture_output=True, text=True, check=True, timeout=SMI_TIMEOUT_S
        )
        for number, line in enumerate(done.stdout.splitlines()):
            now, most, celsius = (float(value) for value in line.split(","))
            found.gpu.append(Clock(f"nvidia {number}", now, most))
            found.celsius[f"nvidia {number}"] = celsius


def _add_celsius(found: Sensors, name: str, value: float | None) -> None:
    if value is None:
        return
    celsius = value / 1000 if abs(value) > MAX_CELSIUS else value
    if -MAX_CELSIUS < celsius < MAX_CELSIUS:
        found.celsius[name] = max(celsius, found.celsius.get(name, celsius))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> float | None:
    with suppress(ValueError, IndexError):
        return float(_text(path).split()[0])
    return None


def nodes_of(driver: Driver, root: Path = Path("/")) -> list[Path]:
    """Return the existing device nodes of a driver."""
    return [path for node in driver.nodes for path in sorted(root.glob(node.lstrip("/")))]
