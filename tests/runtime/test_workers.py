"""Worker threads of a CPU driver: pinned when it is calm, released when a CPU is taken."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from runtime.opencl.workers import (
    Candidates,
    Governor,
    Workers,
    call_tracking_threads,
    divide_cpus,
    workers_of,
)
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.support.built import built
from tools.cli import main

MS = 1_000_000
CALM = (0, 25 * MS)
CONTENDED = (8 * MS, 25 * MS)

# Runs a model until its workers are pinned, then next to a process on each CPU until they are not
# any more; prints the CPUs of each worker before, between and after.
PROGRAM = """
import json, os, subprocess, sys
import numpy as np
from runtime import load_program
from runtime.opencl.workers import call_tracking_threads
from runtime.opencl.device import choose_device
MOST = 2000
device, started = call_tracking_threads(lambda: choose_device("cpu"))
with load_program(sys.argv[1], device) as program:
    workers = program.workers
    threads = started if workers is None else workers.threads  # other drivers may have threads, too
    def cpus():
        return [sorted(os.sched_getaffinity(thread)) for thread in threads]
    home = sorted(os.sched_getaffinity(0))
    found = {"threads": len(threads), "units": device.info.compute_units, "home": home}
    inputs = {s.name: np.ones(s.shape, s.dtype) for s in program.inputs}
    def run_until(pinned):
        runs = 0
        while workers is not None and workers.pinned != pinned and runs < MOST:
            program.run(inputs)
            runs += 1
        return runs
    found["runs_until_pinned"] = run_until(True)
    found["pinned"] = cpus()
    spin = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin, str(cpu)]) for cpu in home]
    try:
        found["runs_busy"] = run_until(False)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    found["after"] = cpus()
    if workers is not None:
        policy = lambda: {os.sched_getscheduler(t) & ~os.SCHED_RESET_ON_FORK for t in threads}
        try:
            workers.run_first(10)
            found["first"] = list(policy())
            workers.run_first(0)
            found["then"] = list(policy())
        except PermissionError:
            found["first"] = found["then"] = None
print(json.dumps(found))
"""


def judge(governor: Governor, *runs: tuple[int, int]) -> list[bool]:
    return [governor.judge(*run) for run in runs]


def pinned_governor() -> Governor:
    governor = Governor()
    assert judge(governor, *[CALM] * 6) == [False, False, False, True, True, True]
    return governor


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        # Two contended runs end it and one does not; each calm one takes back half of one.
        ([CONTENDED, CALM, CALM, CONTENDED, CONTENDED], [True, True, True, True, False]),
        ([CONTENDED, CALM, CONTENDED, CONTENDED], [True, True, True, False]),
        # A wait counts by its part of the run.
        ([(2 * MS, 6 * MS)] * 2, [True, False]),
        ([(2 * MS, 25 * MS)] * 2, [True, True]),
        ([(15 * MS, 100 * MS)] * 2, [True, True]),
        ([(15 * MS + 1, 100 * MS)] * 2, [True, False]),
    ],
)
def test_contended_runs_end_pinning(runs: list[tuple[int, int]], expected: list[bool]) -> None:
    assert judge(pinned_governor(), *runs) == expected


def test_workers_that_never_rest_are_pinned_less_and_less_often() -> None:
    """What two workers on one CPU look like is what a taken CPU looks like: only a trial tells."""
    found = judge(Governor(), *[CONTENDED] * 4000)
    trials = [n for n in range(1, 4000) if found[n] and not found[n - 1]]
    gaps = [b - a for a, b in itertools.pairwise(trials)]
    assert trials[0] == 19  # the twentieth run
    # Two pinned runs, then twice as long as before.
    assert gaps == [42, 82, 162, 322, *[642] * (len(gaps) - 4)]
    assert len(gaps) > 6


def test_calm_after_a_load_pins_at_once_and_forgets_the_load() -> None:
    governor = Governor()
    judge(governor, *[CONTENDED] * 200)
    assert governor.judge(*CALM) is False
    assert judge(governor, *[CALM] * 3) == [False, False, True]
    judge(governor, *[CALM] * 700)
    assert judge(governor, *[CONTENDED] * 2) == [True, False]
    assert judge(governor, *[CONTENDED] * 42).count(True) == 2  # tried again after 40 runs, as new


def test_cpus_are_dealt_in_turn_and_all_of_them() -> None:
    assert divide_cpus(frozenset({0, 1}), 2) == [{0}, {1}]
    assert divide_cpus(frozenset({1, 3, 4, 5, 9}), 2) == [{1, 4, 9}, {3, 5}]


@contextlib.contextmanager
def threads_of(work: Callable[[int], object], count: int) -> Iterator[list[threading.Thread]]:
    """Start threads that are given their number."""
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join()


def numbers(threads: list[threading.Thread]) -> tuple[int, ...]:
    return tuple(thread.native_id or 0 for thread in threads)


def test_threads_that_a_call_starts_are_found() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    result, threads = call_tracking_threads(thread.start)
    done.set()
    thread.join()
    assert result is None
    assert threads == (thread.native_id,)


def test_what_is_no_worker_is_left_alone() -> None:
    me = threading.get_native_id()
    home = os.sched_getaffinity(me)
    assert workers_of((me,), 2) is None  # not as many threads as compute units
    assert workers_of((me,), 1) is None  # one worker cannot meet another
    assert workers_of((), 0) is None
    assert workers_of((me, 2**22 + 1), 2) is None  # a thread that has ended
    assert workers_of((me,) * (len(home) + 1), len(home) + 1) is None  # fewer CPUs than workers
    assert os.sched_getaffinity(me) == home


def test_workers_are_the_candidates_that_have_run() -> None:
    turns = [threading.Event() for _ in range(4)]
    done = threading.Event()
    ran = threading.Semaphore(0)

    def work(number: int) -> None:
        turns[number].wait()
        ran.release()
        done.wait()

    with threads_of(work, 4) as threads:
        wait_until_asleep(threads)
        candidates = Candidates(numbers(threads), compute_units=2)
        assert candidates.workers() is None  # nobody has run
        for turn in turns[1:3]:
            turn.set()
            ran.acquire()
        workers = candidates.workers()
        for event in (*turns, done):
            event.set()
    if len(os.sched_getaffinity(0)) >= 2:
        assert workers is not None
        assert workers.threads == numbers(threads[1:3])
        assert candidates.workers() is workers


def wait_until_asleep(threads: list[threading.Thread]) -> None:
    for thread in threads:
        state = Path(f"/proc/self/task/{thread.native_id}/stat")
        while state.read_text("ascii").rsplit(")", 1)[1].split()[0] != "S":
            time.sleep(0.001)


def test_short_runs_are_judged_together_and_ended_workers_do_not_end_a_run() -> None:
    done = threading.Event()
    with threads_of(lambda _: done.wait(), 2) as threads:
        wait_until_asleep(threads)
        workers = Workers(numbers(threads), frozenset(os.sched_getaffinity(0)))
        stats = (Path(f"/proc/self/task/{n}/schedstat") for n in numbers(threads))
        assert workers._waited_ns == [int(one.read_text("ascii").split()[1]) for one in stats]
        for _ in range(8):  # two are as much as the least that is judged, and four calm ones do
            assert not workers.pinned
            workers.ran(MS // 2)
        assert workers.pinned
        done.set()
    for _ in range(10):
        workers.ran(25 * MS)
    assert workers.pinned  # nobody waits: placing them fails without a word


def products(to: Path) -> None:
    """A product of matrices that takes long enough to be judged alone."""
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    text = "(float[512,512] x) => (float[512,512] y) { h = MatMul(x, w) y = MatMul(h, w) }"
    onnx.save(parsed(text, w=weight), to / "products.onnx")
    command = ["compile", "--plain", str(to / "products.onnx"), "-o", str(to / "products.pkl")]
    assert main(command) == 0


def placed(cpus: set[int]) -> dict[str, Any]:
    """Run PROGRAM in a process of its own, on these CPUs."""
    artifact = built("products", products) / "products.pkl"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(artifact)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.opencl
@pytest.mark.slow
def test_workers_part_when_it_is_calm_and_give_way_to_a_load() -> None:
    home = os.sched_getaffinity(0)
    found = placed(home)
    if found["threads"] != found["units"] or not 2 <= found["units"] <= len(home):
        pytest.skip("the device has no worker for each of several CPUs")
    assert found["home"] == sorted(home)
    assert found["runs_until_pinned"] < 200
    pinned = [set(cpus) for cpus in found["pinned"]]
    assert set.union(*pinned) == home
    assert sum(len(cpus) for cpus in pinned) == len(home)  # no CPU twice
    assert found["runs_busy"] < 2000
    assert found["after"] == [found["home"]] * found["units"]
    assert found["first"] in (None, [os.SCHED_FIFO])
    assert found["then"] in (None, [os.SCHED_OTHER])


@pytest.mark.opencl
@pytest.mark.slow
def test_on_one_cpu_nothing_is_placed() -> None:
    cpu = min(os.sched_getaffinity(0))
    found = placed({cpu})
    assert found["pinned"] == found["after"] == [[cpu]] * found["threads"]
    assert found["runs_until_pinned"] == 0
