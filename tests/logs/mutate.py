"""Damages logs at random and reads them: nothing but the documented errors may come of it."""

import bz2
import resource
import struct
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from backports import zstd

from cereal.errors import LogError, MessageError
from cereal.log_reader import LogTruncatedWarning, read_log, read_log_bytes
from cereal.log_writer import GrowingLogWriter
from cereal.schema import new_event, read_event
from tools.bench.log import typical_events
from tools.messages.message_values import message_to_plain

EVENTS = 60


def sources(directory: Path) -> dict[str, bytes]:
    """Return sound logs in every form: plain, compressed, flushed, in several streams."""
    events = _events()
    content = b"".join(events)
    half = len(b"".join(events[: EVENTS // 2]))
    growing = directory / "growing.zst"
    with GrowingLogWriter(growing, has_timer=False) as writer:
        for data in events:
            writer.write(data)
            writer.flush()
    return {
        "plain": content,
        "zstd": zstd.compress(content, 3),
        "zstd flushed": growing.read_bytes(),
        "zstd streams": zstd.compress(content[:half], 3) + zstd.compress(content[half:], 19),
        "bz2": bz2.compress(content),
        "bz2 streams": bz2.compress(content[:half]) + bz2.compress(content[half:]),
    }


def _events() -> list[bytes]:
    """Return events of many kinds, among them lists of structures, texts and several segments."""
    events = [data for data, _ in zip(typical_events(), range(EVENTS - 3), strict=False)]
    text = new_event("logMessage", mono_time_ns=1)
    text.logMessage = "a line of the log"
    states = new_event("pandaStates", mono_time_ns=2, size=3)
    for state in states.pandaStates:
        state.init("faults", 2)
        state.init("canState0").canSpeed = 500
    process = new_event("procLog", mono_time_ns=3)
    for entry in process.procLog.init("procs", 5):
        entry.name = "modeld"
        entry.cmdline = ["modeld", "run"]
    return [*events, *(bytes(one.to_bytes()) for one in (text, states, process))]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Return `data` with one to five damages."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 6))):
        if not changed:
            break
        at = int(rng.integers(len(changed)))
        length = int(rng.integers(1, max(2, len(changed) // 4)))
        other = int(rng.integers(len(changed)))
        kind = int(rng.integers(7))
        if kind == 0:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del changed[at:]
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[other : other + length]
        elif kind == 4:
            changed[at : at + length] = changed[other : other + length]
        elif kind == 5:
            changed[at : at + length] = rng.bytes(length)
        else:
            # What hurts most: numbers at the edges, where sizes and pointers stand.
            word = int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 1 << 20, 0x1FFFFFFF]))
            place = at & ~3
            changed[place : place + 4] = struct.pack("<I", word)
    return bytes(changed)


def read_all(path: Path, seen: Counter[str]) -> None:
    """Read a log in both ways and every field of it; count what came of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for way in (_walk_readers, _walk_bytes):
            try:
                way(path, seen)
            except LogError:
                seen["refused"] += 1
    for warning in caught:
        if warning.category is not LogTruncatedWarning:
            raise AssertionError(f"unexpected warning: {warning.message}")
    seen["warned"] += len(caught)


def _walk_readers(path: Path, seen: Counter[str]) -> None:
    for event in read_log(path):
        seen["events"] += 1
        try:
            message_to_plain(event)
        except MessageError:
            seen["damaged events"] += 1


def _walk_bytes(path: Path, seen: Counter[str]) -> None:
    for data in read_log_bytes(path):
        try:
            message_to_plain(read_event(data))
        except MessageError:
            seen["damaged bytes"] += 1


def run(count: int, seed: int, directory: Path) -> dict[str, Any]:
    """Read `count` damaged logs.

    Returns:
        Counts of what came of it, and by how much memory grew, MiB.
    """
    logs = list(sources(directory).values())
    path = directory / "damaged"
    seen: Counter[str] = Counter()
    for data in logs:
        path.write_bytes(data)
        read_all(path, seen)
    if seen["events"] != len(logs) * EVENTS or seen["refused"] + seen["warned"]:
        raise AssertionError(f"the sound logs were not read: {dict(seen)}")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(seed, seed + count):
        rng = np.random.default_rng(number)
        path.write_bytes(mutate(logs[number % len(logs)], rng))
        try:
            read_all(path, seen)
        except Exception as error:
            error.add_note(f"mutation {number}")
            raise
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    return {"mutations": count, "grown_mib": grown_kib / 1024, **seen}
