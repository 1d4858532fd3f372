"""Both writers: what is on disk while they write, when they are interrupted, and where they may."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from cereal.clock import ManualClock
from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, MessageSplitter, read_log, read_log_bytes
from cereal.log_writer import FLUSH_INTERVAL_NS, GrowingLogWriter, LogSink, LogWriter
from cereal.schema import new_event
from tests.logs import kills
from tools.bench_log import typical_events

SECOND_NS = 1_000_000_000
NAMES = ["rlog", "rlog.zst"]
SINKS = [LogWriter, GrowingLogWriter]
KILLS = 4  # `python -m tests.logs kills --count 50` for more
TAIL_BYTES = 2 << 20


def event(number: int, size: int = 0) -> bytes:
    built = new_event("modelV2", mono_time_ns=number)
    built.modelV2.frameId = number
    built.modelV2.rawPredictions = os.urandom(size)
    return bytes(built.to_bytes())


def kept(path: Path) -> list[bytes]:
    """Return what a log that is not finished holds."""
    with pytest.warns(LogTruncatedWarning, match="breaks off inside"):
        return list(read_log_bytes(path))


def kept_quietly(path: Path) -> list[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogTruncatedWarning)
        return list(read_log_bytes(path))


# --- growing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_growing_log_comes_back_as_written(name: str, tmp_path: Path) -> None:
    events = [event(i, i * 100) for i in range(50)]
    with GrowingLogWriter(tmp_path / name) as writer:
        for data in events:
            writer.write(data)
    assert list(read_log_bytes(tmp_path / name)) == events
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_growing_log_is_there_from_the_start(tmp_path: Path) -> None:
    with GrowingLogWriter(tmp_path / "rlog.zst"):
        assert (tmp_path / "rlog.zst").exists()
        assert list(read_log_bytes(tmp_path / "rlog.zst")) == []


@pytest.mark.parametrize("name", NAMES)
def test_write_flushes_when_the_interval_has_passed(name: str, tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / name
    with GrowingLogWriter(path, clock=clock, has_timer=False) as writer:
        writer.write(event(0))
        clock.advance_ns(FLUSH_INTERVAL_NS - 1)
        writer.write(event(1))
        assert path.stat().st_size == 0
        clock.advance_ns(1)
        writer.write(event(2))
        size = path.stat().st_size
        assert size > 0
        # The interval begins again with the next event, not with the flush.
        clock.advance_ns(10 * SECOND_NS)
        writer.write(event(3))
        assert path.stat().st_size == size
        read = list(read_log_bytes(path)) if name == "rlog" else kept(path)
        assert read == [event(0), event(1), event(2)]


@pytest.mark.alone
def test_quiet_stream_is_flushed_too(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    with GrowingLogWriter(path, clock=ManualClock()) as writer:
        for number in range(2):
            writer.write(event(number))
            deadline = time.monotonic() + 30
            while len(kept(path) if path.stat().st_size else []) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_thread_ends_with_the_log(tmp_path: Path) -> None:
    def flushers() -> int:
        return sum(thread.name == "log-flush" for thread in threading.enumerate())

    before = flushers()
    writers = [GrowingLogWriter(tmp_path / f"{i}.zst") for i in range(5)]
    writers[0].write(event(0))
    assert flushers() == before + 5
    for writer in writers:
        writer.close()
        writer.close()
    assert flushers() == before


def test_flush_lets_everything_be_read(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    events = [event(i, 1000) for i in range(20)]
    with GrowingLogWriter(path, clock=ManualClock(), has_timer=False) as writer:
        for number, data in enumerate(events, 1):
            writer.write(data)
            writer.flush()
            assert kept(path) == events[:number]


def test_flushing_costs_little_of_the_size(tmp_path: Path) -> None:
    events = [data for data, _ in zip(typical_events(), range(4000), strict=False)]
    clock = ManualClock()
    with (
        LogWriter(tmp_path / "atomic.zst") as whole,
        GrowingLogWriter(tmp_path / "growing.zst", clock=clock, has_timer=False) as growing,
    ):
        for number, data in enumerate(events):
            clock.set_ns(number * SECOND_NS // 1200)  # the rate of a drive
            whole.write(data)
            growing.write(data)
    sizes = {path.stem: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["growing"] < 1.03 * sizes["atomic"]


def test_discarded_growing_log_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    writer = GrowingLogWriter(path, has_timer=False)
    writer.write(event(1))
    writer.discard()
    assert list(read_log_bytes(path)) == [event(1)]


def test_growing_log_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    for number in (1, 2):
        with GrowingLogWriter(path) as writer:
            writer.write(event(number))
    assert list(read_log_bytes(path)) == [event(2)]


def test_second_writer_of_a_growing_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rlog"
    with GrowingLogWriter(path, has_timer=False) as writer:
        writer.write(event(1))
        with pytest.raises(LogError, match="another process is writing"):
            GrowingLogWriter(path)
    assert list(read_log_bytes(path)) == [event(1)]


def test_bzip2_cannot_grow(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be flushed"):
        GrowingLogWriter(tmp_path / "rlog.bz2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
def test_killed_writers_lose_at_most_a_second(tmp_path: Path) -> None:
    found = kills.run(KILLS, 1, tmp_path)
    assert found["kills"] == KILLS
    assert found["events"] > 0


# --- cut at every byte --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flushed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[bytes], list[int]]:
    """A growing log of more than 2 MiB, its events, and its size after each flush."""
    path = tmp_path_factory.mktemp("growing") / "rlog.zst"
    events: list[bytes] = []
    sizes: list[int] = []
    counts: list[int] = []
    with GrowingLogWriter(path, clock=ManualClock(), has_timer=False) as writer:
        for number, data in enumerate(typical_events()):
            writer.write(data)
            events.append(data)
            if number % 601 == 600:
                writer.flush()
                sizes.append(path.stat().st_size)
                counts.append(len(events))
                if sizes[-1] > TAIL_BYTES * 5 // 4:
                    break
        # What is in the file by the kill of the process: the end of the stream is missing.
        content = path.read_bytes()
    return content, events, [*sizes, *counts]


def test_cut_at_every_byte_of_the_tail_keeps_what_was_flushed(
    flushed: tuple[bytes, list[bytes], list[int]],
) -> None:
    """Byte by byte through the decoder and the splitter that `read_log` uses."""
    content, events, marks = flushed
    sizes, counts = marks[: len(marks) // 2], marks[len(marks) // 2 :]
    decoder, splitter = zstd.ZstdDecompressor(), MessageSplitter()
    start = len(content) - TAIL_BYTES
    splitter.feed(decoder.decompress(content[:start]))
    wanted = dict(zip(sizes, counts, strict=True))
    flushed_count = max((c for s, c in wanted.items() if s <= start), default=0)
    assert splitter.count >= flushed_count
    feed = splitter.feed
    for cut in range(start, len(content)):
        piece = decoder.decompress(content[cut : cut + 1])
        if piece:
            found = splitter.count
            assert feed(piece) == events[found : splitter.count]
        flushed_count = wanted.get(cut + 1, flushed_count)
        if splitter.count < flushed_count:
            raise AssertionError(f"cut at {cut + 1}: {splitter.count} of {flushed_count} events")
    assert splitter.count == counts[-1]


@pytest.mark.parametrize("name", NAMES)
def test_cut_files_keep_what_was_flushed(
    name: str, flushed: tuple[bytes, list[bytes], list[int]], tmp_path: Path
) -> None:
    """The same through files, at some places: around flushes, and anywhere."""
    content, events, marks = flushed
    sizes, counts = marks[: len(marks) // 2], marks[len(marks) // 2 :]
    if name == "rlog":
        content = b"".join(events)
        sizes = [len(b"".join(events[:count])) for count in counts]
    path = tmp_path / name
    start = len(content) - TAIL_BYTES
    around = [size + shift for size in sizes[-4:] for shift in (-1, 0, 1)]
    for cut in [start, start + 1, start + TAIL_BYTES // 3, *around]:
        path.write_bytes(content[:cut])
        read = list(read_log_bytes(path)) if cut in sizes and name == "rlog" else kept_quietly(path)
        least = max(c for s, c in zip(sizes, counts, strict=True) if s <= cut)
        assert len(read) >= least
        assert read == events[: len(read)]


def test_warning_names_the_byte_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    with GrowingLogWriter(path, has_timer=False) as writer:
        writer.write(event(1))
        writer.flush()
        size = path.stat().st_size
        with pytest.warns(
            LogTruncatedWarning,
            match=rf"at byte {len(event(1))} of its content \(byte {size} of the file\)",
        ):
            list(read_log(path))


# --- both ---------------------------------------------------------------------------------------


def test_message_that_readers_would_refuse_is_not_written(tmp_path: Path) -> None:
    big = (0xFFFFFF << 32).to_bytes(8, "little")  # 16 Mi words
    for kind in SINKS:
        with pytest.raises(LogError, match="announced"), kind(tmp_path / "rlog") as writer:
            writer.write(big)


@pytest.mark.parametrize("name", NAMES)
def test_full_disk_keeps_what_was_flushed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    writer = GrowingLogWriter(path, has_timer=False)
    writer.write(event(1, 8000))
    writer.flush()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # What a full disk does, without one: writing beyond the limit fails.
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(LogError, match="free some disk space"):
            _fill(writer)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(LogError, match="closed"):
        writer.write(event(1))
    writer.close()
    writer.discard()
    read = [one.logMonoTime for one in _readers(path)]
    assert read == list(range(1, len(read) + 1))
    assert len(read) >= 1
    with GrowingLogWriter(path) as again:
        again.write(event(5))
    assert list(read_log_bytes(path)) == [event(5)]


def _fill(writer: LogSink) -> None:
    for number in range(2, 1000):
        writer.write(event(number, 8000))


def _readers(path: Path) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogTruncatedWarning)
        return list(read_log(path))


@pytest.mark.alone
def test_full_disk_met_by_the_thread_is_told_by_the_next_call(tmp_path: Path) -> None:
    writer = GrowingLogWriter(tmp_path / "rlog.zst", clock=ManualClock())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        writer.write(event(1, 8000))
        time.sleep(1.5)
        with pytest.raises(LogError, match="free some disk space"):
            writer.write(event(2))
        writer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("kind", SINKS)
def test_links_are_followed(kind: type[LogWriter], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real.zst")
    with kind(tmp_path / "link") as writer:
        writer.write(event(1))
    assert (tmp_path / "link").is_symlink()
    assert list(read_log_bytes(tmp_path / "real.zst")) == [event(1)]


@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("target", ["/dev/null", "/dev/stdout", ".", "loop"])
def test_what_is_no_file_is_refused(kind: type[LogWriter], target: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = tmp_path / target if target in (".", "loop") else Path(target)
    with pytest.raises(LogError, match="ordinary file"):
        kind(path)


@pytest.mark.parametrize("kind", SINKS)
def test_directory_that_cannot_be_written_is_named(kind: type[LogWriter], tmp_path: Path) -> None:
    with pytest.raises(LogError, match="check the directory"):
        kind(tmp_path / "no" / "rlog")


def test_both_are_sinks(tmp_path: Path) -> None:
    sinks: list[LogSink] = [LogWriter(tmp_path / "a"), GrowingLogWriter(tmp_path / "b")]
    for sink in sinks:
        with sink:
            sink.write(event(1))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# A process that was started in the background by a shell ignores SIGINT, and so do its children.
INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from cereal.log_writer import GrowingLogWriter, LogWriter
from tools.bench_log import typical_events
kind = {"growing": GrowingLogWriter, "atomic": LogWriter}[sys.argv[2]]
try:
    with kind(sys.argv[1]) as writer:
        events = typical_events()
        print("go", flush=True)
        while True:
            writer.write(next(events))
except KeyboardInterrupt:
    pass
"""


@pytest.mark.alone
@pytest.mark.parametrize("kind", ["growing", "atomic"])
def test_interrupted_writer_leaves_a_whole_log_or_nothing(kind: str, tmp_path: Path) -> None:
    for number in range(3):
        path = tmp_path / f"{number}.zst"
        command = [sys.executable, "-c", INTERRUPTED, str(path), kind]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(0.1 + 0.05 * number)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        assert errors == b""
        assert process.returncode == 0
        if kind == "growing":
            read = list(read_log_bytes(path))  # no warning: the stream is whole
            assert read
            expected = typical_events()
            assert all(one == next(expected) for one in read)
    assert kind == "growing" or list(tmp_path.iterdir()) == []
