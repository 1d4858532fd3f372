"""The daemon's own process with a store of models: what it loads, and when it takes another."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modeld.model_store import ModelStore
from modeld.store_manifest import ModelId
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

pytestmark = [pytest.mark.opencl, pytest.mark.alone]

ROOT = Path(__file__).parents[2]
A, B = ModelId("a", "1"), ModelId("b", "1")
DEADLINE_S = 60.0


def nothing(_path: Path) -> None:
    """Stand for the self-test of artifacts that are known to run."""


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store of a and b, of which b is selected and a was before."""
    made = ModelStore(tmp_path / "store")
    for model, bad_frame in ((A, -1), (B, 1000)):
        artifact = write_tiny_driving(tmp_path / "tiny.pkl", (64, 32), bad_frame=bad_frame)
        made.add(artifact, model, now_s=0, self_test=nothing)
        made.select(model, "driving", self_test=nothing)
    (tmp_path / "bus").mkdir()
    return made


class Daemon:
    """The process, and its log line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if text in line:
                return
        pytest.fail(f"expected a line with {text!r}, got {self.said}")


@contextmanager
def running(store: ModelStore, *more: str) -> Iterator[Daemon]:
    bus = store.directory.parent / "bus"
    options = ["--demo", "--bus", f"ipc://{bus}", "--camera-server", "test-store-process"]
    with subprocess.Popen(
        [sys.executable, "-m", "tools.cli", "run", "-v", "--models-dir", str(store.directory),
         "--state-dir", str(bus), *options, *more],
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        watchdog = threading.Timer(DEADLINE_S, process.kill)
        watchdog.start()
        try:
            yield Daemon(process)
        finally:
            watchdog.cancel()
            process.kill()


def test_what_is_selected_while_parked_is_taken_at_the_next_reload(store: ModelStore) -> None:
    with running(store) as daemon:
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        where = ["--store", str(store.directory), "--config", str(store.directory.parent / "c")]
        bus = store.directory.parent / "bus"
        (store.directory.parent / "c").write_text(f'bus_address = "ipc://{bus}"', encoding="utf-8")
        assert main(["models", "select", "a", *where]) == 0
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(A)}")
        assert main(["models", "rollback", *where]) == 0
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        daemon.process.terminate()
        assert daemon.process.wait(DEADLINE_S) == 0


def test_a_reload_with_settings_that_are_wrong_changes_nothing(store: ModelStore) -> None:
    """The unit does not start a process again that its settings have ended."""
    settings = store.directory.parent / "config.toml"
    settings.write_text('log_level = "debug"\n', encoding="utf-8")
    with running(store, "--config", str(settings)) as daemon:
        daemon.wait_for("waiting for camera streams")
        settings.write_text("log_levle = 'debug'\n", encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("not reloaded, going on as before: ")
        assert daemon.said[-1].endswith("unknown key log_levle; did you mean log_level?\n")
        settings.write_text("log_level = 'debug'\n", encoding="utf-8")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait_for("starting anew")
        daemon.wait_for("waiting for camera streams")
        daemon.process.terminate()
        assert daemon.process.wait(DEADLINE_S) == 0


def test_a_damaged_selected_model_gives_way_to_the_one_before(store: ModelStore) -> None:
    with store.path_of(B).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with running(store) as daemon:
        daemon.wait_for("b@1/artifact.pkl: expected sha256")
        daemon.wait_for(f"loading {store.path_of(A)}")
        daemon.wait_for("waiting for camera streams")
        daemon.process.terminate()
        assert daemon.process.wait(DEADLINE_S) == 0


def test_nothing_usable_ends_it_in_one_line(store: ModelStore) -> None:
    for model in (A, B):
        store.path_of(model).write_bytes(b"")
    with running(store) as daemon:
        assert daemon.process.stderr is not None
        errors = daemon.process.stderr.read().splitlines()
        assert daemon.process.wait(DEADLINE_S) == 4
    last = errors[-1]
    assert "b@1/artifact.pkl: expected" in last
    assert last.endswith("add it again, or choose another with modeld models select")
    assert not any("Traceback" in error for error in errors)
