"""Runs a part of a checkup in a process of its own, within a limit, whatever the part does.

A process that a driver holds in the kernel cannot be ended by any signal. It is abandoned: nothing
here waits for it, and its output goes to files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from runtime.own_process import own_command
from tools.checkup.findings import Section
from tools.lib.json_output import json_text

# How long a process that was killed may take to be gone.
GONE_S: Final = 1.0
_MODULE: Final = "tools.checkup.parts"
_LAST_BYTES: Final = 4096


def run_apart(
    name: str, request: Mapping[str, Any], limit_s: float, module: str = _MODULE
) -> Section:
    """Return what a part found, or that it was cut, crashed or failed.

    `request` is that of `tools.checkup.parts.run_part`.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-doctor-", ignore_cleanup_errors=True) as place:
        asked, result, log = (Path(place) / n for n in ("request.json", "result.json", "log.txt"))
        asked.write_text(json_text({**request, "part": name}), encoding="utf-8")
        started = perf_counter()
        with log.open("wb") as output:
            # Our own module on paths of our own; nothing goes through a shell.
            process = subprocess.Popen(  # noqa: S603
                own_command(module, str(asked), str(result)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        code = _ended(process, limit_s)
        seconds = perf_counter() - started
        section = Section(name, seconds=seconds)
        if code is None:
            section.bad(
                f"cut after {limit_s:g} s: it did not come to its end",
                "a driver or device may hang; try again with --limit, and see dmesg",
            )
        elif code == 0 and result.is_file():
            section = Section.of_plain(json.loads(result.read_text(encoding="utf-8")))
            section.seconds = seconds
        else:
            section.bad(_failure(code, log), "run it again with -v; attach this report to an issue")
        return section


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Wait for a process and return its exit code; None where it was cut."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # The group: what it has started, too; it may be gone, and its leader stay.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GONE_S)


def _failure(code: int, log: Path) -> str:
    text = log.read_bytes()[-_LAST_BYTES:].decode(errors="replace").strip()
    last = text.splitlines()[-1] if text else "it said nothing"
    if code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}: {last}"
    return f"failed: {last}"
