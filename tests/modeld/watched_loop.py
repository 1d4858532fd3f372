"""A supervisor with real threads, and a loop that does what a test tells it."""

import threading
import time
from collections.abc import Callable

from modeld.service.notify import Notifier
from modeld.startup import StopSignals
from modeld.state.loop_state import LoopState, Phase, RunGuard
from modeld.supervisor import Supervisor
from tests.modeld.bench import eventually

SOON_S = 20.0
TICK_NS = 50_000_000


class ScriptedLoop:
    """A loop whose runs wait for an event, if a test wants it, or raise."""

    def __init__(self, state: LoopState, *, has_fallback: bool = False) -> None:
        self.state = state
        self.guard = RunGuard(state)
        self.take_over: Callable[[str], None] | None = self.fall_back if has_fallback else None
        self.hangs: threading.Event | None = None
        self.fallback_hangs = False
        self.raises: Exception | None = None
        self.after_hang: list[str] = []

    def fall_back(self, reason: str) -> None:
        self.take_over, self.state.fallback = None, reason
        if not self.fallback_hangs:
            self.hangs = None

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


class Watched:
    """A supervisor of a scripted loop, in a thread or called by hand."""

    def __init__(
        self, *, has_fallback: bool = False, hangs: bool = False, run_timeout_s: float = 0.2
    ) -> None:
        self.state = LoopState(model="a")
        self.loop = ScriptedLoop(self.state, has_fallback=has_fallback)
        self.hang = threading.Event()
        self.loop.hangs = self.hang if hangs else None
        self.stop = StopSignals()
        self.on_road, self.problem = False, ""
        self.reports: list[int] = []
        self.entered: list[str] = []
        self.supervisor = Supervisor(
            lambda: self.loop,
            self.state,
            self.stop,
            Notifier(),
            run_timeout_s=run_timeout_s,
            reports=(self.reports.append,),
            is_on_road=lambda: self.on_road,
            enter_thread=lambda: self.entered.append(threading.current_thread().name),
        )
        self.outcome: list[object] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.outcome.append(self.supervisor.run())
        except Exception as error:  # noqa: BLE001 -- whatever it is, the test looks at it
            self.outcome.append(error)

    def start(self, until: Callable[[], object]) -> None:
        self.thread.start()
        eventually(until)

    def end(self) -> object:
        self.stop.event.set()
        return self.end_by_itself()

    def end_by_itself(self) -> object:
        if not self.thread.ident:
            self.thread.start()
        self.thread.join(SOON_S)
        return self.outcome[0]

    def watch_run(self, ticks: int) -> None:
        """See one run in so many ticks."""
        self.supervisor._loop, self.state.running_ns = self.loop, 77
        self.supervisor._watch_run(0)
        for _ in range(ticks):
            self.supervisor._watch_run(TICK_NS)
