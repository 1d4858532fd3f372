"""``modeld devices``: list the OpenCL devices of this machine and mark the default one.

Example::

    modeld devices
    modeld bench driving.pkl --device cpu
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from runtime.texts import size_text
from tools.lib.json_output import print_json
from tools.lib.terminal import format_table

if TYPE_CHECKING:
    import argparse

    from runtime.opencl.device import DeviceInfo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare no arguments: the command has none of its own."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Print the devices and return exit code 0.

    Raises:
        NoDeviceError: no device is usable. The devices and their problems are printed first.
    """
    # pyopencl is slow to import, so `--help` does not import it.
    from runtime.opencl.device import choose_device, list_devices

    devices = list_devices()
    usable = [info for info in devices if not info.problem]
    auto = usable[0].index if usable else None
    if args.json:
        print_json({"devices": [dataclasses.asdict(d) for d in devices], "auto": auto})
    elif devices:
        rows = [
            (
                "*" if info.index == auto else "",
                info.index,
                info.kind,
                info.name,
                info.compute_units,
                size_text(info.global_mem_bytes),
                _abilities(info),
                info.problem or _driver(info),
            )
            for info in devices
        ]
        header = ("", "index", "kind", "name", "units", "memory", "can", "driver")
        print(format_table(header, rows))
        if auto is not None:
            print("\n* is the default; select another with --device and its index, kind or name.")
    if auto is None:
        choose_device()  # raises NoDeviceError with the reason
    return 0


def _driver(info: DeviceInfo) -> str:
    """Return the driver's version, and the CPU that PoCL compiles for if the version lacks it."""
    told = info.cpu and not info.version.endswith(f"-{info.cpu}")
    return f"{info.version}, compiles for {info.cpu}" if told else info.version


def _abilities(info: DeviceInfo) -> str:
    names = {
        "images": info.images,
        "fp16": info.half_arithmetic,
        "shared memory": info.unified_memory,
        "recordings": info.recording is not None,
    }
    return ", ".join(name for name, able in names.items() if able) or "-"
