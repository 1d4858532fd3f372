"""Both writers: what is on disk while they write, when they are interrupted, and where they may."""

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from backports import zstd

from cereal.clock import ManualClock
from cereal.errors import LogError
from cereal.log_reader import LogTruncatedWarning, MessageSplitter, read_log, read_log_bytes
from cereal.log_writer import FLUSH_INTERVAL_NS, GrowingLogWriter, LogSink, LogWriter
from cereal.schema import read_event
from tests.cereal.shared import largest_file, model_event, open_below, write_log
from tests.logs import kills
from tools.bench.log import typical_events

SECOND_NS = 1_000_000_000
SOON_NS = 20_000_000
NAMES = pytest.mark.parametrize("name", ["rlog", "rlog.zst"])
SINKS = pytest.mark.parametrize("kind", [LogWriter, GrowingLogWriter])
KILLS = 4  # `python -m tests.logs kills --count 50` for more


def untimed(path: Path) -> GrowingLogWriter:
    return GrowingLogWriter(path, clock=ManualClock(), has_timer=False)


def kept(path: Path) -> list[bytes]:
    """Return what a log that is not finished holds."""
    with pytest.warns(LogTruncatedWarning, match="breaks off inside"):
        return list(read_log_bytes(path))


def kept_quietly(path: Path) -> list[bytes]:
    return list(read_log_bytes(path, lambda _: None))


@NAMES
def test_growing_log_comes_back_as_written(name: str, tmp_path: Path) -> None:
    events = [model_event(i, noise=i * 100) for i in range(50)]
    with GrowingLogWriter(tmp_path / name) as writer:
        assert (tmp_path / name).exists()
        assert list(read_log_bytes(tmp_path / name)) == []
        for data in events:
            writer.write(data)
    assert list(read_log_bytes(tmp_path / name)) == events
    assert [path.name for path in tmp_path.iterdir()] == [name]


@NAMES
def test_write_flushes_when_the_interval_has_passed(name: str, tmp_path: Path) -> None:
    assert FLUSH_INTERVAL_NS == SECOND_NS // 2
    clock = ManualClock()
    path = tmp_path / name
    events = [model_event(number) for number in range(4)]
    with GrowingLogWriter(path, clock=clock, has_timer=False) as writer:
        writer.write(events[0])
        clock.advance_ns(FLUSH_INTERVAL_NS - 1)
        writer.write(events[1])
        assert path.stat().st_size == 0
        clock.advance_ns(1)
        writer.write(events[2])
        size = path.stat().st_size
        assert size > 0
        # The interval begins again with the next event, not with the flush.
        clock.advance_ns(10 * SECOND_NS)
        writer.write(events[3])
        assert path.stat().st_size == size
        read = list(read_log_bytes(path)) if name == "rlog" else kept(path)
        assert read == events[:3]


def test_quiet_stream_is_flushed_too(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    with GrowingLogWriter(path, clock=ManualClock(), flush_interval_ns=SOON_NS) as writer:
        for number in range(2):
            writer.write(model_event(number))
            deadline = time.monotonic() + 30
            while len(kept(path) if path.stat().st_size else []) <= number:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_thread_ends_with_the_log(tmp_path: Path) -> None:
    def flushers() -> int:
        return sum(thread.name == "log-flush" for thread in threading.enumerate())

    before = flushers()
    writers = [GrowingLogWriter(tmp_path / f"{i}.zst") for i in range(5)]
    writers[0].write(model_event(0))
    assert flushers() == before + 5
    for writer in writers:
        writer.close()
        writer.close()
    assert flushers() == before


def test_flushing_costs_little_of_the_size(tmp_path: Path) -> None:
    events = [data for data, _ in zip(typical_events(), range(2000), strict=False)]
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


def test_growing_log_keeps_what_it_has_and_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    writer = untimed(path)
    writer.write(model_event(1))
    writer.discard()
    assert list(read_log_bytes(path)) == [model_event(1)]
    with untimed(path) as writer:
        writer.write(model_event(2))
        with pytest.raises(LogError, match="another process is writing"):
            GrowingLogWriter(path)
        assert open_below(tmp_path) == [str(path)]
    assert list(read_log_bytes(path)) == [model_event(2)]
    write_log(path, [model_event(3)])
    assert open_below(tmp_path) == []


@SINKS
@pytest.mark.parametrize("count", [0, 1, 300])
def test_frame_says_how_long_its_content_is(
    kind: type[LogWriter | GrowingLogWriter], count: int, tmp_path: Path
) -> None:
    """Some readers decompress in one call, and allocate what the header says."""
    path = tmp_path / "rlog.zst"
    events = [model_event(i, noise=3000) for i in range(count)]
    with kind(path) as writer:
        for data in events:
            writer.write(data)
        if isinstance(writer, GrowingLogWriter):
            # Until the end there is no size, and the number of a dictionary, 0, means none.
            writer.flush()
            growing = path.read_bytes()
            if count:
                assert zstd.get_frame_info(growing).decompressed_size is None
                assert zstd.ZstdDecompressor().decompress(growing) == b"".join(events)
    content = path.read_bytes()
    size = sum(map(len, events))
    assert zstd.get_frame_info(content).decompressed_size == size
    # By hand: the descriptor's highest bits say 4 bytes, which follow it and the window.
    assert (content[4] >> 6, int.from_bytes(content[6:10], "little")) == (2, size)
    assert zstd.decompress(content) == b"".join(events)


def test_size_is_left_out_where_an_interrupt_may_have_lost_count(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    with untimed(path) as writer:
        writer.write(model_event(1))
        assert writer._frame is not None
        with pytest.raises(TypeError):
            writer._frame.write(1)  # type: ignore[arg-type] # ended where it may be interrupted
        writer.write(model_event(2))
    assert zstd.get_frame_info(path.read_bytes()).decompressed_size is None
    assert list(read_log_bytes(path)) == [model_event(1), model_event(2)]


def test_bzip2_cannot_grow(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be flushed"):
        GrowingLogWriter(tmp_path / "rlog.bz2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.alone
@pytest.mark.slow
def test_killed_writers_lose_at_most_a_second(tmp_path: Path) -> None:
    found = kills.run(KILLS, 1, tmp_path)
    assert found["kills"] == KILLS
    assert found["events"] > 0


class Flushed(NamedTuple):
    """A growing log as a kill leaves it: without the end of its stream."""

    tail: int  # bytes at its end that are cut, one by one
    content: bytes
    events: list[bytes]
    counts: dict[int, int]  # size after each flush -> events until then


@pytest.fixture(scope="module", params=[160 << 10, pytest.param(2 << 20, marks=pytest.mark.slow)])
def flushed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Flushed:
    path = tmp_path_factory.mktemp("growing") / "rlog.zst"
    tail: int = request.param
    events: list[bytes] = []
    counts: dict[int, int] = {}
    with untimed(path) as writer:
        for data in typical_events():
            writer.write(data)
            events.append(data)
            if len(events) % 601 == 0:
                writer.flush()
                counts[path.stat().st_size] = len(events)
                if path.stat().st_size > tail * 5 // 4:
                    break
        content = path.read_bytes()
    return Flushed(tail, content, events, counts)


def test_cut_at_every_byte_of_the_tail_keeps_what_was_flushed(flushed: Flushed) -> None:
    """Byte by byte through the decoder and the splitter that `read_log` uses."""
    content, events, counts = flushed.content, flushed.events, flushed.counts
    decoder, splitter = zstd.ZstdDecompressor(), MessageSplitter()
    start = len(content) - flushed.tail
    splitter.feed(decoder.decompress(content[:start]))
    least = max((c for s, c in counts.items() if s <= start), default=0)
    assert splitter.count >= least
    for cut in range(start, len(content)):
        piece = decoder.decompress(content[cut : cut + 1])
        if piece:
            found = splitter.count
            assert splitter.feed(piece) == events[found : splitter.count]
        least = counts.get(cut + 1, least)
        if splitter.count < least:
            raise AssertionError(f"cut at {cut + 1}: {splitter.count} of {least} events")
    assert splitter.count == len(events)


def test_cut_files_keep_what_was_flushed(flushed: Flushed, tmp_path: Path) -> None:
    """The same through files, at some places: around flushes, and anywhere."""
    content, events, counts = flushed.content, flushed.events, flushed.counts
    path = tmp_path / "rlog.zst"
    start = len(content) - flushed.tail
    around = [size + shift for size in list(counts)[-4:] for shift in (-1, 0, 1)]
    for cut in [start, start + 1, start + flushed.tail // 3, *around]:
        path.write_bytes(content[:cut])
        read = kept_quietly(path)
        assert len(read) >= max((c for s, c in counts.items() if s <= cut), default=0)
        assert read == events[: len(read)]


def test_warning_names_the_byte_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    with untimed(path) as writer:
        writer.write(model_event(1))
        writer.flush()
        where = f"byte {len(model_event(1))} of its content \\(byte {path.stat().st_size} of the"
        with pytest.warns(LogTruncatedWarning, match=where):
            list(read_log(path))


@SINKS
def test_message_no_reader_takes_is_not_written(kind: type[LogWriter], tmp_path: Path) -> None:
    big = (0xFFFFFF << 32).to_bytes(8, "little")  # 16 Mi words
    with pytest.raises(LogError, match="announced"), kind(tmp_path / "rlog") as writer:
        writer.write(big)


def fill(writer: LogSink) -> None:
    for number in range(2, 1000):
        writer.write(model_event(number, noise=8000))


@NAMES
def test_full_disk_keeps_what_was_flushed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    writer = untimed(path)
    writer.write(model_event(1, noise=8000))
    writer.flush()
    with largest_file(20_000), pytest.raises(LogError, match="free some disk space"):
        fill(writer)
    with pytest.raises(LogError, match="closed"):
        writer.write(model_event(1))
    writer.close()
    writer.discard()
    read = [read_event(data).logMonoTime for data in kept_quietly(path)]
    assert len(read) >= 1
    assert read == list(range(1, len(read) + 1))
    with GrowingLogWriter(path) as again:
        again.write(model_event(5))
    assert list(read_log_bytes(path)) == [model_event(5)]


def test_full_disk_met_by_the_thread_is_told_by_the_next_call(tmp_path: Path) -> None:
    path = tmp_path / "rlog.zst"
    writer = GrowingLogWriter(path, clock=ManualClock(), flush_interval_ns=SOON_NS)
    with largest_file(100):
        writer.write(model_event(1, noise=8000))
        writer._timer.join(30)  # it ends where the log has failed
        with pytest.raises(LogError, match="free some disk space"):
            writer.write(model_event(2))
        writer.close()


@SINKS
def test_links_are_followed(kind: type[LogWriter], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real.zst")
    with kind(tmp_path / "link") as writer:
        writer.write(model_event(1))
    assert (tmp_path / "link").is_symlink()
    # Not compressed, as the name that was given says; both write the same bytes.
    assert (tmp_path / "real.zst").read_bytes() == model_event(1)


@SINKS
@pytest.mark.parametrize(
    ("target", "message"),
    [
        *((name, "ordinary file") for name in ("/dev/null", "/dev/stdout", ".", "loop")),
        ("no/rlog", "check the directory"),
    ],
)
def test_no_file(kind: type[LogWriter], target: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(LogError, match=message):
        kind(tmp_path / target)


# A process that was started in the background by a shell ignores SIGINT, and so do its children.
INTERRUPTED = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from cereal.log_writer import GrowingLogWriter, LogWriter
from tools.bench.log import typical_events
kind = {"growing": GrowingLogWriter, "atomic": LogWriter}[sys.argv[2]]
try:
    with kind(sys.argv[1]) as writer:
        events = typical_events()
        writer.write(next(events))
        print("go", flush=True)
        while True:
            writer.write(next(events))
except KeyboardInterrupt:
    pass
"""
LATER = [pytest.param(delay_s, marks=pytest.mark.slow) for delay_s in (0.15, 0.2)]


@pytest.mark.parametrize("delay_s", [0.1, *LATER])
@pytest.mark.parametrize("kind", ["growing", pytest.param("atomic", marks=pytest.mark.slow)])
def test_interrupted_writer_leaves_all_or_nothing(
    kind: str, delay_s: float, tmp_path: Path
) -> None:
    path = tmp_path / "log.zst"
    command = [sys.executable, "-c", INTERRUPTED, str(path), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, b"")
    if kind == "growing":
        read = list(read_log_bytes(path))  # no warning: the stream is whole
        assert read
        expected = typical_events()
        assert all(one == next(expected) for one in read)
    else:
        assert list(tmp_path.iterdir()) == []
