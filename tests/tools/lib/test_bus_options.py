import argparse
from contextlib import closing
from pathlib import Path
from typing import get_args

import pytest

from cereal.services import SERVICES, HashName, port_of
from cereal.stacks import DEFAULT_STACK, STACKS
from cereal.transport import Transport, ZmqTransport
from modeld.bus import DAEMON_SERVICES
from tests.tools.conftest import Modeld
from tests.tools.messages import event_of, repeating
from tools.service.options import add_bus_arguments, open_bus, stack_of


def parse(*options: str, sends: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_bus_arguments(parser, sends=sends)
    return parser.parse_args(options)


def endpoint_of(transport: Transport, service: str) -> str:
    assert isinstance(transport, ZmqTransport)
    return transport.endpoint(service)


def test_without_options_it_is_the_default_stack_on_loopback() -> None:
    assert stack_of(parse()) == DEFAULT_STACK
    transport = open_bus(parse())
    assert endpoint_of(transport, "modelV2") == "tcp://127.0.0.1:58537"
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
    assert endpoint_of(transport, "liveDelay") == endpoint
    transport.close()


A, B, C = "ipc:///a", "ipc:///b", "ipc:///c"


# Where modelV2 is, and where carState is, for a command that listens and for one that sends.
@pytest.mark.parametrize(
    ("options", "hears", "sends"),
    [
        (("--bus", A), (A, A), (A, A)),
        (("--subscribe", A), (A, A), ("tcp://127.0.0.1:58537", A)),
        (("--publish", A), (A, "tcp://127.0.0.1:9041"), (A, A)),
        # Those of the daemon are understood as they are.
        (("--publish", A, "--subscribe", B), (A, B), (A, B)),
        (("--bus", C, "--publish", A, "--subscribe", B), (A, B), (A, B)),
        (("--bus", C, "--publish", A), (A, C), (A, A)),
    ],
)
def test_what_daemons_publish_and_all_else_may_be_at_two_addresses(
    options: tuple[str, ...], hears: tuple[str, str], sends: tuple[str, str]
) -> None:
    for is_sender, expected in ((False, hears), (True, sends)):
        with closing(open_bus(parse(*options, sends=is_sender))) as transport:
            found = [endpoint_of(transport, name) for name in ("modelV2", "carState")]
        assert [one.removesuffix("/modelV2").removesuffix("/carState") for one in found] == list(
            expected
        )


def test_ports_moved_by_1000_as_advised_are_none_that_a_bridge_has() -> None:
    for hash_name in get_args(HashName):
        taken = {port_of(name, hash_name) for name in SERVICES}
        moved = {port_of(name, hash_name, moved=1000) for name in DAEMON_SERVICES}
        assert len(moved - taken) == len(DAEMON_SERVICES)


def test_unknown_stack_is_refused(modeld: Modeld) -> None:
    errors = modeld(2, "subscribe", "--stack", "dragonpilot").err
    assert all(name in errors for name in STACKS)


def test_subscribe_hears_a_stack_of_2026_under_the_name_of_2025(
    tmp_path: Path, modeld: Modeld
) -> None:
    bus = f"ipc://{tmp_path}"
    options = ("--bus", bus, "--json", "--count", "1", "--timeout", "30")
    # What a publisher of 2026 calls it.
    with repeating(bus, ("lateralDelay", event_of("liveDelay", lateralDelay=0.25))):
        said = modeld(0, "subscribe", "liveDelay", "--stack", "openpilot-2026", *options)
    first = said.objects[0]
    assert (first["service"], first["message"]["lateralDelay"]) == ("liveDelay", 0.25)
