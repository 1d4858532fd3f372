"""Parts of a checkup that read what the system has: versions, permissions, clocks."""

from __future__ import annotations

import grp
import os
import platform
import resource
from importlib import metadata
from pathlib import Path
from typing import Final

from runtime.texts import size_text
from tools.checkup.findings import Section
from tools.checkup.sensors import Sensors, read_sensors
from tools.service.opencl_drivers import DRIVERS, nodes_of

OUR_PACKAGES: Final = ("modeld", "numpy", "pyzmq", "pycapnp", "pyopencl")
OPTIONAL_PACKAGES: Final = ("pocl-binary-distribution", "onnx", "onnxruntime", "av")
# Driving hot silicon slows it down; drivers begin to at about this.
HOT_CELSIUS: Final = 85.0
# Rings of frames of two cameras, twice over.
LEAST_SHM_BYTES: Final = 64 << 20
# What a process with a model has in memory.
LOCKED_BYTES: Final = 1 << 30
SHM: Final = Path("/dev/shm")  # noqa: S108 -- memory shared with the camera process
LATENCY: Final = Path("/dev/cpu_dma_latency")
_CAP_SYS_NICE: Final = 23  # <linux/capability.h>
_CAP_IPC_LOCK: Final = 14


def versions() -> Section:
    """Return the versions of what the daemon is made of."""
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
    """Return what this user may do that the daemon has to, or would like to."""
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
        section.good(f"device nodes may be used: {', '.join(section.facts['nodes'])}")
    if not nodes:
        section.good("no device node of a GPU is here")


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
            f"{place} has {size_text(free)} left",
            f"give it at least {size_text(LEAST_SHM_BYTES)}: mount -o remount,size=512M {place}",
        )
    else:
        section.good(f"{place} has {size_text(free)} left")


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
        section.good(f"may have {', '.join(able)}")
    if unable:
        section.look(
            f"may not have {', '.join(unable)}",
            "needed only for the settings of [realtime]: run the unit of modeld install-unit, or "
            "set rtprio and memlock in /etc/security/limits.d",
        )


def _capabilities(status: Path = Path("/proc/self/status")) -> int:
    for line in status.read_text(encoding="utf-8").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def clocks(root: Path = Path("/")) -> Section:
    """Return clocks and temperatures as they are now, at rest."""
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
        section.good("the system shows no clocks and no temperatures")
    return section


def judge_heat(section: Section, sensors: Sensors) -> None:
    """Add the verdict on temperatures."""
    if not sensors.celsius:
        return
    name, hottest = max(sensors.celsius.items(), key=lambda item: item[1])
    if hottest >= HOT_CELSIUS:
        section.look(
            f"{name} has {hottest:.0f} °C",
            "clocks are lowered when hot: let it cool, see to its air",
        )
    else:
        section.good(f"hottest of {len(sensors.celsius)} sensors: {name}, {hottest:.0f} °C")
