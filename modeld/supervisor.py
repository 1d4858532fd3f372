"""Supervises the loop: the main thread watches its progress while the loop runs in another thread.

It wakes up 40 times a second, for microseconds, to detect a model run that hangs. Once a second,
between two frames, it does longer work: status line, health message and metrics. ADR 0086 describes
the division of work between the two threads.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, Protocol

from modeld.errors import RunAbandonedError, RunTimeoutError
from modeld.service.notify import Notifier
from modeld.startup import StopSignals
from modeld.state.episodes import NS_PER_S
from modeld.state.loop_state import Fault, LoopState, Phase, RunGuard

logger = logging.getLogger(__name__)

# Interval of the checks while frames arrive.
TICK_S: Final = 0.025
# Interval without frames. No run can hang then, and checks are half of a waiting daemon's work.
IDLE_TICK_S: Final = 0.1
# After this time without progress, the service manager's watchdog is not fed.
PROGRESS_NS: Final = NS_PER_S
# Interval of reports to the service manager, the bus and the metrics file.
REPORT_NS: Final = NS_PER_S
# A report waits for the pause after a frame, to delay no frame, but at most this time.
REPORT_LATEST_NS: Final = NS_PER_S // 2
# The pause after a frame is published. Frames arrive every 50 ms and take about 20 ms.
PAUSE_NS: Final = 10_000_000
# Longest wait for the loop to end. The loop notices a stop after two waits for frames and a run.
# The limit is shorter than the unit's TimeoutStopSec, so a process whose loop hangs ends by itself.
JOIN_S: Final = 3.0
# Without a fallback model the process must restart, which takes seconds. A run then gets this many
# times its timeout, but at most LONGEST_PATIENCE_NS. After that, the watchdog would end the process
# without a message.
PATIENCE_WITHOUT_FALLBACK: Final = 4
LONGEST_PATIENCE_NS: Final = 3 * NS_PER_S // 2
# A car counts as parked after this time without a frame, unless its messages report it on the road.
PARKED_NS: Final = 5 * NS_PER_S


class Loop(Protocol):
    """A loop that runs until it is stopped, and reports its progress in `state`."""

    state: LoopState
    guard: RunGuard

    @property
    def take_over(self) -> Callable[[str], None] | None:
        """Function that switches to the fallback model, given a reason; None if there is none."""

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set."""


class Ending(Enum):
    """Why the supervisor ended."""

    STOPPED = "stopped"
    RELOAD = "reload"


class Supervisor:
    """Starts the loop in a thread and watches it.

    If `left_behind` is True, an abandoned thread may still be in the driver. No resource of the
    device can be closed then; the process must end.
    """

    def __init__(  # noqa: PLR0913 -- the loop, its signals and its reports
        self,
        make_loop: Callable[[], Loop | None],
        state: LoopState,
        stop: StopSignals,
        notifier: Notifier,
        *,
        run_timeout_s: float,
        reports: Sequence[Callable[[int], None]] = (),
        is_on_road: Callable[[], bool] = lambda: False,
        enter_thread: Callable[[], None] = lambda: None,
        each_tick: Callable[[bool], None] = lambda _is_parked: None,
        is_remembered: bool = False,
        why_no_reload: Callable[[], str] = lambda: "",
    ) -> None:
        """Create the supervisor; `run` starts the loop.

        Args:
            make_loop: Waits for the loop's inputs and returns the loop, or None when stopped;
                called in the loop's thread.
            state: The loop's progress.
            stop: Signals to the process.
            notifier: The service manager.
            run_timeout_s: Longest model run before the fallback model takes over, in s.
            reports: Called once a second in the main thread, with the monotonic clock in ns.
            is_on_road: Returns whether the car's own messages report it on the road.
            enter_thread: Called first in each thread of the loop.
            each_tick: Called every tick, and once after the loop has ended; the argument is whether
                the car is parked.
            is_remembered: An earlier process's drive continues with a model that would not be
                selected now.
            why_no_reload: Called before a reload; returns why a new process could not start, or "".
        """
        self.left_behind = False
        self._make_loop = make_loop
        self._state = state
        self._stop = stop
        self._notifier = notifier
        self._timeout_ns = int(run_timeout_s * NS_PER_S)
        self._reports = reports
        self._is_on_road = is_on_road
        self._enter_thread = enter_thread
        self._each_tick = each_tick
        self._loop: Loop | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread()
        # The thread whose run was given up, if any.
        self._hung: threading.Thread | None = None
        self._run_ns = 0
        self._stuck_ns = 0
        self._frame_ns = 0
        self._quiet_ns = 0
        self._report_ns = 0
        self._alive_ns = 0
        self._is_deferral_logged = False
        self._is_parked = False
        self._is_remembered = is_remembered
        self._why_no_reload = why_no_reload
        # The last reload was refused; there is no automatic one until the next request.
        self._is_reload_refused = False

    def run(self) -> Ending:
        """Run the loop until a signal, or until the process should restart.

        Raises:
            RunTimeoutError: The model hangs, and there is no fallback model.
            Exception: The loop raised it.
        """
        try:
            return self._watch()
        finally:
            # Resources of a thread that is still alive must not be closed.
            self.left_behind = self.left_behind or self._thread.is_alive()
            self._each_tick(self._is_parked)

    def _watch(self) -> Ending:
        now_ns = time.monotonic_ns()
        # Until the loop first waits for a frame, progress is measured from here.
        self._state.iterated_ns = self._report_ns = now_ns
        self._start(self._begin)
        while True:
            tick_s = tick(self._state, now_ns)
            self._stop.event.wait(tick_s)
            before_ns, now_ns = now_ns, time.monotonic_ns()
            if not self._thread.is_alive():
                if self._failure is not None:
                    raise self._failure
                return Ending.STOPPED
            if self._stop.event.is_set():
                return self._finish()
            # If this process was suspended or starved of CPU, the loop was, too. So a late tick
            # counts as at most two.
            elapsed_ns = min(now_ns - before_ns, int(2 * tick_s * NS_PER_S))
            self._watch_run(elapsed_ns)
            self._each_tick(self._is_parked)
            self._report(now_ns)
            if self._wants_reload(elapsed_ns):
                self._stop.event.set()
                self._finish()
                return Ending.RELOAD

    def _start(self, work: Callable[[], None]) -> None:
        """Run `work` in a new thread of the loop."""
        self._thread = threading.Thread(
            target=self._guarded, args=(work,), name="loop", daemon=True
        )
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            self._enter_thread()
            work()
        except RunAbandonedError:
            # Another thread has taken over, so this one ends silently.
            return
        except BaseException as error:  # noqa: BLE001 -- raised again in the main thread
            self._failure = error

    def _begin(self) -> None:
        self._loop = self._make_loop()
        if self._loop is None:
            logger.info("stopped while starting")
            return
        logger.info("running")
        self._loop.run_forever(self._stop.event)

    def _continue(self) -> None:
        assert self._loop is not None
        self._loop.run_forever(self._stop.event)

    def _finish(self) -> Ending:
        """Wait for the loop to end after a stop."""
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            self.left_behind = True
            logger.error(
                "the loop did not end within %g s after the signal: the process ends", JOIN_S
            )
        return Ending.STOPPED

    def _watch_run(self, elapsed_ns: int) -> None:
        """Measure the current model run; give it up if it takes too long."""
        run_ns, loop = self._state.running_ns, self._loop
        if run_ns != self._run_ns or run_ns == 0 or loop is None:
            self._run_ns, self._stuck_ns = run_ns, 0
            return
        self._stuck_ns += elapsed_ns
        take_over = loop.take_over
        patience_ns = self._patience_ns(has_fallback=take_over is not None)
        if self._stuck_ns < patience_ns or not loop.guard.abandon(run_ns):
            return
        self.left_behind, self._hung = True, self._thread
        self._state.count(Fault.RUN_TIMEOUT)
        reason = f"a run did not finish within {self._stuck_ns // 1_000_000} ms"
        if take_over is None:
            raise RunTimeoutError(
                f"model: {reason}, expected it within {self._timeout_ns // 1_000_000}; the device "
                "hangs: the process ends and should be started again"
            )
        take_over(reason)
        self._start(self._continue)

    def _patience_ns(self, *, has_fallback: bool) -> int:
        """Return the time limit of a run."""
        # An earlier run that is still in the driver holds the device, so waiting longer is useless.
        if has_fallback or (self._hung is not None and self._hung.is_alive()):
            return self._timeout_ns
        longer_ns = min(PATIENCE_WITHOUT_FALLBACK * self._timeout_ns, LONGEST_PATIENCE_NS)
        return max(self._timeout_ns, longer_ns)

    def _report(self, now_ns: int) -> None:
        """Feed the watchdog if there is progress; once a second, send the status and reports."""
        state, notifier = self._state, self._notifier
        period_s = notifier.watchdog_s
        # Feed the watchdog twice per period, as sd_watchdog_enabled(3) recommends.
        due_ns = 0 if period_s is None else int(period_s * NS_PER_S) // 2
        due = due_ns > 0 and now_ns - self._alive_ns >= due_ns - int(IDLE_TICK_S * NS_PER_S)
        if due and has_progress(state, now_ns):
            self._alive_ns = now_ns
            notifier.alive()
        late_ns = now_ns - self._report_ns - REPORT_NS
        if late_ns < 0 or (late_ns < REPORT_LATEST_NS and not in_pause(state, now_ns)):
            return
        self._report_ns = now_ns
        notifier.status(status_line(state))
        for report in self._reports:
            try:
                report(now_ns)
            except Exception:
                # A report must not end the drive.
                logger.exception("a report failed, continuing")

    def _check_parked(self, elapsed_ns: int) -> None:
        """Update `_is_parked`: no frames have arrived for a while, and the car is not driving."""
        state = self._state
        frame_ns = max(state.published_ns, state.awaiting_ns)
        if frame_ns != self._frame_ns:
            self._frame_ns, self._quiet_ns = frame_ns, 0
        self._quiet_ns += elapsed_ns
        # Without frames so far, a drive of an earlier process may still be in progress.
        is_idle = frame_ns == 0 and not (state.fallback or self._is_remembered)
        without_frames = is_idle or self._quiet_ns > PARKED_NS
        self._is_parked = without_frames and not self._is_on_road()

    def _wants_reload(self, elapsed_ns: int) -> bool:
        """Return whether to restart: on SIGHUP, or after a drive with another model."""
        self._check_parked(elapsed_ns)
        state, parked = self._state, self._is_parked
        asked = self._stop.reload.is_set()
        if asked and not parked and not self._is_deferral_logged:
            self._is_deferral_logged = True
            logger.warning("reload deferred until the car is parked")
        # After a drive with another model, restart to load the selected one. If no frame was
        # published, a restart would only repeat the failed loading.
        after_drive = self._is_remembered or (bool(state.fallback) and state.published > 0)
        if not parked or not (asked or (after_drive and not self._is_reload_refused)):
            return False
        problem = self._why_no_reload()
        if problem:
            self._stop.reload.clear()
            self._is_deferral_logged, self._is_reload_refused = False, True
            logger.error("not reloaded, continuing as before: %s", problem)
        return not problem


def has_progress(state: LoopState, now_ns: int) -> bool:
    """Return whether the loop iterates, and publishes if there are frames."""
    if now_ns - state.iterated_ns > PROGRESS_NS:
        return False
    awaiting_ns = state.awaiting_ns
    return awaiting_ns == 0 or now_ns - awaiting_ns <= PROGRESS_NS


def tick(state: LoopState, now_ns: int) -> float:
    """Return the time until the next check, in seconds."""
    is_idle = state.running_ns == 0 and state.awaiting_ns == 0
    return IDLE_TICK_S if is_idle and now_ns - state.published_ns > NS_PER_S else TICK_S


def in_pause(state: LoopState, now_ns: int) -> bool:
    """Return whether the loop has just published, or has no frames."""
    return state.awaiting_ns == 0 and (
        now_ns - state.published_ns < PAUSE_NS or now_ns - state.published_ns > NS_PER_S
    )


def status_line(state: LoopState) -> str:
    """Return the status line for `systemctl status`."""
    if state.phase is not Phase.RUNNING:
        return f"{state.phase}; model {state.model}"
    which = f"fallback model {state.model} ({state.fallback})" if state.fallback else state.model
    reasons = state.reasons
    verdict = f"not valid: {', '.join(reasons)}" if reasons else "valid"
    now_ns = time.monotonic_ns()
    refusal = state.refusal(now_ns)
    if now_ns - state.iterated_ns > PROGRESS_NS:
        verdict = "no progress"
    elif refusal:
        verdict = refusal
    elif now_ns - max(state.published_ns, state.awaiting_ns) > NS_PER_S:
        verdict = "no frames"
    return (
        f"{verdict}; frame {state.frame_id}, {state.published} published, "
        f"{state.dropped} dropped; {which}"
    )
