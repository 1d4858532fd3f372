"""The daemon's own process: what it says, publishes and loads, and how it stops and reloads."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from cereal.schema import new_event
from modeld.model_store import ModelStore
from modeld.store_manifest import ModelId
from tests.faults.service import Service, Setup
from tests.modeld.bench import Patch
from tests.modeld.daemon_process import DEADLINE_S, DaemonProcess, running
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]

A, B = ModelId("a", "1"), ModelId("b", "1")
ASKS_FOR_TIME = "EXTEND_TIMEOUT_USEC=60000000"


# --- with a model of its own ------------------------------------------------------------------


@pytest.fixture
def start(tmp_path: Path, monkeypatch: Patch) -> Iterator[Callable[..., DaemonProcess]]:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "tiny.pkl"
    write_tiny_driving(model, (64, 32))
    with ExitStack() as resources:
        yield lambda *more: resources.enter_context(running(tmp_path, "--model", str(model), *more))


@pytest.mark.parametrize("phase", ["loading", "waiting for camera"])
def test_stops_while_starting(start: Callable[..., DaemonProcess], phase: str) -> None:
    process = start("--demo")
    process.wait_for(phase)
    assert process.stop(signal.SIGTERM) == 0
    assert process.said[-2:] == ["stopped while starting", "stopping"]


def test_takes_the_car_of_the_parameter_and_publishes(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """As after a restart while driving: the next message would come in up to 50 s."""
    (tmp_path / "params").mkdir()
    params = new_event("carParams", mono_time_ns=1).carParams
    params.carFingerprint = "FILE CAR"
    content = params.as_reader().as_builder().to_bytes()
    (tmp_path / "params/CarParams").write_bytes(content)
    process = start()
    process.open("road")
    event = process.publish_until("cameraOdometry")
    assert event.cameraOdometry.frameId > 0
    assert not event.valid
    process.wait_for("car: FILE CAR")
    assert process.stop(signal.SIGTERM) == 0
    assert process.said[-1] == "stopping"


# --- with a store of models -------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store of a and b, of which b is selected and a was before."""
    made = ModelStore(tmp_path / "store")
    for model, bad_frame in ((A, -1), (B, 1000)):
        artifact = write_tiny_driving(tmp_path / "tiny.pkl", (64, 32), bad_frame=bad_frame)
        made.add(artifact, model, now_s=0, self_test=lambda _path: None)
        made.select(model, "driving", self_test=lambda _path: None)
    return made


def running_store(store: ModelStore, *more: str) -> AbstractContextManager[DaemonProcess]:
    options = ("--demo", "--models-dir", str(store.directory), *more)
    return running(store.directory.parent, *options)


def test_what_is_selected_while_parked_is_taken_at_the_next_reload(store: ModelStore) -> None:
    with running_store(store) as daemon:
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        config = store.directory.parent / "c"
        config.write_text(f'bus_address = "{daemon.bus}"', encoding="utf-8")
        where = ["--store", str(store.directory), "--config", str(config)]
        assert main(["models", "select", "a", *where]) == 0
        daemon.handle.send_signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(A)}")
        assert main(["models", "rollback", *where]) == 0
        daemon.handle.send_signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        assert daemon.stop(signal.SIGTERM) == 0


def test_a_reload_with_settings_that_are_wrong_changes_nothing(store: ModelStore) -> None:
    """The unit does not start a process again that its settings have ended."""
    settings = store.directory.parent / "config.toml"
    settings.write_text('log_level = "debug"\n', encoding="utf-8")
    with running_store(store, "--config", str(settings)) as daemon:
        daemon.wait_for("waiting for camera streams")
        settings.write_text("log_levle = 'debug'\n", encoding="utf-8")
        daemon.handle.send_signal(signal.SIGHUP)
        daemon.wait_for("not reloaded, going on as before: ")
        assert daemon.said[-1].endswith("unknown key log_levle; did you mean log_level?")
        settings.write_text("log_level = 'debug'\n", encoding="utf-8")
        daemon.handle.send_signal(signal.SIGHUP)
        daemon.wait_for("starting anew")
        daemon.wait_for("waiting for camera streams")
        assert daemon.stop(signal.SIGTERM) == 0


# --- what the service manager hears before it is ready ----------------------------------------


def before_ready(service: Service) -> list[str]:
    """Lines of notifications of the present process until it says that it is ready."""
    service.wait_ready(DEADLINE_S)
    life = service.life
    notices = [n for n in service.notices if life.started_ns <= n.arrived_ns <= life.ready_ns]
    return [line for notice in notices for line in notice.text.split("\n")]


def test_a_start_says_what_it_does_and_asks_for_time_where_kernels_are_built(
    tmp_path: Path,
) -> None:
    model = write_tiny_driving(tmp_path / "tiny.pkl", (64, 32))
    (tmp_path / "bus").mkdir()
    arguments = ["--demo", "--model", str(model), "--bus", f"ipc://{tmp_path}/bus"]
    arguments += ["--camera-server", f"nobody-{tmp_path.name}", "--state-dir", str(tmp_path)]
    service = Service(
        tmp_path, Setup(arguments, environment={"MODELD_CACHE_DIR": str(tmp_path / "cache")})
    )
    try:
        told = before_ready(service)
        loading, building = f"STATUS=loading {model}", f"STATUS=loading {model}: building kernels"
        # One program of kernels, and a cache that is empty.
        assert told[:3] == [loading, ASKS_FOR_TIME, building]
        assert told[3].startswith("READY=1")
        service.signal(signal.SIGTERM, asked=True)
        assert service.wait_exit(DEADLINE_S) == 0
        service.start()
        told = before_ready(service)
        assert told[0] == loading
        assert told[1].startswith("READY=1")
    finally:
        service.close()
