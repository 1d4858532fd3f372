"""A process that runs programs for `hunt`: what a driver does to it ends nothing else."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from tests.fuzz.batch import Outcome
from tests.fuzz.case import Name

_SPAWN: Final = get_context("spawn")
_TAIL: Final = 2000


class DiedError(RuntimeError):
    """The process ended, or did not answer in time; the message says how, with its last words."""


def serve(pipe: Connection, log: str, plant: str) -> None:
    """Run what comes through a pipe until there is nothing more: the process's only function.

    Args:
        pipe: receives names of one kind and target, sends back outcomes.
        log: file for what drivers write to standard error.
        plant: "crash", "hang" or "wrong" and a seed: what tests of the harness ask for.
    """
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    directory = tempfile.mkdtemp(prefix="fuzz-")
    os.environ.update(SCHEDULE_CACHE="0", TUNED="1", MODELD_CACHE_DIR=directory)
    os.environ["POCL_CACHE_DIR"] = directory
    from tests.fuzz.kinds import KINDS  # after the environment is set
    from tests.fuzz.planted import spoil

    try:
        while True:
            names: Sequence[Name] = pipe.recv()
            spoil(plant, names)
            pipe.send(KINDS[names[0].kind].run(names))
            for entry in Path(directory).iterdir():  # built programs are never needed again
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()
    except EOFError:
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class Worker:
    """A process of `serve`, started when it is needed and again after it died."""

    directory: Path
    number: int
    plant: str = ""
    served: int = 0

    def __post_init__(self) -> None:
        self._pipe: Connection | None = None
        self._log = self.directory / f"worker-{self.number}.log"

    def run(self, names: Sequence[Name], seconds: float) -> list[Outcome]:
        """Run programs of one kind and target."""
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        self._log.write_bytes(b"")
        try:
            self._pipe.send(list(names))
            if not self._pipe.poll(seconds):
                self.stop()
                raise DiedError(f"no answer within {seconds:g} s{self._last_words()}")
            outcomes: list[Outcome] = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._process.join()
            code = self._process.exitcode
            self.stop()
            raise DiedError(f"the process ended with {code}{self._last_words()}") from error
        return outcomes

    def _start(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        arguments = (theirs, str(self._log), self.plant)
        self._process = _SPAWN.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        if self._pipe is None:
            return
        self._pipe.close()
        self._pipe = None
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _last_words(self) -> str:
        text = self._log.read_bytes()[-_TAIL:].decode("utf-8", "replace").strip()
        return f"; its last words:\n{text}" if text else ""
