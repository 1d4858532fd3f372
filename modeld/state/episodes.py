"""Lasting faults as a few lines in the log: when one begins, now and then, and at its end.

Everything is judged by a clock that is passed in, and never by counts of frames, so that a line
means the same at any rate. Of one kind there is never more than one line a second.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from cereal.clock import Clock
from modeld.state.loop_state import Fault, LoopState

NS_PER_S: Final = 1_000_000_000
# Between two lines of one kind at the least, whatever flaps.
SHORTEST_NS: Final = NS_PER_S
# While it lasts, one line after so long, then after twice as long each, up to the longest: an hour
# without a camera is 11 lines.
REPEAT_NS: Final = 10 * NS_PER_S
LONGEST_REPEAT_NS: Final = 600 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault that lasts for a while."""

    name: str  # unique in a loop
    over: str = ""  # at the end, before how long it took; "" says nothing
    unit: str = "times"  # of the count: "waits", "frames"
    fault: Fault | None = None  # counted with each occurrence
    level: int = logging.ERROR  # of the lines while it lasts; the end is a warning
    patience_ns: int = 0  # how long it may last without a line
    quiet_ns: int = SHORTEST_NS  # without an occurrence until it is over; a second at least


@dataclass(slots=True, eq=False)
class _Episode:
    """One kind's present or last episode."""

    kind: Kind
    begin_ns: int = 0  # of the first occurrence
    last_ns: int = 0  # of the last occurrence
    times: int = 0  # occurrences since it began
    due_ns: int = 0  # no line before
    said_ns: int = 0  # of the last line
    repeat_ns: int = REPEAT_NS  # from the next line to the one after
    is_said: bool = False  # there has been a line since it began
    is_over: bool = False  # known to be; the line is due a second after the one before

    def so_far(self) -> str:
        lasted_s = (self.last_ns - self.begin_ns) / NS_PER_S
        return f"{lasted_s:.1f} s, {self.times} {self.kind.unit}"


@dataclass(slots=True)
class Episodes:
    """All kinds of one loop, whose faults `state` counts.

    Each occurrence is reported; an episode is over when nothing has happened for a second, which
    `settle` finds. Nothing grows: there is one record a kind.
    """

    clock: Clock
    logger: logging.Logger
    state: LoopState
    _all: dict[str, _Episode] = field(default_factory=dict)
    _active: list[_Episode] = field(default_factory=list)

    def happen(self, kind: Kind, text: str, waited_ns: int = 0) -> None:
        """Report an occurrence with one line of text; the first one begins an episode.

        It took `waited_ns` to notice it.
        """
        now_ns = self.clock.now_ns()
        if kind.fault is not None:
            self.state.count(kind.fault)
        episode = self._all.setdefault(kind.name, _Episode(kind))
        if now_ns < episode.last_ns:
            self._begin_anew(episode)
        if episode not in self._active:
            self._active.append(episode)
            episode.begin_ns, episode.times = now_ns - waited_ns, 0
            episode.due_ns = max(episode.due_ns, episode.begin_ns + kind.patience_ns)
            episode.is_said, episode.repeat_ns = False, REPEAT_NS
        episode.last_ns, episode.is_over = now_ns, False
        episode.times += 1
        self._say_known_ends(now_ns)
        if now_ns < episode.due_ns:
            return
        lasting = f" ({episode.so_far()})" if episode.times > 1 else ""
        self.logger.log(kind.level, "%s%s", text, lasting, extra={"kind": kind.name})
        if episode.is_said:
            episode.repeat_ns = min(2 * episode.repeat_ns, LONGEST_REPEAT_NS)
        episode.is_said, episode.said_ns = True, now_ns
        episode.due_ns = now_ns + episode.repeat_ns

    def settle(self) -> None:
        """Find what is over, and say so; call it after each iteration that did its work."""
        if not self._active:
            return
        now_ns = self.clock.now_ns()
        for episode in tuple(self._active):
            kind = episode.kind
            if now_ns < episode.last_ns:
                self._begin_anew(episode)
                continue
            if now_ns - episode.last_ns < max(kind.quiet_ns, SHORTEST_NS):
                continue
            # One that came right after another was not said when it began; its end tells of it.
            was_short = episode.last_ns - episode.begin_ns < kind.patience_ns
            if kind.over and (episode.is_said or not was_short):
                if not episode.is_said and now_ns < episode.due_ns:
                    continue
                self._say_over(episode, now_ns)
            elif episode.is_said:
                episode.due_ns = 0
            self._active.remove(episode)

    def end(self, kind: Kind) -> None:
        """Report that it is over, where that is known; at once, if the last line is old enough."""
        episode = self._all.get(kind.name)
        if episode is None or episode not in self._active:
            return
        now_ns = self.clock.now_ns()
        episode.is_over = episode.is_said
        self._say_known_ends(now_ns)

    def _say_known_ends(self, now_ns: int) -> None:
        """Log known ends once the last line is a second old, as they might flap."""
        for episode in tuple(self._active):
            if episode.is_over and now_ns - episode.said_ns >= SHORTEST_NS:
                self._active.remove(episode)
                self._say_over(episode, now_ns)

    def _say_over(self, episode: _Episode, now_ns: int) -> None:
        kind = episode.kind
        self.logger.warning("%s after %s", kind.over, episode.so_far(), extra={"kind": kind.name})
        episode.due_ns = now_ns + SHORTEST_NS

    def _begin_anew(self, episode: _Episode) -> None:
        """Forget an episode of another time: a replay has set its clock back."""
        if episode in self._active:
            self._active.remove(episode)
        episode.due_ns = episode.last_ns = 0
