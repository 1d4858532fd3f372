"""The daemon's process beside a camera that is slow enough for an emulated processor.

    python -m tests.debian.slow_daemon driving.pkl

It runs in the place. A model must answer within 0.8 s, which only one made by hand does there.
"""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.foreign import heard, process

SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")
_FRAMES = 3
_RATE_HZ = "0.2"
_PATIENCE_S = 300.0


def main() -> int:
    """Return 0 when the daemon has answered frames and ended cleanly."""
    with tempfile.TemporaryDirectory(prefix="slow-") as directory, ExitStack() as stack:
        place = Path(directory)
        bus, server = f"ipc://{place}", f"slow-{os.getpid()}"
        daemon = stack.enter_context(
            process(
                "-m", "modeld", "run", "--model", sys.argv[1], "--demo", "--bus", bus,
                "--camera-server", server, "--run-timeout-ms", "800",
                log=place / "daemon.log",
            )
        )  # fmt: skip
        stack.enter_context(
            process(
                "-m", "tools.bench.camera", "--server", server, "--bus", bus, "--frames", "4",
                "--size", "1928", "1208", "--rate-hz", _RATE_HZ,
                log=place / "camera.log", stdin=subprocess.PIPE,
            )
        )  # fmt: skip
        rows = heard(bus, *SERVICES, log=place / "subscriber.log", patience_s=_PATIENCE_S)
        seen = dict.fromkeys(SERVICES, 0)
        for row in stack.enter_context(rows):
            seen[row["service"]] += 1
            if min(seen.values()) == _FRAMES:
                break
        else:
            print((place / "daemon.log").read_text(encoding="utf-8"))
            print(f"after {_PATIENCE_S:g} s there were {seen}")
            return 1
        daemon.send_signal(signal.SIGTERM)
        code = daemon.wait(timeout=_PATIENCE_S)
        if code != 0:
            print((place / "daemon.log").read_text(encoding="utf-8"))
            print(f"the daemon ended with {code}")
            return 1
    print(", ".join(f"{count} {service}" for service, count in seen.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
