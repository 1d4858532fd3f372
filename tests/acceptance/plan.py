"""What is driven: the runs of the acceptance, each one command, and what must come of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
GATES = ROOT / "tests/regression"
# Which interface the small models of random weights have: that of the trained one.
RANDOM_INTERFACE = "split-2025"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is driven.

    Attributes:
        roads: with the daemon process.
        km: of each road.
        rate_hz: of the daemon process; None: real time.
        recoveries: trials that begin off the lane.
        leads: trials behind a car that stops.
        scenario_drives: of each scenario.
        scenario_km: of each of these, where the scenario has no length of its own.
        fault_roads: driven once without a fault and once with each.
        fault_km: of each.
        workers: processes that drive at a time where the daemon's code runs in them.
        seed: of the first drive of each kind.
    """

    roads: int = 20
    km: float = 2.0
    rate_hz: float | None = None
    recoveries: int = 200
    leads: int = 100
    scenario_drives: int = 2
    scenario_km: float = 1.0
    fault_roads: int = 3
    fault_km: float = 0.5
    workers: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One command.

    Attributes:
        name: of its files.
        what: for people.
        options: of ``modeld drive``, without model and files.
        model: whose: "trained", "random", or "" where nobody's.
        gates: file of gates; None: none.
        fails: whether the gates must not hold: a test of the test.
    """

    name: str
    what: str
    options: tuple[str, ...]
    model: str = "trained"
    gates: Path | None = None
    fails: bool = False


def runs_of(sizes: Sizes) -> tuple[Run, ...]:
    seed, many = ("--seed", str(sizes.seed)), ("--workers", str(sizes.workers))
    rate = () if sizes.rate_hz is None else ("--rate-hz", f"{sizes.rate_hz:g}")
    roads = (*seed, "--drives", str(sizes.roads), "--km", f"{sizes.km:g}")
    recovery = (*seed, "--scenario", "recovery", "--drives")
    lead = (*seed, "--scenario", "stopping-lead", "--drives")
    faults = ("--drives", str(sizes.fault_roads), "--km", f"{sizes.fault_km:g}")
    on_roads, back, behind = (
        GATES / f"{name}.gates" for name in ("lane-keeping", "recovery", "stopping-lead")
    )
    each = ("--drives", str(sizes.scenario_drives), "--km", f"{sizes.scenario_km:g}")
    few = (*seed, "--drives", "2", "--km", "0.25", *many)
    return (
        Run("recovery", "back to the lane", (*recovery, str(sizes.recoveries), *many), gates=back),
        Run("stopping-lead", "a lead that stops", (*lead, str(sizes.leads), *many), gates=behind),
        Run("roads", "roads, the daemon process", (*roads, "--live", *rate), gates=on_roads),
        Run("expert", "the same roads, the expert", (*roads, "--expert"), "", on_roads),
        Run("random-roads", "roads, random weights", few, "random", on_roads, fails=True),
        Run(
            "random-recovery",
            "back to the lane, random weights",
            (*recovery, "4", *many),
            "random",
            back,
            fails=True,
        ),
        Run(
            "random-lead",
            "a lead that stops, random weights",
            (*lead, "4", *many),
            "random",
            behind,
            fails=True,
        ),
        Run("scenarios", "each scenario", (*seed, "--scenario", "all", *each, *many)),
        Run("faults", "planted faults", (*seed, "--fault", "all", *faults, *many)),
    )


def chosen(runs: Iterable[Run], names: Iterable[str]) -> tuple[Run, ...]:
    """Return the runs of these names; all where there is none."""
    by_name = {run.name: run for run in runs}
    wanted = list(dict.fromkeys(names)) or list(by_name)
    for name in wanted:
        if name not in by_name:
            raise ValueError(f"{name}: expected one of {', '.join(by_name)}, found another name")
    return tuple(by_name[name] for name in wanted)
