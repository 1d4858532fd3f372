"""Run one part of a checkup: the program of a process of its own.

    python -m tools.checkup.parts REQUEST.json RESULT.json

A part may open drivers, which may crash or hang; `tools.checkup.apart` starts and ends the process.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from tools.checkup import surroundings
from tools.checkup.findings import Section
from tools.lib.json_output import json_text

# Seconds that each part may take, in running order. Drivers that build kernels may take a minute.
LIMITS: Final = {
    "versions": 5.0,
    "permissions": 5.0,
    "clocks": 10.0,
    "bus": 10.0,
    "cameras": 5.0,
    "devices": 30.0,
    "artifact": 90.0,
    "self-test": 60.0,
    "kernels": 60.0,
}
# They need the device, which a daemon that drives has for itself.
ON_DEVICE: Final = ("artifact", "self-test", "kernels")


def run_part(name: str, request: Mapping[str, Any]) -> Section:
    """Run a part of `LIMITS`; `request` has the options of the command, as plain data."""
    from tools.checkup import devices, machine, program

    device, path = request["device"], request["path"]
    parts: dict[str, Callable[[], Section]] = {
        "versions": machine.versions,
        "permissions": machine.permissions,
        "clocks": machine.clocks,
        "bus": lambda: surroundings.bus(_bus_options(request["bus"])),
        "cameras": surroundings.cameras,
        "devices": lambda: devices.devices(device),
        "artifact": lambda: program.artifact(
            Path(path) if path else None, Path(request["store"]), device, Path(request["place"])
        ),
        "self-test": lambda: program.self_test(Path(path), device),
        "kernels": lambda: program.kernels(
            Path(path), device, is_example=Path(path).parent == Path(request["place"])
        ),
    }
    return parts[name]()


def _bus_options(values: Mapping[str, Any]) -> argparse.Namespace:
    keys = values["bus_keys"]
    return argparse.Namespace(**{**values, "bus_keys": Path(keys) if keys else None})


def main(arguments: list[str]) -> int:
    """Run the part of a request and write what it found."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    started = perf_counter()
    section = run_part(request["part"], request)
    section.seconds = perf_counter() - started
    Path(arguments[1]).write_text(json_text(section.plain()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
