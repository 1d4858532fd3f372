"""Runs each part of a checkup in its own process, with a time limit.

    python -m tools.checkup.parts REQUEST.json RESULT.json

`run_in_process` starts such a process; the process calls `run_part`. A part can open drivers, which
can crash or hang. A process that hangs in a driver's kernel code cannot be killed. It is abandoned:
nothing waits for it, and its output is written to files, not to pipes.
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

# Time limit of each part in seconds, in running order. Building kernels can take a minute.
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
# Parts that need the device. They are skipped while a daemon drives with it.
ON_DEVICE: Final = ("artifact", "self-test", "kernels")
# How long to wait for a killed process.
KILL_WAIT_S: Final = 1.0
_MODULE: Final = "tools.checkup.parts"
_LAST_BYTES: Final = 4096


def run_in_process(
    name: str, request: Mapping[str, Any], limit_s: float, module: str = _MODULE
) -> Section:
    """Run part `name` in a process; return its section, or one that reports a timeout or failure.

    `request` has the options for `run_part`. `module` is the module to run.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-doctor-", ignore_cleanup_errors=True) as place:
        asked, result, log = (Path(place) / n for n in ("request.json", "result.json", "log.txt"))
        asked.write_text(json_text({**request, "part": name}), encoding="utf-8")
        started = perf_counter()
        with log.open("wb") as output:
            # The command is our own module and does not use a shell.
            process = subprocess.Popen(  # noqa: S603
                own_command(module, str(asked), str(result)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = _wait(process, limit_s)
        seconds = perf_counter() - started
        section = Section(name, seconds=seconds)
        if code is None:
            section.bad(
                f"stopped after {limit_s:g} s: it did not finish",
                "a driver or device may hang; try a longer --limit, and see dmesg",
            )
        elif code == 0 and result.is_file():
            section = Section.of_plain(json.loads(result.read_text(encoding="utf-8")))
            section.seconds = seconds
        else:
            section.bad(_failure(code, log), "run it again with -v; attach this report to an issue")
        return section


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Wait for a process and return its exit code; kill it after the limit and return None."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Kill the process group, which includes child processes. It can already be gone.
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
    """Run the part `name`, a key of `LIMITS`; `request` has the command's options as plain data."""
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
    """Run the part named in a request file and write its section to a result file."""
    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    started = perf_counter()
    section = run_part(request["part"], request)
    section.seconds = perf_counter() - started
    Path(arguments[1]).write_text(json_text(section.plain()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
