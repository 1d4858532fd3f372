"""Commands of a run, each within a limit; how they ended and what they said is kept."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.own_process import own_command

ROOT: Final = Path(__file__).parent.parent.parent
CUT: Final = 124  # as timeout(1) has it
_LAST_BYTES: Final = 20_000


@dataclass(frozen=True, slots=True)
class Done:
    """A command that ended, or was ended.

    Attributes:
        code: its exit code; `CUT` where it ran past its limit.
        output, errors: of both streams, the end of them.
        seconds: that it took.
    """

    code: int
    output: str
    errors: str
    seconds: float

    @property
    def problem(self) -> str:
        """Why it failed, in one line; "" if it did not."""
        if self.code == CUT:
            return f"cut after {self.seconds:.0f} s"
        last = (self.errors.strip() or self.output.strip()).splitlines()[-1:]
        return "" if self.code == 0 else f"exit code {self.code}: {' '.join(last)}"

    def json(self) -> dict[str, Any]:
        """Return the object of its last line, {} if there is none."""
        with suppress(ValueError, IndexError):
            found = json.loads(self.output.strip().splitlines()[-1])
            return found if isinstance(found, dict) else {}
        return {}


class Running:
    """A command that runs; its streams are files, so that nothing it starts keeps us waiting."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._output, self._errors = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115 -- closed by `done`
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._errors,
            start_new_session=True,
        )

    @property
    def ended(self) -> bool:
        """Whether it came to its end."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def done(self, limit_s: float) -> Done:
        """Wait for the end, at most so long, and return how it was."""
        code = CUT
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(max(0.0, limit_s))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        seconds = self.seconds
        texts = []
        for stream in (self._output, self._errors):
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LAST_BYTES))
            texts.append(stream.read().decode(errors="replace"))
            stream.close()
        return Done(code, texts[0], texts[1], seconds)


def run(command: Sequence[str], environment: Mapping[str, str], limit_s: float) -> Done:
    return Running(command, environment).done(limit_s)


def modeld(*arguments: str) -> list[str]:
    """Return the command line of a command of ours."""
    return own_command("tools.cli", *arguments)
