"""The daemon's own process: what it says, publishes and loads, and how it stops and reloads."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest

from cereal.schema import read_event
from cereal.transport import ZmqTransport
from modeld.store.model_store import ModelStore
from modeld.store.records import ModelId
from tests.faults.cameras import Cameras
from tests.faults.service import Service
from tests.modeld.bench import Patch, car_event, car_parameter
from tests.modeld.daemon_process import DEADLINE_S, DaemonProcess
from tests.modeld.fake_program import SMALL
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]

A, B = ModelId("a", "1"), ModelId("b", "1")
ASKS_FOR_TIME = "EXTEND_TIMEOUT_USEC=60000000"


@pytest.fixture
def start(tmp_path: Path, monkeypatch: Patch) -> Iterator[Callable[..., DaemonProcess]]:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "tiny.pkl"
    write_tiny_driving(model, (64, 32))
    with ExitStack() as resources:

        def begin(*more: str) -> DaemonProcess:
            process = DaemonProcess(tmp_path, "--model", str(model), *more)
            resources.callback(process.close)
            return process

        yield begin


@pytest.mark.parametrize("phase", ["loading", "waiting for camera"])
def test_stops_while_starting(start: Callable[..., DaemonProcess], phase: str) -> None:
    process = start("--demo")
    process.wait_for(phase)
    assert process.stop_by(signal.SIGTERM) == 0
    assert process.said()[-2:] == ["stopped while starting", "stopping"]


def test_a_second_daemon_is_refused_before_it_loads_its_model(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    first = start("--demo")
    first.wait_for("waiting for camera")
    (tmp_path / "second").mkdir()
    model = ("--model", str(tmp_path / "tiny.pkl"))
    with closing(DaemonProcess(tmp_path / "second", *model, "--bus", first.bus)) as second:
        assert second.wait_exit(DEADLINE_S) == 4
        said = second.said()
        assert any("modeldHealth" in line for line in said)
        assert not [line for line in said if line.startswith("loaded ")]
    assert first.stop_by(signal.SIGTERM) == 0


def test_takes_the_car_of_the_parameter_and_publishes(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    """As after a restart while driving: the next message would come in up to 50 s."""
    (tmp_path / "params").mkdir()
    (tmp_path / "params/CarParams").write_bytes(car_parameter(car_event("FILE CAR")))
    (tmp_path / "params/ModelManager_ActiveBundle").write_bytes(b'{"displayName": "Other"}')
    process = start()
    with closing(Cameras(process.server, SMALL)), closing(ZmqTransport(process.bus)) as transport:
        data = transport.subscriber("cameraOdometry").receive(round(1000 * DEADLINE_S))
    assert data is not None
    event = read_event(data)
    assert event.cameraOdometry.frameId > 0
    assert not event.valid
    process.wait_for("car: FILE CAR")
    process.wait_for("the stack's model is 'Other' (no ref, generation 0)")
    assert process.stop_by(signal.SIGTERM) == 0
    assert process.said()[-1] == "stopping"


def running_store(store: ModelStore, *more: str) -> AbstractContextManager[DaemonProcess]:
    options = ("--demo", "--models-dir", str(store.directory), *more)
    return closing(DaemonProcess(store.directory.parent, *options))


def test_what_is_selected_while_parked_is_taken_at_the_next_reload(store: ModelStore) -> None:
    with running_store(store) as daemon:
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        config = store.directory.parent / "c"
        config.write_text(f'bus_address = "{daemon.bus}"', encoding="utf-8")
        where = ["--store", str(store.directory), "--config", str(config)]
        assert main(["models", "select", "a", *where]) == 0
        daemon.signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(A)}")
        assert main(["models", "rollback", *where]) == 0
        daemon.signal(signal.SIGHUP)
        daemon.wait_for(f"loading {store.path_of(B)}")
        daemon.wait_for("waiting for camera streams")
        assert daemon.stop_by(signal.SIGTERM) == 0


def test_a_reload_with_settings_that_are_wrong_changes_nothing(store: ModelStore) -> None:
    """The unit does not start a process again that its settings have ended."""
    settings = store.directory.parent / "config.toml"
    settings.write_text('log_level = "debug"\n', encoding="utf-8")
    with running_store(store, "--config", str(settings)) as daemon:
        daemon.wait_for("waiting for camera streams")
        settings.write_text("log_levle = 'debug'\n", encoding="utf-8")
        daemon.signal(signal.SIGHUP)
        said = daemon.wait_for("not reloaded, continuing as before: ")
        assert said.endswith("unknown key log_levle; did you mean log_level?")
        settings.write_text("log_level = 'debug'\n", encoding="utf-8")
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("restarting")
        daemon.wait_for("waiting for camera streams")
        assert daemon.stop_by(signal.SIGTERM) == 0


# --- what the service manager hears before it is ready ----------------------------------------


def before_ready(service: Service) -> list[str]:
    """Lines of notifications of the present process until it says that it is ready."""
    service.wait_ready(DEADLINE_S)
    life = service.life
    lines = service.told("", life.started_ns)
    return [line.text for line in lines if line.arrived_ns <= life.ready_ns]


def test_a_start_says_what_it_does_and_asks_for_time_where_kernels_are_built(
    start: Callable[..., DaemonProcess], tmp_path: Path
) -> None:
    service = start("--demo")
    told = before_ready(service)
    loading = f"STATUS=loading {tmp_path}/tiny.pkl"
    # One program of kernels, and a cache that is empty.
    assert told[:3] == [loading, ASKS_FOR_TIME, f"{loading}: building kernels"]
    assert told[3].startswith("READY=1")
    assert service.stop_by(signal.SIGTERM) == 0
    service.start()
    told = before_ready(service)
    assert told[0] == loading
    assert told[1].startswith("READY=1")
