"""Frame rings between users: modes that no umask changes, and refusals of one line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from cereal import ring_file
from cereal.errors import FrameError
from cereal.frames import (
    FrameFormat,
    FrameRingReader,
    FrameRingWriter,
    available_streams,
    unusable_streams,
)
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

SMALL = FrameFormat(width=16, height=8, stride=16, uv_offset=128, size=192)
UMASKS = [0o077, 0o022, 0o000]

WRITER = """
writer = frames.FrameRingWriter("cam", "road", SMALL, 3, directory=Path(arguments[0]))
print("made", flush=True)
for line in sys.stdin:
    writer.next_buffer()[:] = 7
    writer.publish(7, 1, 2)
"""
READER = """
place = Path(arguments[0])
print(sorted(frames.available_streams("cam", directory=place)), flush=True)
reader = frames.FrameRingReader("cam", "road", conflate=True, directory=place)
print("open", flush=True)
print(reader.receive(20000).data.sum(), flush=True)
"""
REFUSED_READER = """
place = Path(arguments[0])
print(sorted(frames.available_streams("cam", directory=place)))
print(said(lambda: frames.FrameRingReader("cam", "road", conflate=True, directory=place)))
print(frames.unusable_streams("cam", directory=place)["road"])
"""
REFUSED_WRITER = """
place = Path(arguments[0])
print(said(lambda: frames.FrameRingWriter("cam", "road", SMALL, 3, directory=place)))
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", UMASKS)
def test_modes_of_a_ring_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    with process_of(WRITER, tmp_path, umask=umask) as child:
        assert line(child) == "made"
        assert mode(tmp_path / "frames_cam_road") == 0o640
        assert mode(tmp_path / "frames.lock") == 0o644


def test_lock_file_of_another_mode_is_mended_by_its_owner(tmp_path: Path) -> None:
    lock = tmp_path / "frames.lock"
    lock.touch(0o600)
    lock.chmod(0o600)
    FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path).close()
    assert mode(lock) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["frames.lock"]


@needs_root
@pytest.mark.parametrize("umask", UMASKS)
def test_users_of_one_group_share_a_ring(open_directory: Path, umask: int) -> None:
    owner: dict[str, Any] = {"user": CAMERA_USER, "group": SHARED_GROUP, "umask": umask}
    reader: dict[str, Any] = {"user": DAEMON_USER, "group": SHARED_GROUP, "umask": umask}
    with process_of(WRITER, open_directory, **owner) as camera:
        assert line(camera) == "made"
        with process_of(READER, open_directory, **reader) as daemon:
            assert line(daemon) == "['road']"
            assert line(daemon) == "open"
            tell(camera)
            assert line(daemon) == str(7 * SMALL.size)


@needs_root
@pytest.mark.parametrize("umask", UMASKS)
def test_a_ring_of_root_refuses_others_in_one_line(open_directory: Path, umask: int) -> None:
    ring = open_directory / "frames_cam_road"
    with process_of(WRITER, open_directory, umask=umask) as camera:
        assert line(camera) == "made"
        said = said_by(REFUSED_READER, open_directory, user=STRANGER, group=OWN_GROUP)
        streams, refusal, reason = said.splitlines()
        assert streams == "[]"
        for text, expected in ((refusal, "a frame ring"), (reason, "to read a frame ring")):
            assert text == (
                f"{ring}: expected {expected}, got Permission denied; {ring} belongs to root:root "
                f"with mode 0640, this process is {STRANGER}:{OWN_GROUP}; run both processes with "
                "one group, or correct group and mode (docs/formats/bus.md#who-may-use)"
            )
        # Nor is it replaced by a stranger's, and what is refused leaves nothing.
        said = said_by(REFUSED_WRITER, open_directory, user=STRANGER, group=OWN_GROUP)
        assert said.startswith(f"{ring}: expected to replace what another writer left, got a ring")
        assert f"belongs to root:root with mode 0640, this process is {STRANGER}" in said
        assert available_streams("cam", directory=open_directory) == {"road"}
    assert sorted(path.name for path in open_directory.iterdir()) == [
        "frames.lock",
        "frames_cam_road",
    ]


@needs_root
def test_root_starts_a_writer_first_and_others_start_theirs(open_directory: Path) -> None:
    FrameRingWriter("other", "road", SMALL, 2, directory=open_directory).close()
    assert (open_directory / "frames.lock").stat().st_uid == 0
    with process_of(WRITER, open_directory, user=STRANGER, group=OWN_GROUP) as camera:
        assert line(camera) == "made"


@needs_root
def test_what_a_dead_writer_left_is_replaced_by_its_owner_only(open_directory: Path) -> None:
    owner: dict[str, Any] = {"user": CAMERA_USER, "group": SHARED_GROUP}
    with process_of(WRITER, open_directory, **owner) as camera:
        assert line(camera) == "made"
    said = said_by(REFUSED_WRITER, open_directory, user=DAEMON_USER, group=SHARED_GROUP)
    assert "expected to replace what another user's writer left, got Operation not permit" in said
    assert f"belongs to {CAMERA_USER}:{SHARED_GROUP} with mode 0640" in said
    assert said_by(REFUSED_WRITER, open_directory, **owner) == "nothing"


@needs_root
def test_a_lock_that_others_may_not_open_is_one_line(open_directory: Path) -> None:
    (open_directory / "frames.lock").touch(0o600)
    (open_directory / "frames.lock").chmod(0o600)
    said = said_by(REFUSED_WRITER, open_directory, user=STRANGER, group=OWN_GROUP)
    assert said.startswith(f"{open_directory}/frames.lock: expected to lock it, got Permission")
    assert "frames.lock belongs to root:root with mode 0600" in said
    assert "\n" not in said


@needs_root
def test_a_directory_that_may_not_be_written_is_one_line(open_directory: Path) -> None:
    open_directory.chmod(0o755)
    said = said_by(REFUSED_WRITER, open_directory, user=STRANGER, group=OWN_GROUP)
    assert "expected to make a file beside it, got Permission denied" in said
    assert f"{open_directory} belongs to root:root with mode 0755" in said


@needs_root
def test_a_ring_below_a_closed_directory_names_that(open_directory: Path) -> None:
    inner = open_directory / "closed" / "deep"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=inner)
    said = said_by(REFUSED_READER, inner, user=STRANGER, group=OWN_GROUP)
    assert f"{inner.parent} belongs to root:root with mode 0700" in said.splitlines()[1]
    writer.close()


def test_a_lock_that_is_held_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["frames.lock"]


def test_usable_missing_and_dead_rings_have_no_reason(tmp_path: Path) -> None:
    assert unusable_streams("cam", directory=tmp_path) == {}
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    assert unusable_streams("cam", directory=tmp_path) == {}
    reader = FrameRingReader("cam", "road", conflate=True, directory=tmp_path)
    reader.close()
    writer.close()
    assert unusable_streams("cam", directory=tmp_path) == {}
    (tmp_path / "frames_cam_wideRoad").write_bytes(bytes(10))
    assert unusable_streams("cam", directory=tmp_path) == {}


def test_a_ring_of_another_version_and_a_link_have_a_reason(tmp_path: Path) -> None:
    writer = FrameRingWriter("cam", "road", SMALL, 2, directory=tmp_path)
    with (tmp_path / "frames_cam_road").open("r+b") as file:
        file.seek(8)
        file.write(b"\x09")
    (tmp_path / "frames_cam_driver").symlink_to(tmp_path / "frames_cam_road")
    reasons = unusable_streams("cam", directory=tmp_path)
    assert list(reasons) == ["road", "driver"]
    assert "version 9; update the writer or the reader" in reasons["road"]
    assert "Too many levels of symbolic links; remove it" in reasons["driver"]
    writer.close()
