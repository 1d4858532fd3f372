"""Runs a soak: deals faults from a seed, waits until each is over, and watches meanwhile."""

import random
import sys
import threading
import time

from tests.faults.world import PRIMARY_MPS, World
from tests.soak.kinds import KINDS, Kind
from tests.soak.standstill import Heart
from tests.soak.watch import NS_PER_S, Fault, Watch
from tests.support.waiting import until

# A fault that is not over by then has broken its promise; the run goes on with the next one.
LONGEST_WAIT_S = 30.0
# After a fault messages are well for so long, before the next one: what lingers is noticed.
PAUSE_S = 1.5


def deal(seed: int, seconds: float, per_minute: float) -> list[Fault]:
    """Return the faults of a soak and when they are to begin.

    Kinds come from a shuffled deck, so that each has come before any comes again. Times lie one
    period apart, moved by up to a third of it.
    """
    rng = random.Random(seed)  # noqa: S311 -- a repeatable choice
    period_s = 60.0 / per_minute
    faults: list[Fault] = []
    deck: list[Kind] = []
    for number in range(int(seconds / period_s)):
        if not deck:
            deck = list(KINDS)
            rng.shuffle(deck)
        planned_s = (number + 0.5 + rng.uniform(-1, 1) / 3) * period_s
        faults.append(Fault(planned_s, deck.pop()))
    return faults


def soak(world: World, seed: int, seconds: float, per_minute: float, slack: float = 1.0) -> Watch:
    """Disturb a world that is well; return what was seen, judged."""
    watch = Watch(world, time.monotonic_ns(), model_is_known=per_minute > 0, slack=slack)
    heart, stop = Heart(), threading.Event()
    sampler = threading.Thread(target=_sample, args=(watch, stop), daemon=True)
    sampler.start()
    faults = deal(seed, seconds, per_minute) if per_minute > 0 else []
    end_ns = watch.start_ns + int(seconds * NS_PER_S)
    for number, fault in enumerate(faults):
        _sleep_until(watch.start_ns + int(fault.planned_s * NS_PER_S))
        if time.monotonic_ns() > end_ns:
            break
        _progress(watch, number, len(faults), fault)
        # Each fault has random numbers of its own, so that it does not depend on how long others
        # took.
        _inject(watch, fault, random.Random(f"{seed} {number}"))  # noqa: S311 -- as above
    while time.monotonic_ns() < end_ns:
        _sleep_until(min(end_ns, time.monotonic_ns() + 60 * NS_PER_S))
        _progress(watch, len(watch.faults), len(faults), None)
    stop.set()
    sampler.join()
    watch.standstills = heart.stop()
    watch.judge(time.monotonic_ns())
    return watch


def _inject(watch: Watch, fault: Fault, rng: random.Random) -> None:
    world = watch.world
    fault.start_ns = time.monotonic_ns()
    watch.faults.append(fault)
    fault.healed_ns = fault.kind.disturb(world, rng)
    fault.valid_ns = _wait_valid(world, fault.healed_ns)
    if fault.kind.falls_back:
        # That the primary one does not come back by itself.
        time.sleep(1.0)
        _end_drive(watch)
    if not fault.valid_ns:
        _mend(world)
    time.sleep(PAUSE_S)
    # Of the pause itself only the first moments belong to the fault.
    fault.end_ns = time.monotonic_ns() - int(PAUSE_S / 2 * NS_PER_S)


def _wait_valid(world: World, start_ns: int) -> int:
    """Wait for three valid messages in a row; return when the first came, 0 for none."""
    first = until(lambda: world.recorder.valid_again(start_ns), LONGEST_WAIT_S)
    return first.arrived_ns if first else 0


def _end_drive(watch: Watch) -> None:
    """Park, as a car does at the end of a drive, until the primary model is back."""
    world = watch.world
    world.control.clear()
    start_ns = time.monotonic_ns()
    world.vehicle.changes["deviceState"] = {"started": False}
    world.cameras.paused.update(("road", "wideRoad"))
    until(lambda: world.service.told("READY=1", start_ns), LONGEST_WAIT_S)
    world.vehicle.reset()
    world.cameras.reset()
    resumed_ns = time.monotonic_ns()
    if not _wait_valid(world, resumed_ns):
        watch.violate(resumed_ns, "nothing valid after the drive had ended")
    elif abs(world.recorder.messages[-1].speed_mps - PRIMARY_MPS) > 1.0:
        watch.violate(resumed_ns, "the primary model is not back after the drive had ended")


def _mend(world: World) -> None:
    """Begin again from scratch, so that one broken promise is not counted again and again."""
    world.control.clear()
    world.cameras.reset()
    world.vehicle.reset()
    world.cameras.restart()
    if world.service.life.code is None:
        world.service.signal(9, asked=True)
    time.sleep(1.0)
    if world.service.life.code is not None:
        world.service.start()
    _wait_valid(world, time.monotonic_ns())


def _sample(watch: Watch, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        if watch.disturbed(time.monotonic_ns()) is None:
            watch.sample()


def _sleep_until(due_ns: int) -> None:
    time.sleep(max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S))


def _progress(watch: Watch, number: int, count: int, fault: Fault | None) -> None:
    elapsed_s = (time.monotonic_ns() - watch.start_ns) / NS_PER_S
    what = "" if fault is None else f": {fault.kind.row.fault}"
    print(f"{elapsed_s:6.0f} s  fault {number} of {count}{what}", file=sys.stderr, flush=True)
