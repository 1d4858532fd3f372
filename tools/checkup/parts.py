"""Runs each part of a checkup in a separate process with a time limit.

    python -m tools.checkup.parts REQUEST.json RESULT.json

A part may open drivers, which may crash or hang. No signal can end a process that hangs in a kernel
driver. Such a process is abandoned: nothing waits for it, and its output goes to files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from runtime.own_process import own_command
from tools.checkup import surroundings
from tools.checkup.findings import Section
from tools.lib.json_output import json_text

# Time limit of each part, s, in running order. Drivers may take a minute to build kernels.
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
# Parts that use the device. They are skipped while a daemon is driving.
ON_DEVICE: Final = ("artifact", "self-test", "kernels")
# Longest wait for the end of a killed process, s.
KILL_WAIT_S: Final = 1.0
_MODULE: Final = "tools.checkup.parts"
_LAST_BYTES: Final = 4096


def run_in_process(
    name: str, request: Mapping[str, Any], limit_s: float, module: str = _MODULE
) -> Section:
    """Run a part in a separate process; its timeout, crash or failure becomes a finding.

    `request` is the argument of `run_part`.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-doctor-", ignore_cleanup_errors=True) as place:
        asked, result, log = (Path(place) / n for n in ("request.json", "result.json", "log.txt"))
        asked.write_text(json_text({**request, "part": name}), encoding="utf-8")
        started = perf_counter()
        with log.open("wb") as output:
            # Our own module and paths; no shell is involved.
            process = subprocess.Popen(  # noqa: S603
                own_command(module, str(asked), str(result)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = _exit_code_of(process, limit_s)
        seconds = perf_counter() - started
        section = Section(name, seconds=seconds)
        if code is None:
            section.bad(
                f"timed out after {limit_s:g} s",
                "a driver or device may hang; try again with --limit, and see dmesg",
            )
        elif code == 0 and result.is_file():
            section = Section.of_plain(json.loads(result.read_text(encoding="utf-8")))
            section.seconds = seconds
        else:
            section.bad(_failure(code, log), "run it again with -v; attach this report to an issue")
        return section


def _exit_code_of(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Wait for a process and return its exit code; None on timeout."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Kill the whole process group. It may have ended already, while its leader still exists.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_WAIT_S)


def _failure(code: int, log: Path) -> str:
    text = log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else "no output"
    if code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}: {last}"
    return f"failed: {last}"


def run_part(name: str, request: Mapping[str, Any]) -> Section:
    """Run a part named in `LIMITS`. `request` has the command's options as plain data."""
    from tools.checkup import machine, opencl

    device, path = request["device"], request["path"]
    parts: dict[str, Callable[[], Section]] = {
        "versions": machine.versions,
        "permissions": machine.permissions,
        "clocks": machine.clocks,
        "bus": lambda: surroundings.bus(_bus_options(request["bus"])),
        "cameras": surroundings.cameras,
        "devices": lambda: opencl.devices(device),
        "artifact": lambda: opencl.artifact(
            Path(path) if path else None, Path(request["store"]), device, Path(request["place"])
        ),
        "self-test": lambda: opencl.self_test(Path(path), device),
        "kernels": lambda: opencl.kernels(
            Path(path), device, is_example=Path(path).parent == Path(request["place"])
        ),
    }
    return parts[name]()


def _bus_options(values: Mapping[str, Any]) -> argparse.Namespace:
    keys = values["bus_keys"]
    return argparse.Namespace(**{**values, "bus_keys": Path(keys) if keys else None})


def main(arguments: list[str]) -> int:
    """Run the part that a request file names, and write its result."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    started = perf_counter()
    section = run_part(request["part"], request)
    section.seconds = perf_counter() - started
    Path(arguments[1]).write_text(json_text(section.plain()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
