"""The invariants of a soak, judged once it is over on all that was heard, and while it goes on."""

import time
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tests.faults.recorder import Message
from tests.faults.service import Life
from tests.faults.world import FALLBACK_MPS, PRIMARY_MPS, World
from tests.soak.kinds import Kind
from tests.soak.standstill import Standstill, stood_still_ns
from tools.bench.daemon import Usage, usage_of

NS_PER_S = 1_000_000_000
# Of an undisturbed daemon: half a second is ten frames, far beyond a hiccup of this machine.
LONGEST_GAP_NS = NS_PER_S // 2
# From a frame's sending to the arrival of its message; a slow run takes 120 ms.
OLDEST_NS = NS_PER_S // 2
# Of a process: what it may grow by from its 20th second on.
MOST_MIB, MOST_FDS = 3.0, 8
SETTLED_S = 20.0
# Status comes once a second, and the watchdog wants to hear at least as often.
LONGEST_SILENCE_NS = 5 * NS_PER_S // 2


def count_dropped(messages: list[Message]) -> int:
    """Frames without a message, between the first and the last that has one."""
    return sum(after.frame_id - before.frame_id - 1 for before, after in pairwise(messages))


@dataclass(slots=True)
class Fault:
    """One fault of the run.

    Attributes:
        planned_s: from the start of the soak, by the seed.
        kind: of the fault.
        start_ns: when it began.
        healed_ns: when it was taken back.
        valid_ns: when valid messages came again; 0 if they did not.
        end_ns: when the world was as before.
    """

    planned_s: float
    kind: Kind
    start_ns: int = 0
    healed_ns: int = 0
    valid_ns: int = 0
    end_ns: int = 0


@dataclass(slots=True)
class Sample:
    """What a process held at a time."""

    at_ns: int
    life: Life
    usage: Usage


@dataclass(slots=True)
class Watch:
    """Collects while the soak runs, judges afterwards.

    Attributes:
        model_is_known: whether it is the small one, whose speed tells it from the fallback.
        faults: in order.
        samples: about one a second, of healthy moments.
        violations: one line each.
        standstills: when the machine itself stood still; nobody is late by that.
        slack: factor on the bounds of the table, for machines with other work.
    """

    world: World
    start_ns: int
    model_is_known: bool = True
    faults: list[Fault] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    standstills: list[Standstill] = field(default_factory=list)
    slack: float = 1.0

    def violate(self, at_ns: int, text: str) -> None:
        """Note that a promise was broken."""
        self.violations.append(f"{(at_ns - self.start_ns) / NS_PER_S:.1f} s: {text}")

    def sample(self) -> None:
        life = self.world.service.life
        try:
            self.samples.append(Sample(time.monotonic_ns(), life, usage_of(life.pid)))
        except (OSError, StopIteration):
            return  # it has just ended

    def judge(self, end_ns: int) -> None:
        """Check all that was heard from the start of the soak to its end."""
        messages = [m for m in self.world.recorder.since(self.start_ns) if m.arrived_ns <= end_ns]
        self._judge_messages(messages)
        self._judge_gaps(messages, end_ns)
        for fault in self.faults:
            self._judge_fault(fault, messages)
        if not self.faults and (dropped := count_dropped(messages)):
            self.violate(end_ns, f"{dropped} frames dropped, and nothing was wrong")
        self._judge_growth()
        self._judge_lives(end_ns)
        if self.world.recorder.unreadable:
            self.violate(end_ns, f"{self.world.recorder.unreadable} unreadable messages")

    def span_ns(self, start_ns: int, end_ns: int) -> int:
        """Return how long it is from one time to another, without standstills of the machine."""
        return end_ns - start_ns - stood_still_ns(self.standstills, start_ns, end_ns)

    def resumed_s(self, fault: Fault) -> float:
        """Return the time from a fault's end to the first valid message; inf if there was none."""
        if not fault.valid_ns:
            return float("inf")
        return self.span_ns(fault.healed_ns, fault.valid_ns) / NS_PER_S

    def disturbed(self, at_ns: int) -> Fault | None:
        """The fault that a time lies in, from its start until the world was as before."""
        return next((f for f in self.faults if f.start_ns <= at_ns <= (f.end_ns or at_ns)), None)

    def _judge_messages(self, messages: list[Message]) -> None:
        """No frame twice, none out of order, none stale, each valid where nothing is wrong."""
        others: list[Message] = []
        invalid: list[Message] = []
        for before, message in pairwise(messages):
            at_ns, fault = message.arrived_ns, self.disturbed(message.arrived_ns)
            # Only cameras that count anew may make ids fall, and these are restarted by a fault.
            may_fall = fault is not None and fault.kind.moves_ids
            if message.frame_id <= before.frame_id and not may_fall:
                self.violate(at_ns, f"frame {message.frame_id} after {before.frame_id}")
            if message.frame_id == before.frame_id and message.valid and before.valid:
                self.violate(at_ns, f"frame {message.frame_id} twice, both valid")
            age_ns = self.span_ns(message.timestamp_eof_ns, at_ns)
            if age_ns > OLDEST_NS and not (fault is not None and fault.kind.ages):
                self.violate(at_ns, f"frame {message.frame_id} is {age_ns / 1e6:.0f} ms old")
            if fault is not None:
                continue
            if not message.valid:
                invalid.append(message)
            if self.model_is_known and abs(message.speed_mps - PRIMARY_MPS) > 1.0:
                others.append(message)
        for wrong, what in ((invalid, "not valid"), (others, "not of the primary model")):
            if wrong:
                self.violate(
                    wrong[0].arrived_ns,
                    f"frame {wrong[0].frame_id} is {what} without a fault; so many: {len(wrong)}",
                )

    def _judge_gaps(self, messages: list[Message], end_ns: int) -> None:
        """Without a fault messages never cease."""
        arrivals = [self.start_ns, *(m.arrived_ns for m in messages), end_ns]
        for before_ns, after_ns in pairwise(arrivals):
            touched = any(
                f.start_ns <= after_ns and before_ns <= (f.end_ns or end_ns) for f in self.faults
            )
            gap_ns = self.span_ns(before_ns, after_ns)
            if gap_ns > LONGEST_GAP_NS and not touched:
                self.violate(before_ns, f"nothing for {gap_ns / 1e9:.2f} s")

    def _judge_fault(self, fault: Fault, messages: list[Message]) -> None:
        """What was heard during a fault, and when it was over."""
        kind, row = fault.kind, fault.kind.row
        resumed_s = self.resumed_s(fault)
        if not resumed_s <= self.slack * row.within_s:
            self.violate(
                fault.healed_ns,
                f"{row.fault}: valid again after {resumed_s:.2f} s, at most {row.within_s:g}",
            )
        grace_ns = fault.start_ns + int(kind.grace_s * NS_PER_S)
        during = [m for m in messages if grace_ns < m.arrived_ns < fault.healed_ns]
        wrong = {
            "anything": [],
            "invalid": [m for m in during if m.valid],
            "valid": [m for m in during if not m.valid],
            "nothing": during,
        }[kind.meanwhile]
        if wrong:
            self.violate(
                wrong[0].arrived_ns,
                f"{row.fault}: expected {kind.meanwhile} meanwhile, got {len(wrong)} others",
            )
        if kind.falls_back:
            late = [m for m in messages if fault.valid_ns <= m.arrived_ns <= fault.end_ns]
            slow = [m for m in late if m.valid and abs(m.speed_mps - FALLBACK_MPS) < 1.0]
            if not slow:
                self.violate(fault.valid_ns, f"{row.fault}: the fallback model did not speak")

    def growth(self) -> list[tuple[Life, float, float, int]]:
        """Of each process that lived long enough: its seconds, growth in MiB and in descriptors.

        Growth is the slope of a line through the samples, times their span: one high sample is no
        leak.
        """
        found = []
        for life in self.world.service.lives:
            mine = [
                s
                for s in self.samples
                if s.life is life and s.at_ns - life.started_ns > SETTLED_S * NS_PER_S
            ]
            if len(mine) < 30:
                continue
            at_s = np.array([(s.at_ns - life.started_ns) / NS_PER_S for s in mine])
            span_s = float(at_s[-1] - at_s[0])
            mib = np.polyfit(at_s, [s.usage.rss_mib for s in mine], 1)[0] * span_s
            fds = np.polyfit(at_s, [float(s.usage.fds) for s in mine], 1)[0] * span_s
            found.append((life, span_s, float(mib), round(float(fds))))
        return found

    def _judge_growth(self) -> None:
        for life, _, mib, fds in self.growth():
            if mib > MOST_MIB or fds > MOST_FDS:
                self.violate(
                    life.started_ns,
                    f"process {life.pid} grew by {mib:.1f} MiB and {fds} descriptors",
                )

    def _judge_lives(self, end_ns: int) -> None:
        """Ends are those that faults cause; nobody falls silent; no defect is logged."""
        service = self.world.service
        for life in service.lives:
            if life.code is None or life.ended_ns > end_ns:
                continue
            fault = self.disturbed(life.ended_ns)
            if fault is None or life.code not in fault.kind.codes:
                what = "nothing" if fault is None else fault.kind.row.fault
                self.violate(life.ended_ns, f"ended with {life.code} during: {what}")
            if life.by_watchdog and -6 not in (fault.kind.codes if fault else ()):
                self.violate(life.ended_ns, "ended by the watchdog")
        for name, lines in (
            ("STATUS", service.statuses(self.start_ns)),
            ("WATCHDOG", service.pings(self.start_ns)),
        ):
            for before, after in pairwise([line.arrived_ns for line in lines]):
                quiet = any(
                    f.start_ns <= after and before <= (f.end_ns or end_ns) for f in self.faults
                )
                if self.span_ns(before, after) > LONGEST_SILENCE_NS and not quiet:
                    self.violate(before, f"no {name} for {(after - before) / 1e9:.1f} s")
            if not lines:
                self.violate(end_ns, f"no {name} at all")
        for line in service.lines("Traceback|unexpected", self.start_ns):
            self.violate(line.arrived_ns, f"logged: {line.text}")
