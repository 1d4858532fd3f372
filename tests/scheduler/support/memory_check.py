"""Brute force on an artifact: run its launches on bytes that know who wrote them.

Every byte of the arena carries which value it holds. A launch that reads a buffer must find in all
of its bytes the value that was last written to that buffer; what it writes may share no byte with
what it reads, unless it is the same buffer, and none with another of its results. Nothing is asked
of the planner: no lifetime, no order, no notion of what may be done in place.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

_SIGNATURE = re.compile(r"\bvoid\s+(\w+)\s*\(([^)]*)\)")


def written_arguments(manifest: Mapping[str, Any]) -> list[list[bool]]:
    """Return for each launchable kernel which of its arguments it may write, from its C text."""
    texts = [dict(_SIGNATURE.findall(program["source"])) for program in manifest["programs"]]
    found = []
    for kernel in manifest["kernels"]:
        parameters = texts[kernel["program"]][kernel["name"]].split(",")
        written = [
            "__write_only" in p or ("__global" in p and not re.search(r"\bconst\b", p))
            for p in parameters
        ]
        assert len(written) == len(kernel["args"])
        assert any(written), f"{kernel['name']} writes nothing"
        found.append(written)
    return found


def memory_faults(manifest: Mapping[str, Any]) -> list[str]:
    """Return what goes wrong when the entries of an artifact run, one line each."""
    written = written_arguments(manifest)
    found = []
    for name, entry in manifest["entries"].items():
        memory = _Memory(manifest)
        for position, number in enumerate(entry["launches"]):
            args = manifest["kernels"][number]["args"]
            results = {a for a, w in zip(args, written[number], strict=True) if w}
            sources = {a for a, w in zip(args, written[number], strict=True) if not w}
            found += [f"{name}, launch {position}: {f}" for f in memory.launch(sources, results)]
    return found


class _Memory:
    """The arena, byte by byte: the number of the value each byte holds, 0 for garbage."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self.buffers = manifest["buffers"]
        self.bytes = np.zeros(manifest["arena_size"], np.int32)
        self.now: dict[int, int] = {}  # which value a buffer should hold
        self.count = 0

    def place(self, buffer: int) -> slice | None:
        entry = self.buffers[buffer]
        if entry["kind"] != "arena":
            return None
        return slice(entry["offset"], entry["offset"] + entry["size"])

    def launch(self, sources: set[int], results: set[int]) -> list[str]:
        """Read, then write; return what is wrong."""
        found = []
        for buffer in sorted(sources):
            place = self.place(buffer)
            if place is None:
                continue
            if buffer not in self.now:
                found.append(f"buffer {buffer} is read before anything is written to it")
            elif not (self.bytes[place] == self.now[buffer]).all():
                found.append(f"buffer {buffer} was overwritten before this read")
        for buffer in sorted(results):
            mine = self.place(buffer)
            if mine is None:
                continue
            if mine.stop > len(self.bytes):
                found.append(f"buffer {buffer} ends outside the arena")
            for other in sorted((sources | results) - {buffer}):
                place = self.place(other)
                if place is not None and place.start < mine.stop and mine.start < place.stop:
                    found.append(f"buffer {buffer} is written over {other}, which is in use")
        for buffer in sorted(results):
            mine = self.place(buffer)
            if mine is not None:
                self.count += 1
                self.now[buffer] = self.count
                self.bytes[mine] = self.count
        return found
