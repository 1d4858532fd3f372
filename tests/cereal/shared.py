"""What several tests of cereal need: rings in a directory, events of logs, a disk that is full."""

import contextlib
import gc
import os
import resource
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cereal.frames import FrameFormat, FrameRingReader, FrameRingWriter
from cereal.log_writer import LogWriter
from cereal.schema import SCHEMA_PATH, new_event
from cereal.services import PORT_SPAN, SERVICES
from cereal.stacks import DEFAULT_STACK, STACKS, Stack

SMALL = FrameFormat(width=16, height=8, stride=16, uv_offset=128, size=192)
MS = 1_000_000


def ring_writer(place: Path, slots: int = 4, form: FrameFormat = SMALL) -> FrameRingWriter:
    return FrameRingWriter("cam", "road", form, slots, directory=place)


def ring_reader(place: Path, *, conflate: bool = True, name: str = "cam") -> FrameRingReader:
    return FrameRingReader(name, "road", conflate=conflate, directory=place)


def publish(writer: FrameRingWriter, *frame_ids: int) -> None:
    """Publish frames whose bytes and times follow from their ids."""
    for frame_id in frame_ids:
        writer.next_buffer()[:] = frame_id % 251
        writer.publish(frame_id, frame_id * 50 * MS, frame_id * 50 * MS + 10)


def model_event(number: int, *, words: int = 0, noise: int = 0) -> bytes:
    """Return a modelV2 with so many numbers, and so many bytes that do not compress."""
    built = new_event("modelV2", mono_time_ns=number)
    built.modelV2.frameId = number
    built.modelV2.position.x = [float(number)] * words
    built.modelV2.rawPredictions = os.urandom(noise)
    return bytes(built.to_bytes())


def write_log(path: Path, events: Iterable[bytes]) -> Path:
    with LogWriter(path) as writer:
        for data in events:
            writer.write(data)
    return path


def open_below(place: Path) -> list[str]:
    """Return the files below a directory that this process has open."""
    gc.collect()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in map(os.path.realpath, links) if name.startswith(str(place))]


@contextlib.contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Do what a full disk does, without one: writing beyond the limit fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def free_address(*services: str, stack: Stack = DEFAULT_STACK) -> str:
    """Return an address on loopback where the ports of services are free.

    None of them is one that a stack publishes on: another may run beside the tests.
    """
    taken = {one.port(name) for one in STACKS.values() for name in SERVICES}
    while True:
        # Not the generator that begins alike in each worker.
        moved = 1 + secrets.randbelow(PORT_SPAN - 1)
        ports = {stack.port(name, moved=moved) for name in services}
        with contextlib.suppress(OSError), contextlib.ExitStack() as probes:
            for port in ports - taken:
                probes.enter_context(socket.socket()).bind(("", port))
            if not ports & taken:
                return f"tcp://127.0.0.1:+{moved}"


@contextlib.contextmanager
def own_rings(stack: Stack = DEFAULT_STACK) -> Iterator[str]:
    """Give a prefix of rings that nobody else has, and remove what was made of it."""
    prefix = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    directory = stack.queue_path("carState", prefix).parent
    directory.mkdir()
    try:
        yield prefix
    finally:
        shutil.rmtree(directory, ignore_errors=True)  # a test may have removed it


def heard_by(script: str, argument: str, send: Callable[[], object], cwd: Path) -> str:
    """Return what a program without any module of ours prints while `send` is called.

    It is given the path of the schema and `argument`, and ends by itself.
    """
    with subprocess.Popen(
        [sys.executable, "-I", "-c", script, str(SCHEMA_PATH), argument],
        cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 60
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.kill()
            send()
            time.sleep(0.02)
        out, err = process.communicate()
    assert process.returncode == 0, err
    return out
