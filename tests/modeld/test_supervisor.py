"""The supervisor with real threads, and loops that do what a test tells them."""

import itertools
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import modeld
from modeld.config import LONGEST_WAIT_MS
from modeld.errors import RunTimeoutError
from modeld.frame_sync import EXTRA_WAIT_MS
from modeld.loop_state import Fault, LoopState, Phase
from modeld.notify import Notifier
from modeld.run_guard import RunGuard
from modeld.startup import StopSignals
from modeld.supervisor import (
    LONGEST_PATIENCE_NS,
    NS_PER_S,
    PARKED_NS,
    PROGRESS_NS,
    Ending,
    Supervisor,
    has_progress,
    in_pause,
    status_line,
)

SOON_S = 20.0


class ScriptedLoop:
    """A loop whose runs take as long as the test wants.

    Attributes:
        hangs: Runs wait for this event; None: they are over at once.
        raises: What the next iteration raises.
    """

    def __init__(self, state: LoopState, *, has_fallback: bool = False) -> None:
        self.state = state
        self.guard = RunGuard(state)
        self.take_over: Callable[[str], None] | None = self._fall_back if has_fallback else None
        self.hangs: threading.Event | None = None
        self.raises: Exception | None = None
        self.after_hang: list[str] = []
        self.threads: set[str] = set()

    def _fall_back(self, reason: str) -> None:
        self.take_over, self.hangs = None, None
        self.state.fallback = reason

    def run_forever(self, stop: threading.Event) -> None:
        self.state.phase = Phase.RUNNING
        while not stop.wait(0.005):
            if self.raises is not None:
                raise self.raises
            self.state.iterated_ns = self.state.awaiting_ns = time.monotonic_ns()
            hangs = self.hangs
            with self.guard.running():
                if hangs is not None:
                    hangs.wait()
            if hangs is not None:
                self.after_hang.append("went on")
            self.state.published_ns, self.state.awaiting_ns = time.monotonic_ns(), 0
            self.state.published += 1


class Bench:
    def __init__(self, *, has_fallback: bool = False, run_timeout_s: float = 0.2) -> None:
        self.state = LoopState(model="a")
        self.loop = ScriptedLoop(self.state, has_fallback=has_fallback)
        self.stop = StopSignals()
        self.on_road = False
        self.reports: list[int] = []
        self.supervisor = Supervisor(
            lambda: self.loop,
            self.state,
            self.stop,
            Notifier(),
            run_timeout_s=run_timeout_s,
            reports=(self.reports.append,),
            is_on_road=lambda: self.on_road,
        )
        self.outcome: list[object] = []
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.outcome.append(self.supervisor.run())
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test looks at it
            self.outcome.append(error)

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + SOON_S
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def end(self) -> object:
        self.stop.event.set()
        self.thread.join(SOON_S)
        return self.outcome[0]


def test_a_stop_ends_the_loop_and_is_no_error() -> None:
    bench = Bench()
    bench.thread.start()
    bench.until(lambda: bench.state.published > 5)
    assert bench.end() is Ending.STOPPED
    assert not bench.supervisor.left_behind


def test_what_the_loop_raises_is_raised_here() -> None:
    bench = Bench()
    bench.loop.raises = ValueError("x")
    bench.thread.start()
    bench.thread.join(SOON_S)
    assert bench.outcome == [bench.loop.raises]


def test_a_run_that_hangs_is_left_behind_and_the_fallback_goes_on() -> None:
    bench = Bench(has_fallback=True)
    hang = bench.loop.hangs = threading.Event()
    bench.thread.start()
    bench.until(lambda: bench.state.published > 3)
    assert bench.state.fallback.startswith("a run has not come back within ")
    assert bench.state.faults[Fault.RUN_TIMEOUT] == 1
    assert bench.supervisor.left_behind
    # What comes back late touches nothing: neither the loop nor the marks of the present runs.
    running = [t for t in threading.enumerate() if t.name == "loop"]
    assert len(running) == 2
    hang.set()
    bench.until(lambda: sum(t.is_alive() for t in running) == 1)
    assert bench.loop.after_hang == []
    assert bench.end() is Ending.STOPPED


def test_a_run_that_hangs_without_fallback_ends_the_process() -> None:
    bench = Bench(run_timeout_s=0.05)
    hang = bench.loop.hangs = threading.Event()
    bench.thread.start()
    bench.thread.join(SOON_S)
    error = bench.outcome[0]
    assert isinstance(error, RunTimeoutError)
    assert error.exit_code == 4
    assert "expected it within 50; the device hangs" in str(error)
    assert bench.supervisor.left_behind
    hang.set()


def test_time_in_which_the_process_stood_still_is_neither_the_models_nor_the_cars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(has_fallback=True, run_timeout_s=0.3)
    supervisor = bench.supervisor
    elapsed: list[int] = []
    monkeypatch.setattr(supervisor, "_watch_run", elapsed.append)
    monkeypatch.setattr(supervisor, "_wants_reload", elapsed.append)
    monotonic_ns, hours = time.monotonic_ns, itertools.count(0, 3600 * NS_PER_S)
    # Each tick comes later by an hour, as of a process that is stopped and continued.
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(hours) + monotonic_ns())
    bench.thread.start()
    bench.until(lambda: len(elapsed) > 4)
    bench.end()
    assert set(elapsed) == {50_000_000}


def test_a_run_is_given_up_after_its_time() -> None:
    bench = Bench(has_fallback=True, run_timeout_s=0.3)
    supervisor, state = bench.supervisor, bench.state
    supervisor._loop = bench.loop
    state.running_ns = 77
    supervisor._watch_run(0)
    for _ in range(5):
        supervisor._watch_run(50_000_000)
    assert state.fallback == ""
    supervisor._watch_run(50_000_000)
    assert state.fallback == "a run has not come back within 300 ms"


@pytest.mark.parametrize(
    ("timeout_s", "ticks"),
    # Four times its limit, 1.5 s at most, never less than the limit; a tick counts as 50 ms.
    [(0.1, 8), (0.3, 24), (0.5, 30), (0.8, 30), (2.0, 40)],
)
def test_without_a_fallback_a_run_may_take_longer_but_not_until_the_watchdog_acts(
    timeout_s: float, ticks: int
) -> None:
    bench = Bench(run_timeout_s=timeout_s)
    supervisor, state = bench.supervisor, bench.state
    supervisor._loop = bench.loop
    state.running_ns = 77
    supervisor._watch_run(0)
    for _ in range(ticks - 1):
        supervisor._watch_run(50_000_000)
    with pytest.raises(RunTimeoutError):
        supervisor._watch_run(50_000_000)


@pytest.mark.parametrize(("is_back", "ticks"), [(False, 4), (True, 16)])
def test_while_a_run_that_was_left_behind_is_not_back_the_next_has_less_time(
    is_back: bool, ticks: int
) -> None:
    bench = Bench(run_timeout_s=0.2)
    supervisor, state = bench.supervisor, bench.state
    returns = threading.Event()
    supervisor._loop, supervisor._hung = bench.loop, threading.Thread(target=returns.wait)
    supervisor._hung.start()
    if is_back:
        returns.set()
        supervisor._hung.join(SOON_S)
    state.running_ns = 77
    supervisor._watch_run(0)
    for _ in range(ticks - 1):
        supervisor._watch_run(50_000_000)
    with pytest.raises(RunTimeoutError):
        supervisor._watch_run(50_000_000)
    returns.set()


def test_a_fallback_that_hangs_too_ends_the_process() -> None:
    bench = Bench(has_fallback=True, run_timeout_s=0.1)
    hang = bench.loop.hangs = threading.Event()

    def take_over(reason: str) -> None:
        bench.loop.take_over = None
        bench.state.fallback = reason

    bench.loop.take_over = take_over
    bench.thread.start()
    bench.thread.join(SOON_S)
    assert isinstance(bench.outcome[0], RunTimeoutError)
    assert bench.state.fallback.startswith("a run has not come back within ")
    assert bench.state.faults[Fault.RUN_TIMEOUT] == 2
    hang.set()


def test_a_thread_that_lives_when_watching_ends_keeps_what_it_uses() -> None:
    bench = Bench()
    hang = bench.loop.hangs = threading.Event()

    def fails(_is_parked: bool) -> None:
        if bench.state.running_ns:
            raise ValueError("no")

    bench.supervisor._each_tick = fails
    bench.thread.start()
    bench.thread.join(SOON_S)
    assert isinstance(bench.outcome[0], ValueError)
    assert bench.supervisor.left_behind
    bench.stop.event.set()
    hang.set()


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
        (8.9, 0.0, False),  # does not come back from something
        (9.9, 9.2, True),  # a frame is being worked on
        (9.9, 8.9, False),  # frames come, and nothing is published
    ],
)
def test_progress(iterated: float, awaiting: float, alive: bool) -> None:
    state = LoopState(iterated_ns=int(iterated * NS_PER_S), awaiting_ns=int(awaiting * NS_PER_S))
    assert has_progress(state, 10 * NS_PER_S) is alive


@pytest.mark.parametrize(
    ("published", "awaiting", "pause"),
    [(9.995, 0.0, True), (9.97, 0.0, False), (8.0, 0.0, True), (9.95, 9.999, False)],
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


def test_the_manager_hears_of_progress_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(SOON_S)
        bench = Bench(run_timeout_s=60.0)
        notifier = bench.supervisor._notifier = Notifier(str(tmp_path / "notify"), watchdog_s=0.2)
        bench.thread.start()
        heard = {manager.recv(1000).partition(b"=")[0] for _ in range(30)}
        assert heard == {b"WATCHDOG", b"STATUS"}
        assert bench.reports
        hang = bench.loop.hangs = threading.Event()
        # From now on only the line of status tells that the process is there.
        deadline = time.monotonic() + SOON_S
        while True:
            assert time.monotonic() < deadline
            if b"STATUS=no progress" in manager.recv(1000):
                break
        assert all(manager.recv(1000).startswith(b"STATUS=no progress") for _ in range(2))
        hang.set()
        bench.end()
        notifier.close()


def test_a_report_that_fails_does_not_end_the_drive(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def fails(_now_ns: int) -> None:
        raise ValueError("no")

    bench.supervisor._reports = (fails, bench.reports.append)
    bench.thread.start()
    bench.until(lambda: bench.reports)
    assert bench.end() is Ending.STOPPED
    assert "a report failed, going on" in caplog.text


def test_what_cannot_wait_is_done_at_once_and_at_the_end() -> None:
    bench = Bench(has_fallback=True)
    seen: list[str] = []
    bench.supervisor._each_tick = lambda _parked: seen.append(bench.state.fallback)
    bench.thread.start()
    bench.until(lambda: seen)
    # Between two ticks the fallback model is taken, and fails, too.
    bench.state.fallback, bench.loop.raises = "lost", ValueError("x")
    bench.thread.join(SOON_S)
    assert seen[-1] == "lost"


def test_reload_waits_until_the_car_is_parked(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    supervisor, state = bench.supervisor, bench.state
    state.published_ns, state.published = 100 * NS_PER_S, 9
    assert not supervisor._wants_reload(PARKED_NS + 1)  # nobody asked
    bench.stop.reload.set()
    state.published_ns += 1
    assert not supervisor._wants_reload(1)
    assert not supervisor._wants_reload(1)
    assert [r.message for r in caplog.records].count(
        "reload asked for while driving: it is done when the car is parked"
    ) == 1
    bench.on_road = True
    assert not supervisor._wants_reload(PARKED_NS)
    bench.on_road = False
    assert supervisor._wants_reload(1)


def test_a_drive_with_the_fallback_model_ends_in_a_new_start() -> None:
    bench = Bench()
    supervisor, state = bench.supervisor, bench.state
    state.fallback = "it hung"
    # Nothing was driven: the same would be found again, for ever.
    assert not supervisor._wants_reload(PARKED_NS + 1)
    state.published, state.published_ns = 1, NS_PER_S
    assert not supervisor._wants_reload(PARKED_NS)
    assert supervisor._wants_reload(1)


def test_a_parked_process_that_remembers_a_fallback_goes_back_before_the_next_drive() -> None:
    bench = Bench()
    supervisor, state = bench.supervisor, bench.state
    state.fallback, supervisor._is_remembered = "it hung", True
    # The drive may go on: nothing of the car has been heard yet.
    assert not supervisor._wants_reload(PARKED_NS)
    bench.on_road = True
    assert not supervisor._wants_reload(1)
    bench.on_road = False
    assert supervisor._wants_reload(1)


def test_a_reload_does_not_end_a_fallback_that_has_just_started_again() -> None:
    bench = Bench()
    bench.state.fallback = "it hung"
    bench.stop.reload.set()
    assert not bench.supervisor._wants_reload(PARKED_NS)
    assert bench.supervisor._wants_reload(1)


def test_a_reload_that_would_fail_is_refused_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    supervisor, state = bench.supervisor, bench.state
    state.published = 1
    supervisor._why_no_reload = lambda: "config.toml: unknown key modle"
    bench.stop.reload.set()
    assert not supervisor._wants_reload(PARKED_NS + 1)
    assert not bench.stop.reload.is_set()
    # After a drive with the fallback model: not asked again 40 times a second.
    state.fallback = "it hung"
    assert not supervisor._wants_reload(PARKED_NS + 1)
    assert [r.message for r in caplog.records] == [
        "not reloaded, going on as before: config.toml: unknown key modle"
    ]
    supervisor._why_no_reload = lambda: ""
    bench.stop.reload.set()
    assert supervisor._wants_reload(PARKED_NS + 1)


def test_a_reload_ends_the_loop_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.state.published_ns = 0
    monkeypatch.setattr(
        bench.supervisor, "_wants_reload", lambda _now_ns: bench.state.published > 3
    )
    bench.thread.start()
    bench.thread.join(SOON_S)
    assert bench.outcome == [Ending.RELOAD]
    assert bench.stop.exit_code == 0


def test_hangup_asks_for_a_reload() -> None:
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGHUP)
        assert stop.reload.is_set()
        assert not stop.event.is_set()
