"""Keys of the bus on the command line: made once, and taken by whoever opens the bus."""

from contextlib import closing
from pathlib import Path
from shutil import copy
from threading import Event, Thread

from cereal.transport import ZmqTransport
from cereal.transport.curve import CurveKeys
from modeld.service.config_sources import load_config
from tests.cereal.shared import free_address, model_event
from tests.tools.conftest import Modeld


def test_keys_are_made_once_and_taken_by_commands(tmp_path: Path, modeld: Modeld) -> None:
    car, desk = tmp_path / "car", tmp_path / "desk"
    for place in (car, desk):
        assert "own.key: made" in modeld(0, "keys", place).out
    copy(desk / "own.key", car / "peers" / "desk.key")
    copy(car / "own.key", desk / "server.key")
    again = modeld(0, "keys", car, "--json").json
    keys = CurveKeys.read(car)
    assert again == {
        "directory": str(car),
        "made": False,
        "public_key": keys.public.decode(),
        "peers": 1,
        "server_key": None,
    }
    # 127.1 is loopback, but nobody takes it for that.
    address = free_address("modelV2").replace("127.0.0.1", "127.1")
    stop = Event()
    with closing(ZmqTransport(address, keys=keys)) as transport:
        publisher = transport.publisher("modelV2")

        def publish() -> None:
            while not stop.wait(0.01):
                publisher.send(model_event(7))

        thread = Thread(target=publish)
        thread.start()
        try:
            words = ["subscribe", "modelV2", "--count", 1, "--timeout", 20, "--bus", address]
            assert "modelV2" in modeld(0, *words, "--bus-keys", desk).out
        finally:
            stop.set()
            thread.join()


def test_what_is_not_there_is_refused(tmp_path: Path, modeld: Modeld) -> None:
    words = ["subscribe", "modelV2", "--bus", "tcp://127.1", "--bus-keys", tmp_path]
    modeld.refused(4, "own.key_secret, found none; make keys with: modeld keys", *words)
    modeld(0, "keys", tmp_path)
    modeld.refused(4, "server.key, found none; copy own.key of the publishing machine", *words)
    assert load_config(environment={"MODELD_BUS_KEYS": "/k"}).bus_keys == Path("/k")
