"""What is asked of the system takes effect, or says why not: real calls, in processes of their own.

Each case runs in a child, because most settings cannot be taken back.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modeld.service.realtime import Effect, awake, cpus_of, newest
from runtime import choose_device

# Applies each of several settings as the daemon does, in a process forked for it; says what came
# of them and what the system knows.
CHILD = """
import gc, json, os, sys, threading
from modeld.service.config import RealtimeConfig
from modeld.service.realtime import apply_to_loop, apply_to_process

def apply(settings):
    effects, found = list(apply_to_process(settings)), {}
    def loop():
        effects.extend(apply_to_loop(settings))
        found["cpus"] = sorted(os.sched_getaffinity(0))
        found["policy"] = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        found["priority"] = os.sched_getparam(0).sched_priority
        child = threading.Thread(target=lambda: found.update(child=os.sched_getscheduler(0)))
        child.start(); child.join()
    thread = threading.Thread(target=loop)
    thread.start(); thread.join()
    found["main_cpus"] = sorted(os.sched_getaffinity(0))
    found["main_policy"] = os.sched_getscheduler(0)
    found["collects"] = gc.isenabled()
    found["frozen"] = gc.get_freeze_count()
    status = open("/proc/self/status").read()
    found["locked_kib"] = int(status.split("VmLck:")[1].split()[0])
    found["effects"] = {e.name: [e.effective, str(e)] for e in effects}
    print(json.dumps(found), flush=True)

for settings in json.loads(sys.argv[1]):
    if os.fork() == 0:
        apply(RealtimeConfig(**settings))
        os._exit(0)
    os.wait()
"""
Found = dict[str, Any]
# Of root only; a test that runs as another user is one without permissions already.
IS_ROOT = os.geteuid() == 0
OTHER_USER = ("setpriv", "--reuid=65534", "--clear-groups") if IS_ROOT else ()
NO_RIGHTS = ("--inh-caps=-all", "--bounding-set=-all") if IS_ROOT else ()
RIGHTS = ("--inh-caps=+sys_nice,+ipc_lock", "--ambient-caps=+sys_nice,+ipc_lock") if IS_ROOT else ()
CPUS = sorted(os.sched_getaffinity(0))
# Each of them once, in one process that forks.
CASES: dict[str, Found] = {
    "nothing": {"freeze_gc": False},
    "freeze": {"freeze_gc": True},
    "cpus": {"cpus": str(CPUS[-1])},
    "no cpu": {"cpus": "0,4000"},
    "priority": {"priority": 40},
    "memory": {"lock_memory": True},
}


def applied(*settings: Found, before: tuple[str, ...] = ()) -> list[Found]:
    done = subprocess.run(
        [*before, sys.executable, "-c", CHILD, json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def found() -> dict[str, Found]:
    return dict(zip(CASES, applied(*CASES.values()), strict=True))


def may(*, capability: int) -> bool:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    return bool(mask >> capability & 1)


def test_nothing_wanted_changes_nothing_and_the_collector_may_rest(found: dict[str, Found]) -> None:
    nothing, freeze = found["nothing"], found["freeze"]
    assert nothing["effects"] == {}
    assert nothing["collects"]
    assert nothing["policy"] == nothing["main_policy"] == os.SCHED_OTHER
    assert nothing["cpus"] == nothing["main_cpus"] == CPUS
    assert freeze["effects"]["freeze_gc"][0]
    assert not freeze["collects"]
    assert freeze["frozen"] > 1000


def test_the_loop_alone_stays_on_its_cpus(found: dict[str, Found]) -> None:
    cpus, no_cpu = found["cpus"], found["no cpu"]
    assert cpus["effects"]["cpus"] == [True, f"cpus {CPUS[-1]}"]
    assert cpus["cpus"] == [CPUS[-1]]
    assert cpus["main_cpus"] == CPUS
    effective, text = no_cpu["effects"]["cpus"]
    assert not effective
    assert "CPU 4000 is not this process's" in text
    assert no_cpu["cpus"] == CPUS


def test_the_loop_alone_runs_first_where_it_may(found: dict[str, Found]) -> None:
    priority = found["priority"]
    effective, text = priority["effects"]["priority"]
    # CAP_SYS_NICE: a build machine may lack it, and is then told why.
    assert effective == may(capability=23)
    assert priority["policy"] == (os.SCHED_FIFO if effective else os.SCHED_OTHER)
    assert priority["priority"] == (40 if effective else 0)
    assert effective or "LimitRTPRIO=40" in text or "real-time" in text
    # Neither what it starts, nor the supervisor.
    assert priority["child"] == priority["main_policy"] == os.SCHED_OTHER


def test_memory_is_locked_where_it_may(found: dict[str, Found]) -> None:
    memory = found["memory"]
    effective, text = memory["effects"]["lock_memory"]
    assert effective == (memory["locked_kib"] > 0)
    assert effective or "LimitMEMLOCK=infinity" in text
    assert "lock_memory of the stack" in memory["effects"]


BOTH: Found = {"priority": 40, "lock_memory": True}


def test_another_user_is_told_what_to_set() -> None:
    limits = ("prlimit", "--rtprio=0:0", "--memlock=8388608:8388608")
    (told,) = applied(BOTH, before=(*limits, *OTHER_USER, *NO_RIGHTS))
    why = "priority 40 without effect: RLIMIT_RTPRIO is 0: set the unit's LimitRTPRIO=40"
    assert told["effects"]["priority"] == [False, why]
    why = "lock_memory true without effect: RLIMIT_MEMLOCK is 8388608 bytes: "
    assert told["effects"]["lock_memory"] == [False, f"{why}set the unit's LimitMEMLOCK=infinity"]
    assert told["effects"]["freeze_gc"][0]
    assert told["locked_kib"] == 0


def test_another_user_needs_two_capabilities_and_no_more() -> None:
    (told,) = applied(BOTH, before=(*OTHER_USER, *RIGHTS))
    works = [told["effects"][name][0] for name in ("priority", "lock_memory")]
    assert works == ([True, True] if IS_ROOT else [may(capability=23), may(capability=14)])
    assert told["policy"] == (os.SCHED_FIFO if works[0] else os.SCHED_OTHER)
    assert (told["locked_kib"] > 0) == works[1]


# The same of a driver that computes on threads of this process.
DEVICE_CHILD = """
import json, sys
from modeld.service.config import RealtimeConfig
from modeld.service.realtime import apply_to_program
from tests.runtime import tiny

with tiny.load(sys.argv[1]) as program:
    for priority in (0, 40):
        effects = apply_to_program(RealtimeConfig(priority=priority), program)
        print(json.dumps({effect.name: effect.effective for effect in effects}))
"""


@pytest.mark.opencl
def test_the_threads_of_a_device_that_is_the_cpu_run_first_too(tmp_path: Path) -> None:
    if not choose_device().info.is_pocl:
        pytest.skip("needs a driver that computes on threads of the process")
    done = subprocess.run(
        [sys.executable, "-c", DEVICE_CHILD, str(tmp_path / "tiny.pkl")],
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=True,
    )
    nothing, first = map(json.loads, done.stdout.splitlines())
    assert nothing == {}
    assert first == {"priority of the device's threads": may(capability=23)}


def test_awake_says_whether_the_system_lets_it() -> None:
    with awake(wanted=False) as effects:
        assert effects == ()
    with awake() as (effect,):
        assert effect.effective == os.access("/dev/cpu_dma_latency", os.W_OK)
        assert effect.effective or "/dev/cpu_dma_latency" in effect.reason


@pytest.mark.parametrize(
    ("text", "cpus"), [("7", {7}), ("0-3,6", {0, 1, 2, 3, 6}), (" 1, 2-2 ", {1, 2})]
)
def test_lists_of_cpus(text: str, cpus: set[int]) -> None:
    assert cpus_of(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1"])
def test_what_is_no_list_of_cpus(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        cpus_of(text)


def test_of_what_is_asked_twice_the_newest_answer_counts() -> None:
    first = Effect("priority", "5", effective=False, reason="refused")
    other, second = Effect("cpus", "0", effective=True), Effect("priority", "5", effective=True)
    # Twice the same name would be twice the same sample in the file of metrics.
    assert newest((first, other, second)) == (second, other)
