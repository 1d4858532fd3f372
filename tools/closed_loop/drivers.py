"""Who drives: the interface, the loop, and the expert that knows the road.

A driver is asked once a frame; its answer takes effect `ANSWER_S` later: a device needs its time.
"""

from __future__ import annotations

from typing import Protocol

from modeld.outputs.actions import Action
from tools.closed_loop.simulation import TICKS_PER_FRAME, Simulation, Track
from tools.world.car import TICK_S
from tools.world.expert import Expert, command

# From the moment that a picture shows to that in which its answer reaches the car: warp, model,
# bus. A device takes 30 to 50 ms.
ANSWER_TICKS = 4
ANSWER_S = ANSWER_TICKS * TICK_S


class Driver(Protocol):
    """Who is asked what to do."""

    answered: int
    """Frames so far to which there was a valid answer."""

    def tick(self) -> None:
        """See what the car does; called every 10 ms, also at the beginning."""

    def answer(self) -> Action | None:
        """Return what is to be done, at a frame; None: what is done is gone on with."""

    def close(self) -> None:
        """The drive is over."""


def drive(simulation: Simulation, driver: Driver) -> Track:
    """Drive to the end.

    Args:
        simulation: at its beginning.
        driver: of this drive.
    """
    driver.tick()
    while simulation.end is None:
        action = driver.answer()
        for tick in range(TICKS_PER_FRAME):
            if tick == ANSWER_TICKS and action is not None:
                simulation.action = action
            simulation.tick()
            driver.tick()
    return simulation.track


class ExpertDriver:
    """The expert of the world: knows the road, sees every car, and drives the same car.

    Args:
        simulation: the drive.
    """

    def __init__(self, simulation: Simulation) -> None:
        trial = simulation.trial
        self.answered = 0
        self._simulation = simulation
        self._lane = trial.lane
        self._expert = Expert(trial.world, trial.lane, simulation.set_speed_mps)

    def tick(self) -> None:
        """Know everything already."""

    def answer(self) -> Action | None:
        """Plan, and read the command from the plan as the daemon does."""
        simulation = self._simulation
        if simulation.lane != self._lane:
            self._expert.change_lane(simulation.lane - self._lane, simulation.time_s)
            self._lane = simulation.lane
        plan = self._expert.plan(simulation.body, simulation.vehicles)
        wanted = command(plan, simulation.car.model.lateral_delay_s + ANSWER_S)
        self.answered += 1
        return Action(wanted.curvature_1pm, wanted.acceleration_mps2)

    def close(self) -> None:
        """Hold nothing."""
