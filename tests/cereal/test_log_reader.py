"""Logs come back as written; of one that is cut off or damaged, all that precedes that place.

`make test-logs` reads ten thousand logs with random damage.
"""

import bz2
import functools
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st

from cereal.clock import ManualClock
from cereal.errors import LogError
from cereal.log_codec import ZSTD_LEVEL
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import GrowingLogWriter, LogWriter
from tests.cereal.shared import largest_file, model_event, write_log
from tests.logs import mutate

MAGIC = {"rlog": b"\0\0\0\0", "rlog.bz2": b"BZh9", "rlog.zst": b"\x28\xb5\x2f\xfd"}
ENDINGS = pytest.mark.parametrize("name", MAGIC)


def times(path: Path) -> list[int]:
    return [one.logMonoTime for one in read_log(path)]


@ENDINGS
def test_codec_is_the_one_of_the_ending_and_recognised_without(name: str, tmp_path: Path) -> None:
    write_log(tmp_path / name, [model_event(1), model_event(2)])
    content = (tmp_path / name).read_bytes()
    assert content[:4] == MAGIC[name]
    if name == "rlog.zst":
        assert ZSTD_LEVEL == 10
    (tmp_path / name).rename(tmp_path / "log.bin")
    assert times(tmp_path / "log.bin") == [1, 2]
    write_log(tmp_path / name, [])
    assert times(tmp_path / name) == []


@ENDINGS
def test_log_larger_than_a_piece_comes_back_as_written(name: str, tmp_path: Path) -> None:
    events = [model_event(i, words=20 * i, noise=40_000) for i in range(30)]
    write_log(tmp_path / name, events)
    assert (tmp_path / name).stat().st_size > 1 << 20
    assert list(read_log_bytes(tmp_path / name)) == events
    assert [one.modelV2.frameId for one in read_log(tmp_path / name)] == list(range(30))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@ENDINGS
def test_full_disk_leaves_the_old_log_and_nothing_else(name: str, tmp_path: Path) -> None:
    write_log(tmp_path / name, [model_event(1)])
    events = [model_event(1, noise=8000) for _ in range(200)]
    with largest_file(20_000), pytest.raises(LogError, match="free some disk space"):
        write_log(tmp_path / name, events)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert list(read_log_bytes(tmp_path / name)) == [model_event(1)]


def streams(*events: bytes) -> dict[str, bytes]:
    unknown_size = zstd.ZstdCompressor()
    return {
        "bz2 in a row": b"".join(map(bz2.compress, events)),
        "zstd in a row": b"".join(map(zstd.compress, events)),
        "zstd of unknown size": b"".join(map(unknown_size.compress, events)) + unknown_size.flush(),
    }


def test_several_streams_and_those_of_unknown_size_are_one_log(tmp_path: Path) -> None:
    for content in streams(model_event(1), model_event(2)).values():
        (tmp_path / "log").write_bytes(content)
        assert times(tmp_path / "log") == [1, 2]
    assert zstd.get_frame_info(content).decompressed_size is None


def test_truncated_log_keeps_the_whole_events_at_every_offset(tmp_path: Path) -> None:
    events = [model_event(i, words=i) for i in range(3)]
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


@functools.cache
def twenty() -> list[bytes]:
    return [model_event(i, words=50 * i) for i in range(20)]


@given(st.data(), st.sampled_from(["rlog.bz2", "rlog.zst"]))
@settings(deadline=None, max_examples=60)
def test_truncated_compressed_log_keeps_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, name: str
) -> None:
    path = tmp_path_factory.mktemp("log") / name
    events = twenty()
    write_log(path, events)
    content = path.read_bytes()
    cut = data.draw(st.integers(5, len(content) - 1))
    path.write_bytes(content[:cut])
    with pytest.warns(LogTruncatedWarning) as caught:
        kept = list(read_log_bytes(path))
    assert len(caught) == 1
    # A cut in the trailer of the compression loses no event.
    assert kept == events[: len(kept)]


@pytest.mark.parametrize("first", range(0x50, 0x60))
def test_skippable_frames_are_no_content(first: int, tmp_path: Path) -> None:
    """As parallel compressors write them, before each frame; also where nothing else follows."""
    path = tmp_path / "rlog"
    skipped = bytes([first]) + b"\x2a\x4d\x18" + struct.pack("<I", 4) + b"size"
    frames = [zstd.compress(model_event(number)) for number in (1, 2)]
    path.write_bytes(skipped + skipped + frames[0] + skipped + frames[1])
    assert times(path) == [1, 2]
    path.write_bytes(skipped)
    assert times(path) == []
    # LZ4 has such frames, too.
    path.write_bytes(skipped + b"\x04\x22\x4d\x18 another format")
    with pytest.raises(LogError, match="expected zstd data"):
        times(path)


GOOD, SIZE = model_event(1), len(model_event(1))
AT = rf"at byte {SIZE} of its content \(byte {SIZE} of the file\); kept the 1 events"
ROOT = slice(8, 16)  # where the pointer to the root of an event stands


def rootless(number: int) -> bytes:
    broken = bytearray(model_event(number))
    broken[ROOT] = b"\xff" * 8
    return bytes(broken)


@pytest.mark.parametrize(
    ("content", "message", "expected"),
    [
        (GOOD + struct.pack("<II", 2**31, 7) + model_event(2), f"is damaged {AT}", [1]),
        # An absurd size, which needs no memory.
        (GOOD + (1 << 60).to_bytes(8, "little") + bytes(64), f"is damaged {AT}", [1]),
        (GOOD + model_event(3)[:-8], f"ends inside a message {AT}", [1]),
        (zstd.compress(GOOD) + b"rubbish behind", "has damaged zstd data", [1]),
        (zstd.compress(GOOD)[:-1], "breaks off inside its zstd data", []),
        (
            GOOD + rootless(2) + model_event(3) + rootless(4),
            rf"left out 2 events .* byte {SIZE} of",
            [1, 3],
        ),
    ],
)
def test_damage_ends_a_log(
    content: bytes, message: str, expected: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.warns(LogTruncatedWarning, match=message):
        assert times(path) == expected


def test_damage_can_be_taken_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    path.write_bytes(GOOD + rootless(2) + model_event(3)[:-8])
    said: list[str] = []
    # A warning would be an error here.
    assert [one.logMonoTime for one in read_log(path, said.append)] == [1]
    assert ["ends inside a message" in said[0], "left out 1 events" in said[1]] == [True, True]
    assert len(said) == 2


@pytest.mark.parametrize("damaged", [0, 1, 10, 29])
def test_damaged_block_keeps_the_blocks_before_it(damaged: int, tmp_path: Path) -> None:
    """All blocks are taken by one call of the decoder, and what such a call gives is lost."""
    path = tmp_path / "rlog.zst"
    events = [model_event(i, noise=1000) for i in range(30)]
    starts = []
    with GrowingLogWriter(path, clock=ManualClock(), has_timer=False) as writer:
        for data in events:
            starts.append(path.stat().st_size)
            writer.write(data)
            writer.flush()
    content = bytearray(path.read_bytes())
    content[starts[damaged] + (10 if damaged == 0 else 0)] = 0xFF  # a kind of block that is none
    path.write_bytes(content)
    if damaged == 0:
        with pytest.raises(LogError, match="the file is damaged"):
            list(read_log_bytes(path))
    else:
        with pytest.warns(LogTruncatedWarning, match="has damaged zstd data") as caught:
            assert list(read_log_bytes(path)) == events[:damaged]
        named = re.search(r"byte (\d+) of the file", str(caught[0].message))
        assert named is not None
        assert starts[damaged] < int(named[1]) <= starts[damaged] + 4


def test_damaged_bzip2_block_keeps_the_blocks_before_it(tmp_path: Path) -> None:
    path = tmp_path / "rlog.bz2"
    events = [model_event(i, noise=10_000) for i in range(60)]
    content = bytearray(bz2.compress(b"".join(events), 1))
    # Random bytes do not shrink and level 1 makes blocks of 100 kB: this is in the fourth.
    content[350_000:350_100] = bytes(100)
    path.write_bytes(content)
    assert list(read_log_bytes(path, lambda _: None))[:28] == events[:28]


@pytest.mark.parametrize("count", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_random_damage_gives_documented_errors_only(count: int, tmp_path: Path) -> None:
    found = mutate.run(count, 0, tmp_path)
    # Each of these can happen and does: the test would be empty without.
    assert min(found[key] for key in ("events", "warned", "refused", "damaged events")) > 0
    assert found["grown_mib"] < 256


@pytest.mark.parametrize(
    "data",
    [b"just a text file, no log", b"BZh9rubbish that is none", b"\x28\xb5\x2f\xfd" + b"\xff" * 40],
)
def test_file_that_is_no_log_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(LogError, match="file: expected") as caught:
        times(tmp_path / "file")
    assert caught.value.exit_code == 4
    with pytest.raises(LogError, match="nowhere: expected a readable log, got No such file"):
        times(tmp_path / "nowhere")


@ENDINGS
def test_log_is_discarded_when_writing_fails(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_log(path, [GOOD])
    with pytest.raises(LogError, match="expected one whole"), LogWriter(path) as writer:
        writer.write(model_event(2) + model_event(3))
    assert times(path) == [1]
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_log_appears_only_when_closed(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    writer = LogWriter(path)
    writer.write(GOOD)
    assert not path.exists()
    writer.close()
    writer.close()
    writer.discard()
    assert path.exists()


def test_writer_takes_whole_messages_only(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "rlog")
    for data in (GOOD[:-8], GOOD + model_event(2), b"", bytes(16)):
        with pytest.raises(LogError, match="expected"):
            writer.write(data)
    writer.discard()
    with pytest.raises(LogError, match="closed"):
        writer.write(GOOD)
    with pytest.raises(LogError, match="expected to write beside it"):
        LogWriter(tmp_path / "no" / "rlog")
    assert list(tmp_path.iterdir()) == []


def test_missing_zstd_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "rlog.zst", [GOOD])
    monkeypatch.setitem(sys.modules, "backports", None)  # importing it fails
    uses: list[Callable[[Path], object]] = [times, LogWriter, GrowingLogWriter]
    for use in uses:
        with pytest.raises(LogError, match=r"modeld\[replay\]") as raised:
            use(tmp_path / "rlog.zst")
        assert raised.value.exit_code == 3
