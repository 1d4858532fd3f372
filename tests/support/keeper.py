"""Cleans up after a run of tests, however it ends: killed, timed out, or done.

A process of its own waits for the end of the one that began the run. What then still carries the
run's variable is killed, the directory of the run goes with its sockets and pipes, and so do the
frame rings in shared memory whose processes are gone. Rings that an earlier run left, on a machine
that was switched off, say, go when the next one begins.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.left_rings import remove_left_rings

ROOT = Path(__file__).parents[2]
KILLING_S = 10.0


def start(variable: str, directory: Path) -> None:
    """Start the keeper of this process; it outlives it, and nothing waits for it."""
    command = [sys.executable, "-S", "-m", "tests.support.keeper", str(os.getpid()), variable]
    environment = {name: text for name, text in os.environ.items() if name != variable}
    with subprocess.Popen(
        [*command, str(directory)], cwd=ROOT, env=environment, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        # Nobody waits for it: it ends after this process.
        process.returncode = 0


def processes_with(variable: str, text: str) -> list[int]:
    """Return the processes whose environment says `variable=text`, as far as this user may look."""
    wanted, found = f"{variable}={text}".encode(), []
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            # It is gone, or another user's.
            continue
    return found


def kill_all(variable: str, text: str) -> None:
    """Kill the processes of a run, also those that its processes start meanwhile."""
    end = time.monotonic() + KILLING_S
    while (found := processes_with(variable, text)) and time.monotonic() < end:
        for number in found:
            try:
                handle = os.pidfd_open(number)
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            except OSError:
                continue
            select.select([handle], [], [], 1.0)
            os.close(handle)


def main() -> None:
    """Wait for a process to end, then clean up after it."""
    process, variable, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        pass
    else:
        remove_left_rings()
        select.select([handle], [], [])
    kill_all(variable, directory)
    remove_left_rings()
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
