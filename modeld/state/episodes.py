"""Logs a lasting fault in a few lines: at its beginning, at growing intervals, and at its end.

An episode is the time from the first occurrence of a kind of fault to its end. It is timed by a
clock that is passed in, not by counting frames, so a line means the same at any frame rate. Each
kind is logged at most once a second.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from cereal.clock import Clock
from modeld.state.loop_state import Fault, LoopState

NS_PER_S: Final = 1_000_000_000
# Shortest interval between two lines of one kind.
SHORTEST_NS: Final = NS_PER_S
# While a fault lasts, the interval between lines starts at REPEAT_NS and doubles up to
# LONGEST_REPEAT_NS. An hour without a camera is 11 lines.
REPEAT_NS: Final = 10 * NS_PER_S
LONGEST_REPEAT_NS: Final = 600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault that can last for a while."""

    name: str  # unique in a loop
    over: str = ""  # text of the last line, before the duration; "" omits that line
    unit: str = "times"  # unit of the number of occurrences, such as "frames"
    fault: Fault | None = None  # counted with each occurrence
    level: int = logging.ERROR  # log level while it lasts; the end is a warning
    patience_ns: int = 0  # time for which it is not logged
    quiet_ns: int = SHORTEST_NS  # it is over after this time without one; at least a second


@dataclass(slots=True, eq=False)
class _Episode:
    """The current or last episode of one kind."""

    kind: Kind
    begin_ns: int = 0  # time of the first occurrence
    last_ns: int = 0  # time of the last occurrence
    times: int = 0  # number of occurrences since it began
    due_ns: int = 0  # earliest time of the next line
    logged_ns: int = 0  # time of the last line
    repeat_ns: int = REPEAT_NS  # interval that follows the next line
    is_logged: bool = False  # it has been logged since it began
    is_over: bool = False  # reported as over by `Episodes.end`, but not yet logged

    def so_far(self) -> str:
        lasted_s = (self.last_ns - self.begin_ns) / NS_PER_S
        return f"{lasted_s:.1f} s, {self.times} {self.kind.unit}"


@dataclass(slots=True)
class Episodes:
    """The episodes of all kinds in one loop.

    Report each occurrence with `happen`. An episode ends with `end`, or when there is no occurrence
    for a second or the kind's `quiet_ns`, which `settle` detects.
    """

    clock: Clock
    logger: logging.Logger
    state: LoopState  # counts the faults
    _all: dict[str, _Episode] = field(default_factory=dict)
    _active: list[_Episode] = field(default_factory=list)

    def happen(self, kind: Kind, text: str, waited_ns: int = 0) -> None:
        """Report an occurrence with one line of text; the first one begins an episode.

        The fault began `waited_ns` before it was noticed.
        """
        now_ns = self.clock.now_ns()
        if kind.fault is not None:
            self.state.count(kind.fault)
        episode = self._all.setdefault(kind.name, _Episode(kind))
        if now_ns < episode.last_ns:
            self._discard(episode)
        if episode not in self._active:
            self._active.append(episode)
            episode.begin_ns, episode.times = now_ns - waited_ns, 0
            episode.due_ns = max(episode.due_ns, episode.begin_ns + kind.patience_ns)
            episode.is_logged, episode.repeat_ns = False, REPEAT_NS
        episode.last_ns, episode.is_over = now_ns, False
        episode.times += 1
        self._log_reported_ends(now_ns)
        if now_ns < episode.due_ns:
            return
        lasting = f" ({episode.so_far()})" if episode.times > 1 else ""
        self.logger.log(kind.level, "%s%s", text, lasting, extra={"kind": kind.name})
        if episode.is_logged:
            episode.repeat_ns = min(2 * episode.repeat_ns, LONGEST_REPEAT_NS)
        episode.is_logged, episode.logged_ns = True, now_ns
        episode.due_ns = now_ns + episode.repeat_ns

    def settle(self) -> None:
        """End the episodes without recent occurrences; call after each successful iteration."""
        if not self._active:
            return
        now_ns = self.clock.now_ns()
        for episode in tuple(self._active):
            kind = episode.kind
            if now_ns < episode.last_ns:
                self._discard(episode)
                continue
            if now_ns - episode.last_ns < max(kind.quiet_ns, SHORTEST_NS):
                continue
            # An episode right after another was not logged when it began; the line of its end
            # reports it.
            was_short = episode.last_ns - episode.begin_ns < kind.patience_ns
            if kind.over and (episode.is_logged or not was_short):
                if not episode.is_logged and now_ns < episode.due_ns:
                    continue
                self._log_end(episode, now_ns)
            elif episode.is_logged:
                episode.due_ns = 0
            self._active.remove(episode)

    def end(self, kind: Kind) -> None:
        """Report that an episode is over; it is logged once the last line is a second old."""
        episode = self._all.get(kind.name)
        if episode is None or episode not in self._active:
            return
        now_ns = self.clock.now_ns()
        episode.is_over = episode.is_logged
        self._log_reported_ends(now_ns)

    def _log_reported_ends(self, now_ns: int) -> None:
        """Log the reported ends once the last line is a second old, in case the fault flaps."""
        for episode in tuple(self._active):
            if episode.is_over and now_ns - episode.logged_ns >= SHORTEST_NS:
                self._active.remove(episode)
                self._log_end(episode, now_ns)

    def _log_end(self, episode: _Episode, now_ns: int) -> None:
        kind = episode.kind
        self.logger.warning("%s after %s", kind.over, episode.so_far(), extra={"kind": kind.name})
        episode.due_ns = now_ns + SHORTEST_NS

    def _discard(self, episode: _Episode) -> None:
        """Forget an episode, because a replay has set its clock back."""
        if episode in self._active:
            self._active.remove(episode)
        episode.due_ns = episode.last_ns = 0
