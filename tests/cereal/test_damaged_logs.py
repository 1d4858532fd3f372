"""Logs with damage, planted and random; `make test-logs` reads ten thousand of the latter."""

import bz2
import os
import re
import warnings
from pathlib import Path

import pytest

from cereal.clock import ManualClock
from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import GrowingLogWriter
from cereal.schema import new_event
from tests.logs import mutate

MUTATIONS = 250


def event(number: int, size: int = 0) -> bytes:
    built = new_event("modelV2", mono_time_ns=number)
    built.modelV2.rawPredictions = os.urandom(size)
    return bytes(built.to_bytes())


def test_damaged_logs_give_only_documented_errors_in_bounded_memory(tmp_path: Path) -> None:
    found = mutate.run(MUTATIONS, 0, tmp_path)
    # Each of these can happen and does: the test would be empty without.
    assert min(found[key] for key in ("events", "warned", "refused", "damaged events")) > 0
    assert found["grown_mib"] < 256


@pytest.mark.parametrize("damaged", [0, 1, 10, 29])
def test_damaged_block_keeps_the_blocks_before_it(damaged: int, tmp_path: Path) -> None:
    """All blocks are taken by one call of the decoder, and what such a call gives is lost."""
    path = tmp_path / "rlog.zst"
    events = [event(i, 1000) for i in range(30)]
    starts = []
    with GrowingLogWriter(path, clock=ManualClock(), has_timer=False) as writer:
        for data in events:
            starts.append(path.stat().st_size)
            writer.write(data)
            writer.flush()
    content = bytearray(path.read_bytes())
    content[starts[damaged] + (6 if damaged == 0 else 0)] = 0xFF  # a kind of block that is none
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
    events = [event(i, 10_000) for i in range(60)]
    content = bytearray(bz2.compress(b"".join(events), 1))
    # Random bytes do not shrink and level 1 makes blocks of 100 kB: this is in the fourth.
    content[350_000:350_100] = bytes(100)
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogTruncatedWarning)
        read = list(read_log_bytes(path))
    assert read[:28] == events[:28]


def test_damaged_root_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    bad = bytearray(event(2))
    bad[8:16] = b"\xff" * 8  # the root pointer
    path.write_bytes(event(1) + bytes(bad) + event(3))
    with pytest.warns(LogTruncatedWarning, match=rf"left out 1 events .* byte {len(event(1))} of"):
        assert [one.logMonoTime for one in read_log(path)] == [1, 3]


def test_absurd_size_is_damage_and_needs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    path.write_bytes(event(1) + (1 << 60).to_bytes(8, "little") + bytes(64))
    size = len(event(1))
    named = rf"is damaged at byte {size} of its content \(byte {size} of the file\)"
    with pytest.warns(LogTruncatedWarning, match=named):
        assert list(read_log_bytes(path)) == [event(1)]
