"""A program that answers with the expert's plan: all of the loop is real but the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.constants import IDX_COUNT, PLAN_WIDTH
from modeld.driving_model import DrivingProgram
from tests.tools.tiny_driving import INTERFACE
from tools.closed_loop.simulation import Simulation
from tools.lib.wrapped_program import WrappedProgram
from tools.world.expert import Expert


class OracleProgram(WrappedProgram):
    """Answers like the hand-written artifact, but with the expert's plan of the simulation.

    Args:
        inner: the hand-written artifact's program.
    """

    def __init__(self, inner: DrivingProgram) -> None:
        super().__init__(inner)
        self._simulation: Simulation | None = None
        self._expert: Expert | None = None
        self.transforms: list[NDArray[np.float32]] = []

    def see(self, simulation: Simulation) -> None:
        """Drive this one from now on."""
        trial = simulation.trial
        self._simulation = simulation
        self._expert = Expert(trial.world, trial.lane, simulation.set_speed_mps)

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        results = dict(super().run(inputs, entry))
        simulation, expert = self._simulation, self._expert
        if entry != "run" or simulation is None or expert is None:
            return results
        self.transforms.append(inputs["road_transform"].copy())
        side = simulation.lane - expert.lane
        if side:
            expert.change_lane(side)
        role, start, _ = INTERFACE.heads["plan"]
        vector = results[f"{role}_outputs"].copy()
        plan = expert.plan(simulation.body, simulation.vehicles).array().ravel()
        vector[0, start : start + IDX_COUNT * PLAN_WIDTH] = plan
        return {**results, f"{role}_outputs": vector}
