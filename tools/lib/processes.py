"""Child processes of demo and benchmarks: started together, watched together, never left behind.

The standard library does the work; this keeps the bookkeeping in one place. Called by
``tools.commands.on_drives.demo`` and the ``tools.bench_*`` modules.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from runtime.own_process import own_command
from tools.errors import ToolError

# A daemon finishes its frame and closes its devices well within this.
STOP_TIMEOUT_S = 10.0
_NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})


class ProcessError(ToolError):
    """A child process ended when it should not, or did not do what it was asked."""


class Child:
    """One child process whose stdout is read line by line.

    Args:
        name: for messages.
        module: of ours, run as ``python -m module``.
        arguments: of the module.
        environment: over the one of this process.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str] = _NOTHING_ELSE,
    ) -> None:
        self.name = name
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(  # noqa: S603 - our own modules, no shell
            own_command(module, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._reader = threading.Thread(target=self._read_lines, name=f"{name} stdout", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def read_line(self, timeout_s: float) -> str | None:
        """Return the next line without its end, or None when none came in time.

        Raises:
            ProcessError: the process has ended.
        """
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line is None:
            raise ProcessError(
                f"{self.name}: expected it to run, found it ended with exit code "
                f"{self._process.wait()}; its messages are above"
            )
        return line

    def check_running(self) -> None:
        """Raise if the process has ended.

        Raises:
            ProcessError: it has.
        """
        code = self._process.poll()
        if code is not None:
            raise ProcessError(
                f"{self.name}: expected it to run, found it ended with exit code {code}; its "
                "messages are above"
            )

    def write_line(self, text: str) -> None:
        """Send a line to the process's stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def stop(self) -> int:
        """End the process in the ordinary way, by SIGTERM; return its exit code.

        Raises:
            ProcessError: it does not end; it has been killed then.
        """
        self.end()
        if self._process.returncode == -signal.SIGKILL:
            raise ProcessError(
                f"{self.name}: expected it to end after SIGTERM, found it running "
                f"{STOP_TIMEOUT_S:g} s later; it was killed"
            )
        return self._process.returncode

    def remaining_lines(self) -> list[str]:
        """Return what was printed and not read yet; only after ``stop``."""
        lines = []
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                lines.append(line)
        return lines

    def end(self) -> None:
        """End the process if it still runs: by SIGTERM, and by force if that does not help."""
        if self._process.poll() is None:
            self._process.terminate()
        self._close_stdin()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            # It ended before it read everything; its exit code tells the rest.
            return


# ----------------------------------------------------------------------------------------------
# Says how many threads OpenCL drivers on the CPU have: they read it when devices are opened.

THREADS_VARIABLE: Final = "POCL_MAX_PTHREAD_COUNT"


def threads_of_one(processes: int) -> int:
    """Return how many threads a driver may have in each of so many processes.

    Its threads wait for each other busily, so all processes together get no more than there are.
    """
    return max(1, len(os.sched_getaffinity(0)) // processes)


def thread_setting(threads: int) -> dict[str, str]:
    """Return what an environment has to say for so many threads."""
    return {THREADS_VARIABLE: str(threads)}


def limit_threads(threads: int) -> None:
    """Let the driver of this process have so many threads, unless the user has said."""
    os.environ.setdefault(THREADS_VARIABLE, str(threads))
