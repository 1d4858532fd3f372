"""Test and time everything on the GPU of this machine: `make test-gpu`, `test-gpu` of a kit.

    python -m tests.gpu --output build/gpu
    python -m tests.gpu --target gpu --device cpu        a GPU's row on a CPU, to try this out

Needs an OpenCL driver and no network. A driver that no file of /etc/OpenCL/vendors names is named
for this run. Results are OUTPUT/report.json and report.md. Exit code 1: a result is wrong.
"""

import argparse
import getpass
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from runtime.files.user_file import whole_file
from runtime.own_process import own_command
from tests.gpu import plan, stages
from tests.gpu.report import failures, markdown
from tools.checkup.findings import Scrubber
from tools.checkup.opencl import VENDORS_VARIABLE
from tools.lib.json_output import json_text

DRIVERS_LIMIT_S = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="test-gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument("--target", default="auto", help="row of the device table (auto)")
    parser.add_argument("--seconds", type=float, default=plan.SECONDS, help="for all (%(default)g)")
    parser.add_argument("--output", type=Path, default=Path("build/gpu"), help="(%(default)s)")
    args = parser.parse_args()
    output = args.output.absolute()
    work = output / "work"
    work.mkdir(parents=True, exist_ok=True)
    state = stages.Run(
        work, args.device, args.target, _environment(work), args.seconds, stages.workers(), _say
    )
    stages.doctor(state)
    made = stages.models(state)
    compiled = stages.compile_all(state, made)
    stages.measure(state, compiled)
    stages.tune(state, compiled)
    stages.peers(state, compiled)
    return _finish(state, output)


def _finish(state: stages.Run, output: Path) -> int:
    found = [row["device"] for row in state.report["artifacts"].values() if "device" in row]
    state.report["device"] = found[0] if found else state.device or "no device"
    state.report["target"] = state.target
    state.report["seconds"] = round(time.monotonic() - state.started, 1)
    home, host = os.path.expanduser("~"), platform.node()  # noqa: PTH111 -- raises where it is missing
    report = Scrubber(getpass.getuser(), home, host, os.environ).plain(state.report)
    report["failures"] = failures(report)
    for name, text in (
        ("report.json", json_text(report, indent=1)),
        ("report.md", markdown(report)),
    ):
        with whole_file(output / name) as file:
            file.write(text.encode())
    for line in report["failures"]:
        _say(f"FAILED: {line}")
    _say(f"{report['seconds']:.0f} s, {len(report['failures'])} failed; {output / 'report.md'}")
    return int(bool(report["failures"]))


def _environment(work: Path) -> dict[str, str]:
    """Return the environment of all processes: caches of their own, and all drivers named."""
    environment = {**os.environ, "MODELD_CACHE_DIR": str(work / "cache")}
    if VENDORS_VARIABLE in environment:
        return environment
    vendors = work / "vendors"
    try:
        # Apart: to look for a driver loads it.
        done = subprocess.run(
            own_command("tests.gpu.vendors", str(vendors)),
            capture_output=True, text=True, check=True, timeout=DRIVERS_LIMIT_S,
        )  # fmt: skip
    except (subprocess.SubprocessError, OSError) as error:
        _say(f"drivers are taken as the system names them: {error}")
        return environment
    named = done.stdout.split()
    if not named:
        return environment
    _say(f"drivers that no file names: {', '.join(named)}; {VENDORS_VARIABLE} does for this run")
    return {**environment, VENDORS_VARIABLE: str(vendors)}


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
