"""Rings and sockets between users: modes that no umask changes, and refusals of one line."""

import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from cereal import ring_file
from cereal.errors import FrameError
from cereal.frames import FrameRingWriter, available_streams, unusable_streams
from cereal.transport import MemoryTransport, ZmqTransport
from tests.cereal.shared import SMALL, ring_reader, ring_writer
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

ADVICE = (
    "run both processes with one group, or correct group and mode (docs/formats/bus.md#permissions)"
)
CAMERA: dict[str, Any] = {"user": CAMERA_USER, "group": SHARED_GROUP}
DAEMON: dict[str, Any] = {"user": DAEMON_USER, "group": SHARED_GROUP}
STRANGERS: dict[str, Any] = {"user": STRANGER, "group": OWN_GROUP}

# A ring and a socket at once, so that one child shows both.
OWNER = """
import time
place = Path(arguments[0])
writer = frames.FrameRingWriter("cam", "road", SMALL, 3, directory=place)
publisher = ZmqTransport(f"ipc://{place}").publisher("carState")
print("made", flush=True)
while True:
    writer.next_buffer()[:] = 7
    writer.publish(7, 1, 2)
    publisher.send(b"hello")
    time.sleep(0.01)
"""
LISTENER = """
place = Path(arguments[0])
print(sorted(frames.available_streams("cam", directory=place)))
reader = frames.FrameRingReader("cam", "road", conflate=True, directory=place)
print(reader.receive(20000).data.sum())
transport = ZmqTransport(f"ipc://{place}")
subscriber = transport.subscriber("carState")
print(transport.refused(), subscriber.receive(20000))
"""
# What is said to who may not: of the ring, read and written; of the socket, at both ends.
REFUSED = """
place = Path(arguments[0])
print(sorted(frames.available_streams("cam", directory=place)))
print(said(lambda: frames.FrameRingReader("cam", "road", conflate=True, directory=place)))
print(frames.unusable_streams("cam", directory=place).get("road"))
print(said(lambda: frames.FrameRingWriter("cam", "road", SMALL, 3, directory=place)))
transport = ZmqTransport(f"ipc://{place}")
print(said(lambda: transport.subscriber("carState")))
print(said(lambda: transport.publisher("carState")))
print(dict(transport.refused()))
"""
HEARD = ["['road']", str(7 * SMALL.size), "{} b'hello'"]
MADE = {"frames_cam_road": 0o640, "frames.lock": 0o644, "carState": 0o660, "carState.lock": 0o660}


def modes(directory: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}


def refusals(directory: Path, **user: int) -> list[str]:
    """Return the seven lines of REFUSED; a warning that a subscriber logs does not count."""
    said = said_by(REFUSED, directory, **user).splitlines()
    assert len(said) - said.count("") in (7, 8), said
    return said


@pytest.mark.parametrize("umask", [0o077, 0o022, 0])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    transport = ZmqTransport(f"ipc://{tmp_path}")
    before = os.umask(umask)
    try:
        writer = ring_writer(tmp_path)
        transport.publisher("carState")
    finally:
        os.umask(before)
    assert modes(tmp_path) == MADE
    transport.close()
    writer.close()


def test_locks_of_another_mode_are_mended_by_their_owner(tmp_path: Path) -> None:
    for name in ("frames.lock", "carState.lock"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o600)
    transport = ZmqTransport(f"ipc://{tmp_path}")
    transport.publisher("carState")
    ring_writer(tmp_path).close()
    assert modes(tmp_path) == {name: MADE[name] for name in MADE if name != "frames_cam_road"}
    transport.close()


@needs_root
def test_users_of_one_group_share_ring_and_bus(open_directory: Path) -> None:
    # The strictest umask is the one that could keep a group out.
    with process_of(OWNER, open_directory, umask=0o077, **CAMERA) as owner:
        assert line(owner) == "made"
        said = said_by(LISTENER, open_directory, umask=0o077, **DAEMON)
    assert said.splitlines() == HEARD


@needs_root
@pytest.mark.slow
def test_a_directory_gives_its_group_to_what_is_made_in_it(open_directory: Path) -> None:
    bus = open_directory / "bus"
    bus.mkdir()
    # As the unit's RuntimeDirectory and deploy's page make it.
    os.chown(bus, 0, SHARED_GROUP)
    bus.chmod(0o2770)
    with process_of(OWNER, bus, umask=0o077) as owner:
        assert line(owner) == "made"
        assert {path.stat().st_gid for path in bus.iterdir()} == {SHARED_GROUP}
        assert said_by(LISTENER, bus, **DAEMON).splitlines() == HEARD
    # And one of the group may follow an owner, root, that is gone.
    with process_of(OWNER, bus, **DAEMON) as owner:
        assert line(owner) == "made"


@needs_root
def test_what_is_roots_refuses_others_in_one_line(open_directory: Path) -> None:
    # Without a umask everybody would be let in.
    with process_of(OWNER, open_directory, umask=0) as owner:
        assert line(owner) == "made"
        said = refusals(open_directory, **STRANGERS)
        assert available_streams("cam", directory=open_directory) == {"road"}
        # What is refused leaves nothing behind.
        assert modes(open_directory) == MADE
    ring, socket = open_directory / "frames_cam_road", open_directory / "carState"
    who = f"this process is {STRANGER}:{OWN_GROUP}; {ADVICE}"
    owned = f"{ring} belongs to root:root with mode 0640, {who}"
    no_ring, may_not = f"got Permission denied; {owned}", f"may not be read; {owned}"
    no_socket = (
        f"zmq transport, carState: expected to connect to {socket}, got Permission denied; "
        f"{socket} belongs to root:root with mode 0660, {who}"
    )
    assert said == [
        "[]",
        f"{ring}: expected a frame ring, {no_ring}",
        f"{ring}: expected to read a frame ring, {no_ring}",
        f"{ring}: expected to replace the ring of an ended writer, got one that {may_not}",
        # A warning, and the subscriber stays: the socket may be replaced.
        no_socket,
        "nothing",
        no_socket.replace("connect to", "open or make").replace(str(socket), f"{socket}.lock"),
        str({"carState": no_socket}),
    ]


@needs_root
@pytest.mark.slow
def test_root_starts_a_writer_first_and_others_start_theirs(open_directory: Path) -> None:
    FrameRingWriter("other", "road", SMALL, 2, directory=open_directory).close()
    assert (open_directory / "frames.lock").stat().st_uid == 0
    with process_of(OWNER, open_directory, **STRANGERS) as owner:
        assert line(owner) == "made"


@needs_root
def test_what_a_dead_owner_left_is_replaced_by_it_only(open_directory: Path) -> None:
    """In a sticky directory, as /dev/shm is one."""
    with process_of(OWNER, open_directory, **CAMERA) as owner:
        assert line(owner) == "made"
    said = refusals(open_directory, **DAEMON)
    assert "expected to replace the ring of another user's writer, got Operation not" in said[3]
    assert f"belongs to {CAMERA_USER}:{SHARED_GROUP} with mode 0640" in said[3]
    assert "Address already in use" in said[5]
    assert f"remove what is there: {open_directory}/carState belongs to {CAMERA_USER}" in said[5]
    with process_of(OWNER, open_directory, **CAMERA) as owner:
        assert line(owner) == "made"


@needs_root
def test_a_lock_that_others_may_not_open_is_one_line(open_directory: Path) -> None:
    (open_directory / "frames.lock").touch()
    (open_directory / "frames.lock").chmod(0o600)
    said = refusals(open_directory, **STRANGERS)[3]
    assert said.startswith(f"{open_directory}/frames.lock: expected to lock it, got Permission")
    assert "frames.lock belongs to root:root with mode 0600" in said


@needs_root
def test_a_directory_that_may_not_be_written_takes_subscribers_only(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    said = refusals(open_directory, **STRANGERS)
    owned = f"{open_directory} belongs to root:root with mode 0755"
    assert "expected to create a file next to it, got Permission denied" in said[3]
    assert owned in said[3]
    assert said[4] == "nothing"
    assert "expected to open or make" in said[5]
    assert owned in said[5]
    assert said[6] == "{}"


@needs_root
@pytest.mark.parametrize("inner", ["deep", pytest.param("", marks=pytest.mark.slow)])
def test_a_closed_directory_is_named_to_all(open_directory: Path, inner: str) -> None:
    closed = open_directory / "closed"
    (closed / inner).mkdir(parents=True)
    closed.chmod(0o700)
    writer = ring_writer(closed / inner)
    said = refusals(closed / inner, **STRANGERS)
    owned = f"{closed} belongs to root:root with mode 0700, this process is"
    assert owned in said[1]
    for text in said[4:6]:
        assert text.startswith("zmq transport, carState: expected to use the directory")
        assert owned in text
    assert said[6] == "{}"
    writer.close()


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
    print(subscriber.receive(200), flush=True)
"""


@needs_root
def test_refusals_are_said_once_and_when_they_end(open_directory: Path) -> None:
    with process_of(WATCHER, open_directory, user=DAEMON_USER, group=OWN_GROUP) as watcher:
        assert line(watcher) == "subscribed"
        with process_of(OWNER, open_directory) as owner:
            assert line(owner) == "made"
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
    for other in (MemoryTransport(), ZmqTransport()):
        other.subscriber("carState")
        other.log_refused()
        assert other.refused() == {}
        other.close()
    assert not caplog.records


def test_a_held_lock_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ring_file._GUARD_WAIT_S == 5.0
    monkeypatch.setattr(ring_file, "_GUARD_WAIT_S", 0.05)
    holder = """
import fcntl
lock = open(Path(arguments[0]) / "frames.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""
    with process_of(holder, tmp_path) as child:
        assert line(child) == "held"
        with pytest.raises(FrameError, match=r"frames\.lock: expected its lock within"):
            ring_writer(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["frames.lock"]


def test_only_living_rings_that_cannot_be_read_have_a_reason(tmp_path: Path) -> None:
    assert unusable_streams("cam", directory=tmp_path) == {}
    writer = ring_writer(tmp_path)
    assert unusable_streams("cam", directory=tmp_path) == {}
    ring_reader(tmp_path).close()
    writer.close()
    (tmp_path / "frames_cam_wideRoad").write_bytes(bytes(10))
    assert unusable_streams("cam", directory=tmp_path) == {}
    writer = ring_writer(tmp_path)
    with (tmp_path / "frames_cam_road").open("r+b") as file:
        file.seek(8)
        file.write(b"\x09")
    (tmp_path / "frames_cam_driver").symlink_to(tmp_path / "frames_cam_road")
    reasons = unusable_streams("cam", directory=tmp_path)
    assert list(reasons) == ["road", "driver"]
    assert "version 9; update the writer or the reader" in reasons["road"]
    assert "Too many levels of symbolic links; remove it" in reasons["driver"]
    writer.close()
