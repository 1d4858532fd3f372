"""Services carried from one bus to another: when, in which order, and where they are not."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cereal.errors import TransportError
from cereal.msgq import wake
from cereal.msgq.ring import RingWriter
from cereal.msgq.ring_memory import RingMemory
from cereal.stacks import DEFAULT_STACK, STACKS
from cereal.transport import MemoryTransport, MsgqTransport, Subscriber, Transport, ZmqTransport
from runtime.own_process import own_command
from tests.cereal.shared import own_rings
from tests.support.waiting import until
from tests.tools.conftest import Modeld
from tools.service.bus_bridge import ROUND_MESSAGES, Bridge

NAMES = ("carState", "modelV2")
LONG_S = 20


@pytest.fixture
def prefix() -> Iterator[str]:
    with own_rings() as made:
        yield made


def turning(bridge: Bridge, found: Callable[[], object]) -> object:
    """Let the bridge work until something is there."""

    def turn() -> object:
        bridge.look()
        bridge.step(1)
        return found()

    return until(turn, LONG_S, pause_s=0)


@pytest.fixture(params=["memory", "msgq to ipc", "ipc to msgq", "msgq to msgq"])
def sides(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Transport, Transport]]:
    with own_rings() as one, own_rings() as other:
        kinds: dict[str, Callable[[], tuple[Transport, Transport]]] = {
            "memory": lambda: (MemoryTransport(), MemoryTransport()),
            "msgq to ipc": lambda: (MsgqTransport(prefix=one), ZmqTransport(f"ipc://{tmp_path}")),
            "ipc to msgq": lambda: (ZmqTransport(f"ipc://{tmp_path}"), MsgqTransport(prefix=one)),
            "msgq to msgq": lambda: (MsgqTransport(prefix=one), MsgqTransport(prefix=other)),
        }
        made = kinds[request.param]()
        yield made
        for transport in made:
            transport.close()


def test_bytes_and_order_and_only_while_somebody_listens(
    sides: tuple[Transport, Transport],
) -> None:
    source, target = sides
    bridge = Bridge(source, target, NAMES)
    publishers = {name: source.publisher(name) for name in NAMES}
    for _ in range(3):
        bridge.look()
        assert not any(publisher.has_readers() for publisher in publishers.values())
        listener = target.subscriber("modelV2")
        assert turning(bridge, publishers["modelV2"].has_readers)
        assert not publishers["carState"].has_readers()
        publishers["carState"].send(b"nobody hears this")
        sent = [bytes([number]) * (1 + 700 * number) for number in range(120)]
        for data in sent:
            publishers["modelV2"].send(data)
        heard: list[bytes] = []

        def all_came(listener: Subscriber = listener, heard: list[bytes] = heard) -> bool:
            while (data := listener.receive()) is not None:
                heard.append(data)
            return len(heard) == 120

        assert turning(bridge, all_came)
        assert heard == sent
        listener.close()
        assert turning(bridge, lambda: not publishers["modelV2"].has_readers())
    bridge.close()
    assert {lane.service: lane.messages for lane in bridge.lanes} == {"carState": 0, "modelV2": 360}
    # What was opened again and again is not kept.
    assert len(getattr(source, "_open", ())) <= 4


def test_a_round_takes_some_of_each_service() -> None:
    source, target = MemoryTransport(), MemoryTransport()
    bridge = Bridge(source, target, NAMES)
    listeners = [target.subscriber(name) for name in NAMES]
    bridge.look()
    for name, count in zip(NAMES, (130, 3), strict=True):
        publisher = source.publisher(name)
        for _ in range(count):
            publisher.send(b"x")
    had = []
    for _ in range(4):
        bridge.step(0)
        had.append(tuple(len(listener.queue) for listener in listeners))
    assert had == [(ROUND_MESSAGES, 3), (2 * ROUND_MESSAGES, 3), (130, 3), (130, 3)]


def test_what_the_other_side_publishes_is_not_bridged_in(caplog: pytest.LogCaptureFixture) -> None:
    source, target = MemoryTransport(), MemoryTransport()
    own = target.publisher("modelV2")
    with pytest.raises(TransportError, match="modelV2: expected one publisher"):
        Bridge(source, target, ("modelV2",))
    bridge = Bridge(source, target, NAMES, leave_out=True)
    assert [lane.service for lane in bridge.lanes] == ["carState"]
    assert bridge.left_out == ["modelV2"]
    assert caplog.text.count("left out: memory transport, modelV2: expected one publisher") == 1
    bridge.close()
    with pytest.raises(TransportError, match="modelV2: expected one publisher"):
        Bridge(source, target, ("modelV2",), leave_out=True)
    own.close()


def test_a_service_that_is_taken_over_is_given_up_and_the_others_go_on(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = MemoryTransport(), MsgqTransport(prefix=prefix)
    bridge = Bridge(source, target, NAMES)
    publishers = [source.publisher(name) for name in NAMES]
    listeners = [target.subscriber(name) for name in NAMES]
    turning(bridge, lambda: all(one.has_readers() for one in publishers))
    theirs = _taken_over("modelV2", prefix)
    listeners[1].receive()
    for publisher in publishers:
        publisher.send(b"x")
    assert turning(bridge, lambda: bridge.given_up) == ["modelV2"]
    assert turning(bridge, listeners[0].receive) == b"x"
    assert listeners[1].receive() is None
    assert (publishers[0].has_readers(), publishers[1].has_readers()) == (True, False)
    assert caplog.text.count("modelV2: expected to be the only publisher, but process") == 1
    assert theirs.is_owner()
    # With the last one there is nothing left to do.
    _taken_over("carState", prefix)
    listeners[0].receive()
    publishers[0].send(b"x")
    with pytest.raises(TransportError, match="carState: expected to be the only publisher"):
        turning(bridge, lambda: False)
    target.close()


def _taken_over(service: str, prefix: str) -> RingWriter:
    """Publish as C++ does, without asking whether anybody else does."""
    memory = RingMemory(DEFAULT_STACK.queue_path(service, prefix), 1 << 20)
    writer = RingWriter(memory, wake.new_uid(threading.get_native_id()))
    writer.claim()
    return writer


def test_a_message_without_room_is_dropped_and_what_was_overrun_is_counted(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    stack = STACKS["openpilot-2026"]
    with own_rings(stack) as small:
        source, target = MsgqTransport(prefix=prefix), MsgqTransport(stack=stack, prefix=small)
        bridge = Bridge(source, target, ("carState",))
        publisher, listener = source.publisher("carState"), target.subscriber("carState")
        turning(bridge, publisher.has_readers)
        for count in (100_000, 3, 100_001):
            publisher.send(bytes(count))
        assert turning(bridge, listener.receive) == bytes(3)
        turning(bridge, lambda: bridge.lanes[0].dropped == 2)
        for _ in range(5):
            publisher.send(bytes(3_000_000))
        turning(bridge, lambda: bridge.lanes[0].subscriber and bridge.lanes[0].subscriber.lost)
        bridge.close()
        (lane,) = bridge.lanes
        assert (lane.messages, lane.dropped, lane.lost) == (1, 2, 1)
        assert caplog.text.count("dropped, as are others like it") == 1
        source.close()
        target.close()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("did you mean carState?", ["--from", "msgq:a", "--to", "msgq:b", "carstate"]),
        ("circulate forever", ["--from", "msgq:a", "--to", "msgq:a"]),
        ("circulate forever", ["--from", "msgq:", "--to", "msgq:own"]),
        ("circulate forever", ["--from", "tcp://127.0.0.1", "--to", "tcp://*"]),
        ("circulate forever", ["--from", "tcp://localhost:+7", "--to", "tcp://127.0.0.1:+7"]),
        ("circulate forever", ["--from", "ipc://x", "--to", "ipc://x", "--to-stack", "sunnypilot"]),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused(
    text: str, words: list[str], modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENPILOT_PREFIX", "own")
    modeld.refused(2, text, "bridge", *words)


def test_a_named_service_that_has_a_publisher_is_an_error(tmp_path: Path, modeld: Modeld) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}")
    transport.publisher("modelV2")
    there = ("--from", "msgq:nobody", "--to", f"ipc://{tmp_path}")
    said = modeld.refused(4, "modelV2: expected to bind ipc://", "bridge", *there, *NAMES)
    assert f"held by process {os.getpid()}" in said.err
    transport.close()


@pytest.mark.alone
@pytest.mark.parametrize("way", ["msgq to ipc", "ipc to msgq"])
def test_the_command_between_processes(way: str, tmp_path: Path) -> None:
    """Between stacks, too: their names of a service differ."""
    old, new = STACKS["openpilot-2025"], STACKS["openpilot-2026"]
    with own_rings(new if way == "msgq to ipc" else old) as prefix:
        ends = [f"msgq:{prefix}", f"ipc://{tmp_path}"]
        first, second = ends if way == "msgq to ipc" else ends[::-1]
        source: Transport
        target: Transport
        if way == "msgq to ipc":
            source, target = (
                MsgqTransport(stack=new, prefix=prefix),
                ZmqTransport(ends[1], stack=old),
            )
        else:
            source, target = (
                ZmqTransport(ends[1], stack=new),
                MsgqTransport(stack=old, prefix=prefix),
            )
        words = ["--from", first, "--to", second, "--from-stack", new.name, "--json"]
        with subprocess.Popen(
            own_command("tools.cli", "bridge", *words, "lateralDelay", "carState"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            publisher, listener = source.publisher("liveDelay"), target.subscriber("liveDelay")
            # The new writer of a ring has sent its readers away, and they notice when they look.
            assert until(lambda: listener.receive() or publisher.has_readers(), LONG_S)
            sent = [number.to_bytes(8, "little") for number in range(500)]
            for data in sent:
                publisher.send(data)
            assert [listener.receive(LONG_S * 1000) for _ in sent] == sent
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        source.close()
        target.close()
    assert (process.returncode, err) == (0, "")
    services = {"services": ["liveDelay", "carState"], "messages": {"liveDelay": 500}}
    nothing: dict[str, object] = {"dropped": {}, "lost": {}, "left_out": [], "given_up": []}
    assert json.loads(out) == {"from": first, "to": second, **services, **nothing}
