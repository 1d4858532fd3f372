"""The supervisor with real threads, and loops that do what a test tells them."""

import itertools
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import modeld
from modeld.errors import RunTimeoutError
from modeld.frames.frame_sync import EXTRA_WAIT_MS
from modeld.service.config import LONGEST_WAIT_MS
from modeld.service.notify import Notifier
from modeld.state.episodes import NS_PER_S
from modeld.state.loop_state import Fault, LoopState, Phase, RunGuard
from modeld.supervisor import (
    LONGEST_PATIENCE_NS,
    PARKED_NS,
    PROGRESS_NS,
    Ending,
    has_progress,
    in_pause,
    status_line,
    tick,
)
from tests.modeld.bench import Log, Patch, eventually
from tests.modeld.watched_loop import SOON_S, TICK_NS, Watched


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_stop_ends_the_loop_and_is_no_error(watched: Watched) -> None:
    watched.start(lambda: watched.state.published > 5)
    assert watched.end() is Ending.STOPPED
    assert not watched.supervisor.left_behind
    assert watched.entered == ["loop"]


def test_what_the_loop_raises_is_raised_here_and_a_stop_while_starting_is_no_error() -> None:
    watched = Watched()
    watched.loop.raises = ValueError("x")
    assert watched.end_by_itself() is watched.loop.raises
    watched = Watched()
    begun_ns: list[int] = []
    watched.supervisor._make_loop = lambda: begun_ns.append(watched.state.iterated_ns)
    assert watched.end_by_itself() is Ending.STOPPED
    # Progress counts from the start until the loop's first wait.
    assert begun_ns[0] > 0


def test_a_run_that_hangs_is_left_behind_and_the_fallback_goes_on() -> None:
    watched, others = Watched(has_fallback=True, hangs=True), set(threading.enumerate())
    watched.start(lambda: watched.state.published > 3)
    assert watched.state.fallback.startswith("a run did not finish within ")
    assert watched.state.faults[Fault.RUN_TIMEOUT] == 1
    assert watched.supervisor.left_behind
    assert watched.entered == ["loop"] * 2
    # What comes back late touches nothing: neither the loop nor the marks of the present runs.
    running = [t for t in threading.enumerate() if t.name == "loop" and t not in others]
    assert len(running) == 2
    watched.hang.set()
    eventually(lambda: sum(t.is_alive() for t in running) == 1)
    assert watched.loop.after_hang == []
    assert watched.end() is Ending.STOPPED


@pytest.mark.parametrize("has_fallback", [False, True])
def test_without_a_fallback_that_works_a_run_that_hangs_ends_the_process(
    has_fallback: bool,
) -> None:
    watched = Watched(has_fallback=has_fallback, hangs=True, run_timeout_s=0.05)
    watched.loop.fallback_hangs = True
    error = watched.end_by_itself()
    assert isinstance(error, RunTimeoutError)
    assert error.exit_code == 4
    assert "expected it within 50; the device hangs" in str(error)
    assert watched.supervisor.left_behind
    assert watched.state.faults[Fault.RUN_TIMEOUT] == 1 + has_fallback
    assert watched.state.fallback.startswith("a run did not finish within ") is has_fallback
    watched.hang.set()


@pytest.mark.parametrize(
    ("running_ns", "awaiting_ns", "published_ns", "expected_s"),
    [
        (0, 0, 0, 0.1),  # before the first frame
        (0, 0, 9 * NS_PER_S, 0.025),
        (0, 0, 9 * NS_PER_S - 1, 0.1),  # none for more than a second
        (0, 10 * NS_PER_S, 0, 0.025),
        (10 * NS_PER_S, 0, 0, 0.025),
    ],
)
def test_it_looks_less_often_while_no_frame_comes(
    running_ns: int, awaiting_ns: int, published_ns: int, expected_s: float
) -> None:
    state = LoopState(running_ns=running_ns, awaiting_ns=awaiting_ns, published_ns=published_ns)
    assert tick(state, 10 * NS_PER_S) == expected_s


def test_time_in_which_the_process_stood_still_is_neither_the_models_nor_the_cars(
    monkeypatch: Patch,
) -> None:
    watched = Watched(has_fallback=True, run_timeout_s=0.3)
    elapsed: list[int] = []
    monkeypatch.setattr(watched.supervisor, "_watch_run", elapsed.append)
    monkeypatch.setattr(watched.supervisor, "_wants_reload", elapsed.append)
    monotonic_ns, hours = time.monotonic_ns, itertools.count(0, 3600 * NS_PER_S)
    # Each tick comes later by an hour, as of a process that is stopped and continued.
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(hours) + monotonic_ns())
    watched.start(lambda: len(elapsed) > 4)
    watched.end()
    # While no frame comes, ticks are four times as long.
    assert set(elapsed) <= {TICK_NS, 4 * TICK_NS}


def test_a_run_is_given_up_after_its_time() -> None:
    watched = Watched(has_fallback=True, run_timeout_s=0.3)
    watched.watch_run(5)
    assert watched.state.fallback == ""
    watched.supervisor._watch_run(TICK_NS)
    assert watched.state.fallback == "a run did not finish within 300 ms"


# Of a run before this one, that was left behind: None: there was none; whether it is back.
@pytest.mark.parametrize(
    ("timeout_s", "is_back", "ticks"),
    [
        # Four times its limit, 1.5 s at most, never less than the limit; a tick counts as 50 ms.
        (0.1, None, 8),
        (0.3, None, 24),
        (0.5, None, 30),
        (0.8, None, 30),
        (2.0, None, 40),
        # One that is still there holds the device.
        (0.2, False, 4),
        (0.2, True, 16),
    ],
)
def test_without_a_fallback_a_run_may_take_longer_but_not_until_the_watchdog_acts(
    timeout_s: float, is_back: bool | None, ticks: int
) -> None:
    watched = Watched(run_timeout_s=timeout_s)
    if is_back is not None:
        watched.supervisor._hung = hung = threading.Thread(target=watched.hang.wait, daemon=True)
        hung.start()
        if is_back:
            watched.hang.set()
            hung.join(SOON_S)
    watched.watch_run(ticks - 1)
    with pytest.raises(RunTimeoutError):
        watched.supervisor._watch_run(TICK_NS)
    watched.hang.set()


def test_a_thread_that_lives_when_watching_ends_keeps_what_it_uses() -> None:
    watched = Watched(hangs=True)

    def fails(_is_parked: bool) -> None:
        if watched.state.running_ns:
            raise ValueError("no")

    watched.supervisor._each_tick = fails
    assert isinstance(watched.end_by_itself(), ValueError)
    assert watched.supervisor.left_behind
    watched.stop.event.set()
    watched.hang.set()


def test_a_run_that_ends_at_the_last_moment_is_not_given_up() -> None:
    state = LoopState()
    guard = RunGuard(state)
    with guard.running():
        began_ns = state.running_ns
    assert state.running_ns == 0
    assert not guard.abandon(began_ns)
    with guard.running():
        assert not guard.abandon(began_ns)
        assert not guard.abandon(0)


@pytest.mark.parametrize(
    ("iterated", "awaiting", "alive"),
    [
        (9.5, 0.0, True),  # waits for a camera
        (9.0, 0.0, True),
        (8.9, 0.0, False),  # does not come back from something
        (9.9, 9.0, True),  # a frame is being worked on
        (9.9, 8.9, False),  # frames come, and nothing is published
    ],
)
def test_progress(iterated: float, awaiting: float, alive: bool) -> None:
    state = LoopState(iterated_ns=int(iterated * NS_PER_S), awaiting_ns=int(awaiting * NS_PER_S))
    assert has_progress(state, 10 * NS_PER_S) is alive


@pytest.mark.parametrize(
    ("published", "awaiting", "pause"),
    [
        (9.995, 0.0, True),
        (9.99, 0.0, False),
        (9.0, 0.0, False),
        (8.999, 0.0, True),
        (9.95, 9.999, False),
    ],
)
def test_reports_are_made_in_the_pause_after_a_frame(
    published: float, awaiting: float, pause: bool
) -> None:
    state = LoopState(published_ns=int(published * NS_PER_S), awaiting_ns=int(awaiting * NS_PER_S))
    assert in_pause(state, 10 * NS_PER_S) is pause


def test_no_setting_lets_the_watchdog_of_the_unit_act_first() -> None:
    unit = (Path(modeld.__file__).parent / "units/daemon.service").read_text(encoding="utf-8")
    (watchdog_s,) = re.findall(r"^WatchdogSec=(\d+)$", unit, re.MULTILINE)
    watchdog_ms, ns_per_ms = int(watchdog_s) * 1000, NS_PER_S // 1000
    # Without cameras: a wait for each of the two, and the loop has gone round within a second.
    assert PROGRESS_NS / ns_per_ms > LONGEST_WAIT_MS + EXTRA_WAIT_MS
    # A run hangs, and the fallback's behind it: a frame each, and ticks that come late.
    assert watchdog_ms > 2 * (LONGEST_WAIT_MS + 100)
    assert watchdog_ms > LONGEST_PATIENCE_NS / ns_per_ms + 100


def test_status_lines() -> None:
    now_ns = time.monotonic_ns()
    state = LoopState(Phase.WAITING_CAMERA, model="a")
    assert status_line(state) == "waiting for cameras; model a"
    state = LoopState(
        Phase.RUNNING, now_ns, frame_id=7, published=5, dropped=1, published_ns=now_ns, model="a"
    )
    assert status_line(state) == "valid; frame 7, 5 published, 1 dropped; a"
    state.reasons, state.fallback = ("no calibration",), "it hung"
    assert status_line(state).startswith("not valid: no calibration; frame 7")
    assert status_line(state).endswith("fallback model a (it hung)")
    # At once, and while such frames come.
    state.refused = (now_ns + 1, "main camera: expected other frames")
    refused = "frames not used: main camera: expected other frames; frame 7"
    assert status_line(state).startswith(refused)
    state.awaiting_ns = now_ns + 2
    assert status_line(state).startswith("not valid: no calibration")
    state.awaiting_ns = 0
    state.published_ns -= 2 * NS_PER_S
    assert status_line(state).startswith(refused)
    state.refused = (now_ns - NS_PER_S, "main camera: expected other frames")
    assert status_line(state).startswith("no frames")
    state.iterated_ns -= 2 * NS_PER_S
    assert status_line(state).startswith("no progress")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind(str(tmp_path / "notify"))
        end.settimeout(SOON_S)
        yield end


@pytest.mark.parametrize(
    ("now_ms", "iterated_ms", "awaiting_ms", "told"),
    [
        # A watchdog of 2 s is fed each second, or a tick before.
        (974, 974, 0, []),
        (975, 975, 0, [b"WATCHDOG"]),
        # A second after the last report there is one in the next pause, after 1.5 s anyhow.
        (1000, 1000, 0, [b"WATCHDOG", b"STATUS"]),
        (1000, 1000, 1, [b"WATCHDOG"]),
        (1499, 1499, 1400, [b"WATCHDOG"]),
        (1500, 1500, 1400, [b"WATCHDOG", b"STATUS"]),
        # Without progress nothing feeds it.
        (2000, 900, 0, [b"STATUS"]),
    ],
)
def test_when_the_manager_is_told(
    watched: Watched,
    manager: socket.socket,
    now_ms: int,
    iterated_ms: int,
    awaiting_ms: int,
    told: list[bytes],
) -> None:
    notifier = Notifier(manager.getsockname(), watchdog_s=2.0)
    watched.supervisor._notifier = notifier
    watched.state.iterated_ns, watched.state.awaiting_ns = (
        at * 1_000_000 for at in (iterated_ms, awaiting_ms)
    )
    watched.state.published_ns = (now_ms - 5) * 1_000_000
    for _ in range(2):  # what was told is not told again at once
        watched.supervisor._report(now_ms * 1_000_000)
    notifier.alive()
    heard = [manager.recv(1000).partition(b"=")[0] for _ in range(len(told) + 1)]
    assert heard == [*told, b"WATCHDOG"]
    assert len(watched.reports) == (b"STATUS" in told)
    notifier.close()


def test_a_report_that_fails_does_not_end_the_drive(watched: Watched, caplog: Log) -> None:
    def fails(_now_ns: int) -> None:
        raise ValueError("no")

    watched.supervisor._reports = (fails, watched.reports.append)
    watched.supervisor._report(2 * NS_PER_S)
    assert watched.reports == [2 * NS_PER_S]
    assert "a report failed, continuing" in caplog.text


def test_what_cannot_wait_is_done_at_once_and_at_the_end() -> None:
    watched = Watched(has_fallback=True)
    seen: list[str] = []
    watched.supervisor._each_tick = lambda _parked: seen.append(watched.state.fallback)
    watched.start(lambda: seen)
    # Between two ticks the fallback model is taken, and fails, too.
    watched.state.fallback, watched.loop.raises = "lost", ValueError("x")
    watched.thread.join(SOON_S)
    assert seen[-1] == "lost"


WAITS = "reload deferred until the car is parked"
REFUSED = "not reloaded, continuing as before: config.toml: unknown key modle"
OVER_NS = PARKED_NS + 1


# Steps: what changes of the loop's state and around it, how long it lasts, whether to start anew.
@pytest.mark.parametrize(
    ("steps", "said"),
    [
        # It waits until the car is parked, which it is not on the road.
        (
            [
                ({"published_ns": 100 * NS_PER_S, "published": 9}, OVER_NS, False),  # nobody asked
                ({"reload": True, "published_ns": 100 * NS_PER_S + 1}, 1, False),
                ({}, 1, False),
                ({"on_road": True}, PARKED_NS, False),
                ({"on_road": False}, 1, True),
            ],
            [WAITS],
        ),
        # A drive with the fallback model ends in a new start. Nothing was driven: the same would be
        # found again, for ever.
        (
            [
                ({"fallback": "it hung"}, OVER_NS, False),
                ({"published": 1, "published_ns": NS_PER_S}, PARKED_NS, False),
                ({}, 1, True),
            ],
            [],
        ),
        # A parked process that remembers a fallback goes back before the next drive. The drive may
        # go on: nothing of the car has been heard yet.
        (
            [
                ({"fallback": "it hung", "_is_remembered": True}, PARKED_NS, False),
                ({"on_road": True}, 1, False),
                ({"on_road": False}, 1, True),
            ],
            [],
        ),
        ([({"_is_remembered": True}, PARKED_NS, False), ({}, 1, True)], []),
        # A reload does not end a fallback that has just started again.
        ([({"fallback": "it hung", "reload": True}, PARKED_NS, False), ({}, 1, True)], [WAITS]),
        # Without a frame so far nothing is driven.
        ([({"reload": True}, 1, True)], []),
        # One that would fail is refused once; after a drive with the fallback model it is not asked
        # again 40 times a second.
        (
            [
                ({"published": 1, "problem": "config.toml: unknown key modle"}, OVER_NS, False),
                ({"reload": True}, 1, False),
                ({"fallback": "it hung"}, OVER_NS, False),
                ({"problem": ""}, 1, False),
                ({"reload": True}, 1, True),
            ],
            [REFUSED],
        ),
    ],
)
def test_when_the_process_starts_anew(
    watched: Watched, steps: list[tuple[dict[str, Any], int, bool]], said: list[str], caplog: Log
) -> None:
    supervisor = watched.supervisor
    supervisor._why_no_reload = lambda: watched.problem
    for changes, elapsed_ns, wanted in steps:
        for name, value in changes.items():
            if name == "reload":
                watched.stop.reload.set()
            else:
                owners = (watched, supervisor, watched.state)
                setattr(next(one for one in owners if hasattr(one, name)), name, value)
        assert supervisor._wants_reload(elapsed_ns) is wanted
        if "reload" in changes:
            assert watched.stop.reload.is_set() is not (REFUSED in said and not wanted)
    assert caplog.messages == said


def test_a_reload_ends_the_loop_in_order(watched: Watched, monkeypatch: Patch) -> None:
    def wants(_elapsed_ns: int) -> bool:
        return watched.state.published > 3

    run = watched.loop.run_forever

    def ends_late(stop: threading.Event) -> None:
        run(stop)
        time.sleep(0.1)

    monkeypatch.setattr(watched.loop, "run_forever", ends_late)
    monkeypatch.setattr(watched.supervisor, "_wants_reload", wants)
    assert watched.end_by_itself() is Ending.RELOAD
    assert not watched.supervisor.left_behind
    assert watched.stop.exit_code == 0
