"""Reads clocks and temperatures of the GPU, the memory bus and the CPUs, where the system has them.

    /sys/class/kgsl/kgsl-3d0       Adreno with the vendor's kernel: clocks in Hz, °C or 1/1000 °C
    /sys/class/devfreq/*           other GPUs and buses
    /sys/class/thermal/*           zones, 1/1000 °C
    /sys/devices/system/cpu/*      cpufreq, kHz
    nvidia-smi                     NVIDIA's, which has none of these

All of them are optional; an unreadable file is an absent sensor.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

KGSL: Final = "sys/class/kgsl/kgsl-3d0"
# Zones report 1/1000 °C, some of kgsl's files whole degrees; nothing here is hotter than this.
MAX_CELSIUS: Final = 200.0
SMI_TIMEOUT_S: Final = 5.0
_SMI_FIELDS: Final = "clocks.sm,clocks.max.sm,temperature.gpu"


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock in MHz; `most` is 0 where it is not known."""

    name: str
    now: float
    most: float
    governor: str = ""

    @property
    def share(self) -> float:
        """Of the highest one, 0 to 1; 1 where that is not known."""
        return self.now / self.most if self.most else 1.0


@dataclass(slots=True)
class Sensors:
    """Clocks of GPU, buses and CPUs, and temperatures in °C by name."""

    gpu: list[Clock] = field(default_factory=list)
    other: list[Clock] = field(default_factory=list)
    celsius: dict[str, float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            "gpu_mhz": [asdict(clock) for clock in self.gpu],
            "other_mhz": [asdict(clock) for clock in self.other],
            "celsius": self.celsius,
        }


def read_sensors(root: Path = Path("/"), *, smi: bool = True) -> Sensors:
    """Return the current readings; asking NVIDIA's command takes some tenths of a second."""
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
        _ask_smi(found)
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


def _ask_smi(found: Sensors) -> None:
    command = shutil.which("nvidia-smi")
    if command is None:
        return
    arguments = [command, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        # A fixed command of the driver's; nothing goes through a shell.
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
