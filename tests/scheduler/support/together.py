"""Programs built as one: an OpenCL compiler takes longer to start than to compile one of them."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Final, Self

import numpy as np

from runtime.errors import RuntimeFault
from runtime.run.executor import Program
from scheduler.emit.artifact import emit
from scheduler.emit.schedule import Schedule
from scheduler.errors import SchedulerError
from tests.scheduler.support.programs import Array, artifact_of, loaded

# Without the optimizer of the driver, which other tests have, building takes a third of the time.
UNOPTIMIZED: Final = "-cl-opt-disable"


class Together:
    """Schedules as entries of one artifact; states of one name are one state.

    One that cannot be scheduled is left out, and where the artifact does not build it is none:
    then each is built alone, so that those which are wrong fail in their own tests.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Schedule]], options: str = "") -> None:
        self._makers, self._programs = makers, ExitStack()
        self.plans: dict[str, Schedule] = {}
        for name, make in makers.items():
            with suppress(SchedulerError):
                self.plans[name] = make()
        self._program: Program | None = None
        with suppress(SchedulerError, RuntimeFault):
            made = emit(self.plans, name="together", kind="plain", options=options)
            self._program = self._programs.enter_context(loaded(made.manifest, made.data))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._programs.close()

    def entry(self, name: str) -> tuple[Program, str]:
        """Return the program that one is an entry of, its states as they start, and the entry."""
        if self._program is None or name not in self.plans:
            made = artifact_of(self._makers[name]())
            return self._programs.enter_context(loaded(made.manifest, made.data)), "run"
        self._program.reset()
        return self._program, name

    def run(self, name: str, given: Mapping[str, Array]) -> dict[str, Array]:
        """Run one once on those of some inputs that it has, and return its outputs."""
        program, entry = self.entry(name)
        names = {spec.name for spec in program.entry_inputs(entry)}
        fed = {name: np.asarray(given[name], order="C") for name in names}
        return {name: np.array(value) for name, value in program.run(fed, entry).items()}
