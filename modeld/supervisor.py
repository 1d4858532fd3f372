"""The main thread while the loop runs in another: watches its progress, and speaks for the process.

It wakes 40 times a second for microseconds, to see whether the model comes back; once a second it
does longer work (status, health, figures), between two frames. ADR 0086 has what the loop does by
itself, and what needs another thread.
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

TICK_S: Final = 0.025
# Without frames no run can hang, and ticks are half of a waiting daemon's work.
IDLE_TICK_S: Final = 0.1
# Without progress for this time the watchdog of the service manager is not fed.
PROGRESS_NS: Final = NS_PER_S
# How often the service manager, the bus and the file of figures hear of us.
REPORT_NS: Final = NS_PER_S
# A report waits for the pause after a frame, so that it does not delay one; this long at most.
REPORT_LATEST_NS: Final = NS_PER_S // 2
# The pause after a frame: the next one comes 50 ms after this one's, which took some 20.
PAUSE_NS: Final = 10_000_000
# The loop notices a stop after two waits for frames and a run. Shorter than the unit's
# TimeoutStopSec, so that a process whose loop hangs still ends by itself.
JOIN_S: Final = 3.0
# Without a fallback model only a new process helps, and that takes seconds: wait longer, but not
# until the watchdog ends it without a word.
PATIENCE_WITHOUT_FALLBACK: Final = 4
LONGEST_PATIENCE_NS: Final = 3 * NS_PER_S // 2
# A car is parked after this time without a frame, unless its messages say that it drives.
PARKED_NS: Final = 5 * NS_PER_S


class Loop(Protocol):
    """A loop that runs until it is stopped, and reports its progress in `state`."""

    state: LoopState
    guard: RunGuard

    @property
    def take_over(self) -> Callable[[str], None] | None:
        """Lets the fallback model take over, for a reason; None if there is none."""

    def run_forever(self, stop: threading.Event) -> None:
        """Iterate until ``stop`` is set."""


class Ending(Enum):
    """Why the supervisor ended."""

    STOPPED = "stopped"
    RELOAD = "reload"


class Supervisor:
    """Starts the loop in a thread and watches it.

    After `left_behind`, an abandoned thread may still be in the driver: nothing of the device can
    be closed any more, the process can only end.
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
        """Prepare; nothing is started yet.

        Args:
            make_loop: Waits for what the loop needs; None when stopped. Called in its thread.
            state: Of the loop.
            stop: Signals.
            notifier: The service manager.
            run_timeout_s: Longest run before the fallback model takes over.
            reports: Called once a second, in the main thread, with ns of the monotonic clock.
            is_on_road: Whether the car is on the road by its own messages.
            enter_thread: The first act of each thread of the loop.
            each_tick: Cannot wait for a report; its argument is whether the car is parked. Called
                once more when the loop has ended.
            is_remembered: The drive of an earlier process continues with a model that would not be
                chosen now.
            why_no_reload: Why a new process could not start, "" if it could; asked before a reload.
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
        # The one whose run was given up, if there is one.
        self._hung: threading.Thread | None = None
        self._run_ns = 0
        self._stuck_ns = 0
        self._frame_ns = 0
        self._quiet_ns = 0
        self._report_ns = 0
        self._alive_ns = 0
        self._reload_said = False
        self._is_parked = False
        self._is_remembered = is_remembered
        self._why_no_reload = why_no_reload
        # Until a reload is asked for again.
        self._is_refused = False

    def run(self) -> Ending:
        """Run the loop until a signal, or until the process should restart.

        Raises:
            RunTimeoutError: The model hangs, and there is no fallback model.
            Exception: The loop raised it.
        """
        try:
            return self._watch()
        finally:
            # After any end, resources of a living thread must not be closed.
            self.left_behind = self.left_behind or self._thread.is_alive()
            self._each_tick(self._is_parked)

    def _watch(self) -> Ending:
        now_ns = time.monotonic_ns()
        # Until the loop's first wait, progress counts from here.
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
            # A process that is stopped, or gets no processor, sees neither runs nor frames: a tick
            # that came late counts as two at most.
            elapsed_ns = min(now_ns - before_ns, int(2 * tick_s * NS_PER_S))
            self._watch_run(elapsed_ns)
            self._each_tick(self._is_parked)
            self._tell(now_ns)
            if self._wants_reload(elapsed_ns):
                self._stop.event.set()
                self._finish()
                return Ending.RELOAD

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(
            target=self._guarded, args=(work,), name="loop", daemon=True
        )
        self._thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            self._enter_thread()
            work()
        except RunAbandonedError:
            # Another thread has taken over: this one leaves without a word.
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

    def _go_on(self) -> None:
        assert self._loop is not None
        self._loop.run_forever(self._stop.event)

    def _finish(self) -> Ending:
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            self.left_behind = True
            logger.error(
                "the loop did not end within %g s after the signal: the process ends", JOIN_S
            )
        return Ending.STOPPED

    def _watch_run(self, elapsed_ns: int) -> None:
        """Count how long the present run has taken while this process was running, too."""
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
        reason = f"a run has not come back within {self._stuck_ns // 1_000_000} ms"
        if take_over is None:
            raise RunTimeoutError(
                f"model: {reason}, expected it within {self._timeout_ns // 1_000_000}; the device "
                "hangs: the process ends and should be started again"
            )
        take_over(reason)
        self._start(self._go_on)

    def _patience_ns(self, *, has_fallback: bool) -> int:
        """Return how long a run may take."""
        # A run that was left behind and is still there holds the device: it will not come back.
        if has_fallback or (self._hung is not None and self._hung.is_alive()):
            return self._timeout_ns
        longer_ns = min(PATIENCE_WITHOUT_FALLBACK * self._timeout_ns, LONGEST_PATIENCE_NS)
        return max(self._timeout_ns, longer_ns)

    def _tell(self, now_ns: int) -> None:
        state, notifier = self._state, self._notifier
        period_s = notifier.watchdog_s
        # Twice as often as expected, as sd_watchdog_enabled(3) asks for.
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
                logger.exception("a report failed, going on")

    def _look_whether_parked(self, elapsed_ns: int) -> None:
        state = self._state
        frame_ns = max(state.published_ns, state.awaiting_ns)
        if frame_ns != self._frame_ns:
            self._frame_ns, self._quiet_ns = frame_ns, 0
        self._quiet_ns += elapsed_ns
        # A drive may go on that this process has not heard of yet.
        is_idle = frame_ns == 0 and not (state.fallback or self._is_remembered)
        without_frames = is_idle or self._quiet_ns > PARKED_NS
        self._is_parked = without_frames and not self._is_on_road()

    def _wants_reload(self, elapsed_ns: int) -> bool:
        """Return whether to restart: on SIGHUP, or after a drive with another model."""
        self._look_whether_parked(elapsed_ns)
        state, parked = self._state, self._is_parked
        asked = self._stop.reload.is_set()
        if asked and not parked and not self._reload_said:
            self._reload_said = True
            logger.warning("reload deferred until the car is parked")
        # One that could not load the first model and has seen no frame would find the same again.
        after_drive = self._is_remembered or (bool(state.fallback) and state.published > 0)
        if not parked or not (asked or (after_drive and not self._is_refused)):
            return False
        problem = self._why_no_reload()
        if problem:
            self._stop.reload.clear()
            self._reload_said, self._is_refused = False, True
            logger.error("not reloaded, going on as before: %s", problem)
        return not problem


def has_progress(state: LoopState, now_ns: int) -> bool:
    """Return whether the loop iterates, and publishes if there are frames."""
    if now_ns - state.iterated_ns > PROGRESS_NS:
        return False
    awaiting_ns = state.awaiting_ns
    return awaiting_ns == 0 or now_ns - awaiting_ns <= PROGRESS_NS


def tick(state: LoopState, now_ns: int) -> float:
    """Return after how many seconds to look again."""
    is_idle = state.running_ns == 0 and state.awaiting_ns == 0
    return IDLE_TICK_S if is_idle and now_ns - state.published_ns > NS_PER_S else TICK_S


def in_pause(state: LoopState, now_ns: int) -> bool:
    """Return whether the loop has just published, or has no frames."""
    return state.awaiting_ns == 0 and (
        now_ns - state.published_ns < PAUSE_NS or now_ns - state.published_ns > NS_PER_S
    )


def status_line(state: LoopState) -> str:
    """Return the line that `systemctl status` shows."""
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
