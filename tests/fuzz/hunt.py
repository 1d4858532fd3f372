"""Runs many programs on several processes; each that is wrong is told with its name."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.fuzz.batch import Outcome
from tests.fuzz.case import Name
from tests.fuzz.compare import Counts
from tests.fuzz.kinds import KINDS
from tests.fuzz.worker import DiedError, Worker

# Of a batch, and of one program: PoCL needs a second for the largest.
BATCH_SECONDS: Final = 300.0
PROGRAM_SECONDS: Final = 60.0
# Lengths that are tried to find the shortest program that is still wrong.
SHORTER: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17)


@dataclass
class Totals:
    """What was run and found so far; guarded by a lock where it is shared.

    Attributes:
        programs: by kind and target.
        counts: elements compared, by kind.
        wrong: outcomes with a problem, shortest program of each.
        digests: of results that are the same wherever they are computed, by name of the program.
        started_s: when the hunt began.
    """

    programs: Counter[tuple[str, str]] = field(default_factory=Counter)
    counts: dict[str, Counts] = field(default_factory=dict)
    wrong: list[Outcome] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    started_s: float = field(default_factory=time.perf_counter)

    def add(self, outcome: Outcome) -> None:
        name = outcome.name
        self.programs[name.kind, name.row] += 1
        self.counts.setdefault(name.kind, Counts()).add(outcome.counts)
        if outcome.problem:
            self.wrong.append(outcome)
        elif KINDS[name.kind].equal and outcome.digest:
            self.digests[str(name)] = outcome.digest

    @property
    def seconds(self) -> float:
        """Since the hunt began."""
        return time.perf_counter() - self.started_s


@dataclass(frozen=True)
class Plan:
    """What to run.

    Attributes:
        kinds: by name.
        programs: how many, all kinds together.
        seconds: after which no batch is begun; 0 for no limit.
        seed: first seed of every kind.
        jobs: processes.
        plant: see `planted`.
    """

    kinds: tuple[str, ...]
    programs: int
    seconds: float = 0.0
    seed: int = 0
    jobs: int = 2
    plant: str = ""


def batches(plan: Plan) -> Iterator[list[Name]]:
    """Yield names of one kind and target at a time, kinds in turn and in proportion to shares."""
    shares = {kind: KINDS[kind].share for kind in plan.kinds}
    left = {k: -(-plan.programs * s // sum(shares.values())) for k, s in shares.items()}
    seeds = dict.fromkeys(plan.kinds, plan.seed)
    turn = Counter[str]()
    whole = dict(left)
    while any(left.values()):
        kind = max(left, key=lambda k: left[k] / max(1, whole[k]))
        one = KINDS[kind]
        count = min(one.batch, left[kind])
        row = one.rows[turn[kind] % len(one.rows)]
        yield [Name(kind, row, seeds[kind] + i) for i in range(count)]
        left[kind] -= count
        seeds[kind] += count
        turn[kind] += 1


def run_names(worker: Worker, names: Sequence[Name]) -> list[Outcome]:
    """Run programs together; one by one where the process died or nothing could be built."""
    problem = ""
    try:
        return worker.run(names, PROGRAM_SECONDS if len(names) == 1 else BATCH_SECONDS)
    except DiedError as error:
        problem = str(error)
    if len(names) == 1:
        return [Outcome(names[0], problem)]
    middle = len(names) // 2
    return run_names(worker, names[:middle]) + run_names(worker, names[middle:])


def shrink(worker: Worker, outcome: Outcome) -> Outcome:
    """Return the shortest beginning of a program that is wrong; the program itself if none is."""
    if outcome.name.steps:
        return outcome
    for steps in SHORTER:
        (shorter,) = run_names(worker, [replace(outcome.name, steps=steps)])
        if shorter.problem:
            return shorter
    return outcome


def hunt(plan: Plan, told: Callable[[Totals, Outcome | None], None]) -> Totals:
    """Run a plan.

    Args:
        plan: what to run.
        told: is called with what was found so far after each batch, and with each outcome that is
            wrong when it is found.
    """
    totals, lock, source = Totals(), threading.Lock(), batches(plan)

    def work(number: int, directory: Path) -> None:
        worker = Worker(directory, number, plan.plant)
        try:
            while not plan.seconds or totals.seconds < plan.seconds:
                with lock:
                    names = next(source, None)
                if names is None:
                    return
                outcomes = run_names(worker, names)
                outcomes = [shrink(worker, o) if o.problem else o for o in outcomes]
                with lock:
                    for outcome in outcomes:
                        totals.add(outcome)
                        if outcome.problem:
                            told(totals, outcome)
                    told(totals, None)
        finally:
            worker.stop()

    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        threads = [
            threading.Thread(target=work, args=(i, Path(directory))) for i in range(plan.jobs)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return totals
