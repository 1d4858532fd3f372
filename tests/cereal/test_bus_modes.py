"""Sockets of the bus between users: modes that no umask changes, and refusals of one line."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from cereal.transport import MemoryTransport, ZmqTransport
from tests.other_user import (
    CAMERA_USER,
    DAEMON_USER,
    OWN_GROUP,
    SHARED_GROUP,
    STRANGER,
    line,
    needs_root,
    open_directory,
    process_of,
    said_by,
    tell,
)

__all__ = ["open_directory"]

UMASKS = [0o077, 0o022, 0o000]
ADVICE = (
    "run both processes with one group, or correct group and mode (docs/formats/bus.md#who-may-use)"
)

PUBLISHER = """
publisher = ZmqTransport("ipc://" + arguments[0]).publisher("carState")
print("made", flush=True)
while not sys.stdin.closed:
    publisher.send(b"hello")
    import time; time.sleep(0.01)
"""
SUBSCRIBER = """
transport = ZmqTransport("ipc://" + arguments[0])
subscriber = transport.subscriber("carState")
print(transport.refused(), subscriber.receive(20000))
"""
REFUSED = """
transport = ZmqTransport("ipc://" + arguments[0])
print(said(lambda: transport.subscriber("carState")))
print(said(lambda: transport.publisher("carState")))
print(dict(transport.refused()))
"""
WATCHER = """
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
transport = ZmqTransport("ipc://" + arguments[0])
subscriber = transport.subscriber("carState")
print("subscribed", flush=True)
for _ in sys.stdin:
    transport.log_refused()
    transport.log_refused()
    print("looked", flush=True)
    data = subscriber.receive(200)
    print(data, flush=True)
"""


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


@pytest.mark.parametrize("umask", UMASKS)
def test_modes_of_a_socket_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    with process_of(PUBLISHER, tmp_path, umask=umask) as child:
        assert line(child) == "made"
        assert modes(tmp_path) == {"carState": 0o660, "carState.lock": 0o660}


def test_lock_of_another_mode_is_mended_by_its_owner(tmp_path: Path) -> None:
    (tmp_path / "carState.lock").touch(0o600)
    transport = ZmqTransport(f"ipc://{tmp_path}")
    transport.publisher("carState")
    assert modes(tmp_path)["carState.lock"] == 0o660
    transport.close()


@needs_root
@pytest.mark.parametrize("umask", UMASKS)
def test_users_of_one_group_share_a_bus(open_directory: Path, umask: int) -> None:
    with process_of(
        PUBLISHER, open_directory, user=CAMERA_USER, group=SHARED_GROUP, umask=umask
    ) as publisher:
        assert line(publisher) == "made"
        said = said_by(SUBSCRIBER, open_directory, user=DAEMON_USER, group=SHARED_GROUP)
    assert said == "{} b'hello'"


@needs_root
def test_a_directory_gives_its_group_to_what_is_made_in_it(open_directory: Path) -> None:
    bus = open_directory / "bus"
    bus.mkdir()
    # As the unit's RuntimeDirectory and deploy's page make it.
    os.chown(bus, 0, SHARED_GROUP)
    bus.chmod(0o2770)
    with process_of(PUBLISHER, bus, umask=0o077) as publisher:
        assert line(publisher) == "made"
        assert {path.stat().st_gid for path in bus.iterdir()} == {SHARED_GROUP}
        said = said_by(SUBSCRIBER, bus, user=DAEMON_USER, group=SHARED_GROUP)
    assert said == "{} b'hello'"
    # And one of the group may follow a publisher of root that is gone.
    with process_of(PUBLISHER, bus, user=DAEMON_USER, group=SHARED_GROUP) as publisher:
        assert line(publisher) == "made"


@needs_root
@pytest.mark.parametrize("umask", UMASKS)
def test_a_bus_of_root_refuses_others_in_one_line_at_both_ends(
    open_directory: Path, umask: int
) -> None:
    with process_of(PUBLISHER, open_directory, umask=umask) as publisher:
        assert line(publisher) == "made"
        said = said_by(REFUSED, open_directory, user=STRANGER, group=OWN_GROUP).splitlines()
    path = open_directory / "carState"
    who = f"this process is {STRANGER}:{OWN_GROUP}; {ADVICE}"
    refusal = (
        f"zmq transport, carState: expected to connect to {path}, got Permission denied; "
        f"{path} belongs to root:root with mode 0660, {who}"
    )
    # A warning, and the subscriber stays: the socket may be replaced.
    assert said[:2] == [refusal, "nothing"]
    assert said[2] == (
        f"zmq transport, carState: expected to open or make {path}.lock, got Permission denied; "
        f"{path}.lock belongs to root:root with mode 0660, {who}"
    )
    assert said[3] == str({"carState": refusal})


@needs_root
@pytest.mark.parametrize(("mode", "inner"), [(0o700, ""), (0o700, "deep")])
def test_a_closed_directory_is_refused_at_both_ends(
    open_directory: Path, mode: int, inner: str
) -> None:
    closed = open_directory / "closed"
    (closed / inner).mkdir(parents=True)
    closed.chmod(mode)
    said = said_by(REFUSED, closed / inner, user=STRANGER, group=OWN_GROUP).splitlines()
    for text in said[:2]:
        assert text.startswith("zmq transport, carState: expected to use the directory")
        assert f"{closed} belongs to root:root with mode 0700, this process is" in text
    assert said[2] == "{}"


@needs_root
def test_a_directory_that_may_not_be_written_takes_subscribers_only(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    said = said_by(REFUSED, open_directory, user=STRANGER, group=OWN_GROUP).splitlines()
    assert said[0] == "nothing"
    assert "expected to open or make" in said[1]
    assert f"{open_directory} belongs to root:root with mode 0755" in said[1]
    assert said[2] == "{}"


@needs_root
def test_a_socket_that_another_user_left_in_a_sticky_directory_is_one_line(
    open_directory: Path,
) -> None:
    with process_of(PUBLISHER, open_directory, user=CAMERA_USER, group=SHARED_GROUP) as publisher:
        assert line(publisher) == "made"
    said = said_by(REFUSED, open_directory, user=DAEMON_USER, group=SHARED_GROUP).splitlines()
    assert "Address already in use" in said[1]
    assert f"remove what is there: {open_directory}/carState belongs to {CAMERA_USER}" in said[1]


@needs_root
def test_refusals_are_said_once_and_when_they_end(open_directory: Path) -> None:
    with process_of(WATCHER, open_directory, user=DAEMON_USER, group=OWN_GROUP) as watcher:
        assert line(watcher) == "subscribed"
        with process_of(PUBLISHER, open_directory) as publisher:
            assert line(publisher) == "made"
            tell(watcher)
            assert line(watcher).startswith("zmq transport, carState: expected to connect to")
            assert line(watcher) == "looked"
            assert line(watcher) == "None"
            (open_directory / "carState").chmod(0o666)
            tell(watcher)
            assert line(watcher) == "carState: its socket is no longer refused"
            assert line(watcher) == "looked"
            # ZeroMQ connects at its next try.
            for _ in range(50):
                if line(watcher) == "b'hello'":
                    return
                tell(watcher)
                assert line(watcher) == "looked"
            pytest.fail("never connected")


def test_what_is_open_is_not_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    transport = ZmqTransport(f"ipc://{tmp_path}")
    subscriber = transport.subscriber("carState")
    assert transport.refused() == {}
    transport.publisher("carState")
    transport.log_refused()
    assert transport.refused() == {}
    subscriber.close()
    transport.close()
    assert transport.refused() == {}
    memory = MemoryTransport()
    memory.subscriber("carState")
    memory.log_refused()
    assert memory.refused() == {}
    tcp = ZmqTransport()
    tcp.subscriber("carState")
    assert tcp.refused() == {}
    tcp.close()
    assert not caplog.records
