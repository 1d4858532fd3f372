"""Messages between ends: whole, in order, to all who listen, and never waited for."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import zmq

from cereal.access import holder_of_port
from cereal.errors import TransportError
from cereal.stacks import DEFAULT_STACK, Addresses
from cereal.transport import (
    MemoryTransport,
    MsgqTransport,
    Publisher,
    Subscriber,
    Transport,
    ZmqTransport,
)
from cereal.transport.opening import open_transport
from tests.cereal.shared import free_address, open_below, own_rings
from tests.other_user import CAMERA_USER, OWN_GROUP, line, needs_root, process_of

Ends = tuple[Publisher, Subscriber]
SERVICES = ("carState", "carControl", "deviceState", "modelV2")
LONG_MS = 20_000  # what is waited where something should come sooner


@pytest.fixture(params=["memory", "ipc", "tcp", "msgq", "msgq, polled", "ipc and msgq"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    made: Transport
    with own_rings() as prefix:
        if request.param == "memory":
            made = MemoryTransport()
        elif request.param == "ipc":
            made = ZmqTransport(f"ipc://{tmp_path}")
        elif request.param == "tcp":
            made = ZmqTransport(free_address(*SERVICES))
        elif request.param == "ipc and msgq":
            addresses = Addresses(f"ipc://{tmp_path}", f"msgq:{prefix}")
            made = open_transport(addresses, ("carControl", "modelV2"), DEFAULT_STACK)
        else:
            made = MsgqTransport(prefix=prefix, by_signal=request.param == "msgq")
        yield made
        made.close()


def returns(call: Callable[[], object]) -> bool:
    """Call on a thread; return whether that ends, however long a busy machine takes for it."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def drain(subscriber: Subscriber) -> None:
    while subscriber.receive(30) is not None:
        pass


def connect(publisher: Publisher, *subscribers: Subscriber) -> None:
    """Send until each subscriber hears: ZeroMQ connects in the background."""
    deadline = time.monotonic() + 30
    for subscriber in subscribers:
        while subscriber.receive(10) is None:
            assert time.monotonic() < deadline, "never connected"
            publisher.send(b"hello")
    for subscriber in subscribers:
        drain(subscriber)


@pytest.fixture
def ends(transport: Transport) -> Ends:
    """A publisher of carState and who hears it."""
    publisher, subscriber = transport.publisher("carState"), transport.subscriber("carState")
    connect(publisher, subscriber)
    return publisher, subscriber


def test_messages_arrive_whole_and_in_order(ends: Ends) -> None:
    publisher, subscriber = ends
    messages = [bytes([i]) * (i * 1000) for i in range(1, 20)]
    for message in messages:
        publisher.send(message)
    assert [subscriber.receive(1000) for _ in messages] == messages
    assert subscriber.receive(0) is None


def test_every_subscriber_gets_every_message(transport: Transport) -> None:
    publisher = transport.publisher("carState")
    subscribers = [transport.subscriber("carState") for _ in range(3)]
    connect(publisher, *subscribers)
    publisher.send(b"x")
    assert [subscriber.receive(1000) for subscriber in subscribers] == [b"x"] * 3


def test_services_do_not_mix(transport: Transport, ends: Ends) -> None:
    publisher, subscriber = ends
    other = transport.subscriber("carControl")
    publisher.send(b"x")
    assert subscriber.receive(1000) == b"x"
    assert other.receive(20) is None


@pytest.mark.alone
def test_conflating_subscriber_keeps_the_newest(transport: Transport) -> None:
    publisher = transport.publisher("carState")
    plain = transport.subscriber("carState")
    conflating = transport.subscriber("carState", conflate=True)
    connect(publisher, plain, conflating)
    messages = [bytes([i]) for i in range(10)]
    for message in messages:
        publisher.send(message)
    # The plain one tells when all have arrived in this process.
    assert [plain.receive(1000) for _ in range(10)] == messages
    time.sleep(0.05)
    assert conflating.receive(1000) == bytes([9])
    assert conflating.receive(0) is None


def test_subscriber_may_come_first_and_waits_no_longer_than_told(transport: Transport) -> None:
    subscriber = transport.subscriber("carState")
    started = time.monotonic()
    assert subscriber.receive(30) is None
    waited_s = time.monotonic() - started
    assert waited_s > 0.025
    started = time.monotonic()
    for _ in range(100):
        assert subscriber.receive(0) is None
    assert time.monotonic() - started < 100 * waited_s / 2
    connect(transport.publisher("carState"), subscriber)


def test_receive_wakes_up_for_a_message(ends: Ends) -> None:
    publisher, subscriber = ends
    timer = threading.Timer(0.05, publisher.send, [b"x"])
    timer.start()
    started = time.monotonic()
    assert subscriber.receive(LONG_MS) == b"x"
    assert time.monotonic() - started < LONG_MS * 1e-3 / 2
    timer.join()


def test_wait_tells_all_that_have_a_message_in_the_order_asked(transport: Transport) -> None:
    publishers = [transport.publisher(name) for name in SERVICES]
    ends = [transport.subscriber(name, conflate=True) for name in SERVICES]
    for publisher, end in zip(publishers, ends, strict=True):
        connect(publisher, end)
    assert not transport.wait(ends, 10)
    started = time.monotonic()
    assert not transport.wait([], 30)
    assert time.monotonic() - started > 0.025
    for index in (3, 0, 2):
        publishers[index].send(b"x")
        assert transport.wait([ends[1], ends[index]], 5000) == [ends[index]]
    assert not transport.wait([ends[1]], 0)
    assert transport.wait(ends, 0) == [ends[0], ends[2], ends[3]]
    # What was not received is still there; what was is not.
    assert ends[2].receive(0) == b"x"
    assert transport.wait(tuple(reversed(ends)), 0) == [ends[3], ends[0]]


def test_send_never_blocks_on_a_reader_that_does_not_read(ends: Ends) -> None:
    publisher, _ = ends

    def send() -> None:
        for _ in range(5000):
            publisher.send(bytes(4096))

    assert returns(send)


def test_second_publisher_and_one_that_is_closed_are_refused(transport: Transport) -> None:
    first = transport.publisher("carState")
    with pytest.raises(TransportError, match="carState"):
        transport.publisher("carState")
    first.close()
    first.close()
    with pytest.raises(TransportError, match="carState"):
        first.send(b"x")
    transport.publisher("carState").close()


def test_sockets_do_not_linger_and_connect_again_soon(tmp_path: Path) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}")
    publisher, subscriber = transport.publisher("carState"), transport.subscriber("carState")
    assert publisher._socket.getsockopt(zmq.LINGER) == 0
    assert subscriber.socket.getsockopt(zmq.LINGER) == 0
    assert subscriber.socket.getsockopt(zmq.RECONNECT_IVL_MAX) == 500
    for _ in range(100):
        publisher.send(bytes(1 << 16))
    assert returns(transport.close)


def test_what_is_refused_or_closed_leaves_no_descriptor(tmp_path: Path) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}")
    transport.publisher("carState")
    assert open_below(tmp_path) == [f"{tmp_path}/carState.lock"]
    (tmp_path / "carControl").mkdir()  # where a socket cannot be bound
    for service in ("carState", "carControl"):
        with pytest.raises(TransportError, match=f"{service}: expected to bind"):
            transport.publisher(service)
    assert open_below(tmp_path) == [f"{tmp_path}/carState.lock"]
    transport.close()
    assert open_below(tmp_path) == []


def test_closed_subscriber_gets_nothing_and_can_be_closed_again(transport: Transport) -> None:
    publisher = transport.publisher("carState")
    subscriber, other = transport.subscriber("carState"), transport.subscriber("carState")
    connect(publisher, subscriber, other)
    publisher.send(b"held when it is closed")
    assert transport.wait([subscriber], 5000)
    subscriber.close()
    subscriber.close()
    publisher.send(b"x")
    assert [other.receive(1000) for _ in range(2)] == [b"held when it is closed", b"x"]
    assert subscriber.receive(20) is None
    assert not transport.wait([subscriber], 0)


@pytest.mark.parametrize(
    ("address", "bound", "connected"),
    [
        ("", "tcp://127.0.0.1:58537", "tcp://127.0.0.1:58537"),
        ("tcp://10.0.0.7/", "tcp://10.0.0.7:58537", "tcp://10.0.0.7:58537"),
        ("tcp://10.0.0.7:+1000", "tcp://10.0.0.7:59537", "tcp://10.0.0.7:59537"),
        # In a circle: the last port has the first one behind it.
        ("tcp://h:+7000", "tcp://h:8025", "tcp://h:8025"),
        ("tcp://h:murmur", "tcp://h:27098", "tcp://h:27098"),
        ("tcp://[::1]:murmur+1/", "tcp://[::1]:27099", "tcp://[::1]:27099"),
        ("tcp://*:+1", "tcp://*:58538", "tcp://127.0.0.1:58538"),
        # All interfaces are bound, but loopback is connected to.
        ("tcp://*", "tcp://*:58537", "tcp://127.0.0.1:58537"),
        ("tcp://0.0.0.0", "tcp://*:58537", "tcp://127.0.0.1:58537"),
        ("ipc:///run/bus/", "ipc:///run/bus/modelV2", "ipc:///run/bus/modelV2"),
    ],
)
def test_endpoint_of_a_service(address: str, bound: str, connected: str) -> None:
    transport = ZmqTransport(address) if address else ZmqTransport()
    assert transport.endpoint("modelV2", bind=True) == bound
    assert transport.endpoint("modelV2") == connected
    transport.close()


def test_a_service_may_be_elsewhere(tmp_path: Path) -> None:
    transport = ZmqTransport("tcp://10.0.0.7", elsewhere={"modelV2": f"ipc://{tmp_path}"})
    publisher, subscriber = transport.publisher("modelV2"), transport.subscriber("modelV2")
    connect(publisher, subscriber)
    assert transport.endpoint("carState") == "tcp://10.0.0.7:9041"
    transport.close()


ADDRESSES = ["", "tcp://", "tcp://h:", "tcp://h:5555", "tcp://h:+57512", "tcp://h:+-1", "127.0.0.1"]
ADDRESSES += [
    "udp://127.0.0.1",
    "ipc:///",
    "tcp://h:md5",
    "tcp://h/x",
    "tcp://h:+1\n",
    "tcp://h:+1 ",
]


@pytest.mark.parametrize("address", ADDRESSES)
def test_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(TransportError, match=r"expected tcp://HOST, .* or msgq:PREFIX, got"):
        ZmqTransport(address)


HOLD_OR_SAY = """
import time
transport = ZmqTransport(arguments[0])
print(said(lambda: transport.publisher("carState")), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_what_is_taken_is_named_with_the_process_that_holds_it(scheme: str, tmp_path: Path) -> None:
    address = free_address("carState") if scheme == "tcp" else f"ipc://{tmp_path}"
    with process_of(HOLD_OR_SAY, address) as child, closing(ZmqTransport(address)) as transport:
        assert line(child) == "nothing"
        with pytest.raises(TransportError) as caught:
            transport.publisher("carState")
        child.kill()
    assert f"expected to bind {transport.endpoint('carState')}, got " in str(caught.value)
    assert f" by process {child.pid} ({sys.executable} -u -c " in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_root
def test_of_a_port_of_another_user_there_is_the_user() -> None:
    address = free_address("carState")
    with closing(ZmqTransport(address)) as transport:
        transport.publisher("carState")
        with process_of(HOLD_OR_SAY, address, user=CAMERA_USER, group=OWN_GROUP) as child:
            assert " by a process of user root; stop it, or publish at other ports" in line(child)


def test_a_port_of_another_address_and_a_free_one_have_no_holder() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listening:
        port = listening.getsockname()[1]
        connected = socket.create_connection(listening.getsockname(), source_address=("", 0))
        with connected:
            assert holder_of_port(port, "127.0.0.1") is None
            for host in ("127.0.0.2", "*", "a name"):
                assert f"process {os.getpid()} (" in (holder_of_port(port, host) or "")
            # Who is only connected has a port, too.
            host, mine = connected.getsockname()
            assert f"process {os.getpid()} (" in (holder_of_port(mine, host) or "")
    assert holder_of_port(port, "*") is None


def test_host_that_is_none_and_socket_path_that_is_too_long_are_refused(tmp_path: Path) -> None:
    transport = ZmqTransport("tcp://no host")
    for end in (transport.publisher, transport.subscriber):
        with pytest.raises(TransportError, match="carState"):
            end("carState")
    transport.close()
    room = 107 - len(f"{tmp_path}//carState")
    (tmp_path / ("x" * room)).mkdir()
    longest = ZmqTransport(f"ipc://{tmp_path}/{'x' * room}")
    longest.publisher("carState")
    longest.close()
    transport = ZmqTransport(f"ipc://{tmp_path}/{'x' * (room + 1)}")
    with pytest.raises(TransportError, match="at most 107 bytes"):
        transport.publisher("carState")
    transport.close()


@pytest.mark.parametrize(("place", "found"), [("no/such", "none"), ("file", "another file")])
def test_missing_socket_directory_is_not_made(tmp_path: Path, place: str, found: str) -> None:
    (tmp_path / "file").touch()
    transport = ZmqTransport(f"ipc://{tmp_path}/{place}")
    for end in (transport.publisher, transport.subscriber):
        with pytest.raises(
            TransportError, match=f"carState: expected the directory .*{place}, got {found}; make"
        ):
            end("carState")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    transport.close()


FORK = """
publisher = ZmqTransport("ipc://" + arguments[0]).publisher("carState")
publisher.send(b"x")
child = os.fork()
if child == 0:
    try:
        publisher.send(b"x")
    except errors.TransportError:
        os._exit(7)
    os._exit(0)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_publisher_is_not_shared_with_a_forked_process(tmp_path: Path) -> None:
    with process_of(FORK, tmp_path) as child:
        assert child.wait(60) == 7
