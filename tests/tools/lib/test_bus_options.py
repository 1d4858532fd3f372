import argparse
import json
import threading
from pathlib import Path

import pytest

from cereal.schema import new_event
from cereal.stacks import DEFAULT_STACK, STACKS
from cereal.transport import ZmqTransport
from tools.cli import main
from tools.lib.bus_options import add_bus_arguments, open_bus, stack_of


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_bus_arguments(parser)
    return parser.parse_args(options)


def test_without_options_it_is_the_default_stack_on_loopback() -> None:
    assert stack_of(parse()) == DEFAULT_STACK
    transport = open_bus(parse())
    assert transport.endpoint("modelV2") == "tcp://127.0.0.1:58537"
    transport.close()


@pytest.mark.parametrize(
    ("options", "endpoint"),
    [
        (("--stack", "openpilot-2026"), "tcp://127.0.0.1:34210"),
        (("--stack", "openpilot-2026", "--port-hash", "murmur"), "tcp://127.0.0.1:51688"),
        (("--stack", "sunnypilot"), "tcp://127.0.0.1:53853"),
        (("--port-hash", "murmur"), "tcp://127.0.0.1:34311"),
        (("--bus", "ipc:///run/b", "--stack", "openpilot-2026"), "ipc:///run/b/lateralDelay"),
    ],
)
def test_stack_and_hash_give_the_endpoint(options: tuple[str, ...], endpoint: str) -> None:
    transport = open_bus(parse(*options))
    assert transport.endpoint("liveDelay") == endpoint
    transport.close()


def test_unknown_stack_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["subscribe", "--stack", "dragonpilot"]) == 2
    errors = capsys.readouterr().err
    assert all(name in errors for name in STACKS)


def test_subscribe_hears_a_stack_of_2026_under_the_name_of_2025(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bus = f"ipc://{tmp_path}"
    transport = ZmqTransport(bus)
    # What a publisher of 2026 calls it.
    publisher = transport.publisher("lateralDelay")
    event = new_event("liveDelay", mono_time_ns=1, valid=True)
    event.liveDelay.lateralDelay = 0.25
    data, done = event.to_bytes(), threading.Event()

    def publish() -> None:
        while not done.wait(0.02):
            publisher.send(data)

    thread = threading.Thread(target=publish)
    thread.start()
    command = ["subscribe", "liveDelay", "--stack", "openpilot-2026", "--bus", bus, "--json"]
    try:
        assert main([*command, "--count", "1", "--timeout", "30"]) == 0
    finally:
        done.set()
        thread.join()
        transport.close()
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["service"] == "liveDelay"
    assert first["message"]["lateralDelay"] == 0.25
