import builtins
import bz2
import os
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event

ENDINGS = ["rlog", "rlog.bz2", "rlog.zst"]


def event(number: int, words: int = 0) -> bytes:
    built = new_event("modelV2", mono_time_ns=number)
    built.modelV2.frameId = number
    built.modelV2.position.x = [float(number)] * words
    data: bytes = built.to_bytes()
    return data


def write(path: Path, events: list[bytes]) -> None:
    with LogWriter(path) as writer:
        for data in events:
            writer.write(data)


@pytest.mark.parametrize("name", ENDINGS)
def test_log_comes_back_as_written(name: str, tmp_path: Path) -> None:
    events = [event(i, i * 10) for i in range(50)]
    write(tmp_path / name, events)
    assert list(read_log_bytes(tmp_path / name)) == events
    assert [one.modelV2.frameId for one in read_log(tmp_path / name)] == list(range(50))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ENDINGS)
def test_codec_is_the_one_of_the_ending(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, [event(1)])
    magic = (tmp_path / name).read_bytes()[:4]
    expected = {"rlog": b"\0\0\0\0", "rlog.bz2": b"BZh9", "rlog.zst": b"\x28\xb5\x2f\xfd"}
    assert magic == expected[name]


@pytest.mark.parametrize("name", ENDINGS)
def test_codec_is_recognised_without_the_ending(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, [event(1), event(2)])
    (tmp_path / name).rename(tmp_path / "log.bin")
    assert [one.logMonoTime for one in read_log(tmp_path / "log.bin")] == [1, 2]


def test_log_larger_than_a_piece_comes_back(tmp_path: Path) -> None:
    events = [event(i, 20_000) for i in range(60)]
    for name in ENDINGS:
        write(tmp_path / name, events)
        assert list(read_log_bytes(tmp_path / name)) == events


@pytest.mark.parametrize("name", ENDINGS)
def test_full_disk_leaves_the_old_log_and_nothing_else(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, [event(1)])
    events = [os.urandom(8000) for _ in range(200)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # What a full disk does, without one: writing beyond the limit fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(LogError, match="free some disk space"):
            write(tmp_path / name, [noise(data) for data in events])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert list(read_log_bytes(tmp_path / name)) == [event(1)]


def noise(data: bytes) -> bytes:
    """Return an event that does not compress."""
    built = new_event("modelV2", mono_time_ns=1)
    built.modelV2.rawPredictions = data
    encoded: bytes = built.to_bytes()
    return encoded


def test_empty_log_has_no_events(tmp_path: Path) -> None:
    for name in ENDINGS:
        write(tmp_path / name, [])
        assert list(read_log(tmp_path / name)) == []


def test_several_compressed_streams_in_a_row_are_one_log(tmp_path: Path) -> None:
    codecs: list[Callable[[bytes], bytes]] = [bz2.compress, zstd.compress]
    for compress in codecs:
        (tmp_path / "log").write_bytes(compress(event(1)) + compress(event(2)))
        assert [one.logMonoTime for one in read_log(tmp_path / "log")] == [1, 2]


def test_stream_of_unknown_size_is_read(tmp_path: Path) -> None:
    compressor = zstd.ZstdCompressor()
    data = compressor.compress(event(1)) + compressor.compress(event(2)) + compressor.flush()
    assert zstd.get_frame_info(data).decompressed_size is None
    (tmp_path / "log").write_bytes(data)
    assert [one.logMonoTime for one in read_log(tmp_path / "log")] == [1, 2]


def test_truncated_log_keeps_the_whole_events_at_every_offset(tmp_path: Path) -> None:
    events = [event(i, i) for i in range(3)]
    data = b"".join(events)
    ends = [sum(map(len, events[: i + 1])) for i in range(3)]
    path = tmp_path / "rlog"
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        if cut in (0, *ends):
            kept = list(read_log_bytes(path))
        else:
            with pytest.warns(LogTruncatedWarning, match=f"kept the {whole} events"):
                kept = list(read_log_bytes(path))
        assert kept == events[:whole]


@given(st.data(), st.sampled_from(ENDINGS))
@settings(deadline=None, max_examples=60)
def test_truncated_compressed_log_keeps_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    path = tmp_path_factory.mktemp("log") / name
    events = [event(i, 50 * i) for i in range(20)]
    write(path, events)
    content = path.read_bytes()
    path.write_bytes(content[: data.draw(st.integers(5, len(content) - 1))])
    if name == "rlog" and any(
        path.stat().st_size == sum(map(len, events[:i])) for i in range(len(events))
    ):
        return  # cut between two events: nothing tells
    with pytest.warns(LogTruncatedWarning) as caught:
        kept = list(read_log_bytes(path))
    assert len(caught) == 1
    assert kept == events[: len(kept)]
    # A cut in the trailer of the compression loses no event.
    assert len(kept) < len(events) or name != "rlog"


def test_damage_inside_a_log_ends_it_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    path.write_bytes(event(1) + struct.pack("<II", 2**31, 7) + event(2))
    with pytest.warns(LogTruncatedWarning, match=r"is damaged at byte \d+ .*kept the 1 events"):
        assert [one.logMonoTime for one in read_log(path)] == [1]


def test_damage_can_be_taken_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    broken = bytearray(event(2))
    broken[8:12] = b"\xff" * 4  # its root points nowhere
    path.write_bytes(event(1) + broken + event(3)[:-8])
    said: list[str] = []
    # A warning would be an error here.
    assert [one.logMonoTime for one in read_log(path, said.append)] == [1]
    assert ["ends inside a message" in said[0], "left out 1 events" in said[1]] == [True, True]
    assert len(said) == 2


def test_damaged_compressed_data_ends_the_log_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    good = zstd.compress(event(1))
    path.write_bytes(good + b"rubbish behind")
    with pytest.warns(LogTruncatedWarning, match="has damaged zstd data"):
        assert [one.logMonoTime for one in read_log(path)] == [1]


@pytest.mark.parametrize(
    "data",
    [b"just a text file, no log", b"BZh9rubbish that is none", b"\x28\xb5\x2f\xfd" + b"\xff" * 40],
)
def test_file_that_is_no_log_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(LogError, match="file: expected") as caught:
        list(read_log(path))
    assert caught.value.exit_code == 4


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="nowhere: expected a readable log, got No such file"):
        list(read_log(tmp_path / "nowhere"))


@pytest.mark.parametrize("name", ENDINGS)
def test_log_is_discarded_when_writing_fails(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, [event(1)])
    with pytest.raises(LogError, match="expected one whole"), LogWriter(path) as writer:
        writer.write(event(2) + event(3))
    assert [one.logMonoTime for one in read_log(path)] == [1]
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_log_appears_only_when_closed(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    writer = LogWriter(path)
    writer.write(event(1))
    assert not path.exists()
    writer.close()
    writer.close()
    writer.discard()
    assert path.exists()


def test_writer_takes_whole_messages_only(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "rlog")
    for data in (event(1)[:-8], event(1) + event(2), b"", bytes(16)):
        with pytest.raises(LogError, match="expected"):
            writer.write(data)
    writer.discard()
    with pytest.raises(LogError, match="closed"):
        writer.write(event(1))
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="expected to write beside it"):
        LogWriter(tmp_path / "no" / "rlog")


def test_missing_zstd_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "rlog.zst", [event(1)])
    real = builtins.__import__

    def without_zstd(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("backports"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_zstd)
    with pytest.raises(LogError, match=r"modeld\[replay\]"):
        list(read_log(tmp_path / "rlog.zst"))
    with pytest.raises(LogError, match=r"modeld\[replay\]"):
        LogWriter(tmp_path / "other.zst")
