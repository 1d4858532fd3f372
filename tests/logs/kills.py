"""Kills processes that write growing logs, and looks at what they lost.

A writer puts the time into each Event before it writes it, at a steady rate and with pauses, and
into a log of its own. It is killed with SIGKILL at a random time. What the log still holds must
reach up to one second before the kill; before that nothing may be missing.
"""

import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cereal.log_reader import LogTruncatedWarning, read_log
from cereal.log_writer import GrowingLogWriter
from cereal.schema import new_event

TOGETHER = 5
LONGEST_S = 3.0
LIMIT_NS = 1_000_000_000
# Between two Events; and where a pause begins, for how long nothing is written.
STEP_S = 0.002
PAUSE_EVERY = 400
PAUSE_S = 0.7


def write(path: Path) -> None:
    """Write events with their time and number until killed."""
    noise = np.random.default_rng(0).bytes(1500)
    with GrowingLogWriter(path) as writer:
        number = 0
        while True:
            event = new_event("modelV2", mono_time_ns=time.monotonic_ns())
            event.modelV2.frameId = number
            event.modelV2.rawPredictions = noise
            writer.write(bytes(event.to_bytes()))
            number += 1
            time.sleep(PAUSE_S if number % PAUSE_EVERY == 0 else STEP_S)


def run(count: int, seed: int, directory: Path) -> dict[str, Any]:
    """Kill `count` writers, a few at a time; return how many, and the longest loss in seconds."""
    rng = np.random.default_rng(seed)
    paths = [directory / f"{n}.{('rlog', 'rlog.zst')[n % TOGETHER % 2]}" for n in range(count)]
    losses_ns: list[int] = []
    events = 0
    for first in range(0, count, TOGETHER):
        batch = paths[first : first + TOGETHER]
        for path, killed_ns in zip(batch, _kill(batch, rng), strict=True):
            written, loss_ns = _check(path, killed_ns)
            events += written
            losses_ns.append(loss_ns)
    return {"kills": len(losses_ns), "events": events, "longest_loss_s": max(losses_ns) * 1e-9}


def _kill(paths: list[Path], rng: np.random.Generator) -> list[int]:
    """Start a writer for each path and kill each at a time of its own; return those times, ns."""
    command = [sys.executable, "-m", "tests.logs.kills"]
    processes = [subprocess.Popen([*command, str(path)]) for path in paths]
    killed_ns = [0] * len(paths)
    try:
        while not all(path.exists() and path.stat().st_size for path in paths):
            assert all(process.poll() is None for process in processes), "a writer ended by itself"
            time.sleep(0.01)
        delays_s = rng.uniform(0, LONGEST_S, len(paths))
        start = time.monotonic()
        for index in np.argsort(delays_s):
            time.sleep(max(0.0, start + delays_s[index] - time.monotonic()))
            processes[index].kill()
            killed_ns[index] = time.monotonic_ns()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return killed_ns


def _check(path: Path, killed_ns: int) -> tuple[int, int]:
    """Return how many events a killed writer's log holds and how long before the kill it ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LogTruncatedWarning)
        events = [(event.modelV2.frameId, event.logMonoTime) for event in read_log(path)]
    assert [number for number, _ in events] == list(range(len(events))), path
    loss_ns = killed_ns - events[-1][1]
    # Before a pause nothing was written: what it did not write it cannot have lost.
    if len(events) % PAUSE_EVERY == 0:
        loss_ns = max(0, loss_ns - int(PAUSE_S * 1e9))
    assert loss_ns <= LIMIT_NS, f"{path.name}: lost {loss_ns * 1e-9:.2f} s"
    return len(events), loss_ns


if __name__ == "__main__":
    write(Path(sys.argv[1]))
