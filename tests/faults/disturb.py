"""Faults of a process and its neighbours that last for as long as a block, for tests and soak."""

import itertools
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from tests.faults.faulty_opencl import Mode
from tests.faults.world import World
from tests.support.waiting import until


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that compute and do nothing else."""
    code = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(code) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _limited(pid: int, which: int, limit: int) -> Iterator[None]:
    held = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (limit, held[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, which, held)


@contextmanager
def no_more_memory(world: World) -> Iterator[None]:
    """The address space of the daemon may not grow."""
    pid = world.service.pid
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[0])
    with _limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize()):
        yield


@contextmanager
def no_more_descriptors(world: World) -> Iterator[None]:
    """The daemon can open nothing; its reports have some descriptors for moments."""
    pid, found = world.service.pid, []
    for _ in range(5):
        used = {int(entry.name) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        found.append(next(number for number in itertools.count() if number not in used))
        time.sleep(0.02)
    with _limited(pid, resource.RLIMIT_NOFILE, min(found)):
        yield


@contextmanager
def stalled_subscriber(world: World) -> Iterator[None]:
    """Somebody connects and takes nothing; the queues are full long before the end."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 1)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"ipc://{world.directory}/bus/modelV2")
        yield


def slow_run(world: World, ms: int) -> bool:
    """Return in the middle of a run that takes so much longer; whether there was one within 5 s."""
    world.control.order(Mode.SLOW, 1, ms=ms)
    return until(lambda: world.control.happened > 0, 5.0, pause_s=0.001)
