"""The DEBUG ladder: what the compiler says on stderr, through the logger "scheduler".

Each step includes those below it; `flags.Level` names them. Library code never configures logging,
except here and only under DEBUG: who sets the variable wants to read the answer.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler import flags
from scheduler.debug.pretty import Names, pretty, pretty_loops
from scheduler.debug.trace import INPUT, Observer, Recorder, is_recorded
from scheduler.flags import Level

if TYPE_CHECKING:
    from scheduler.ir.node import Node
    from scheduler.ir.origin import Origins
    from scheduler.pipeline import Schedule

logger = logging.getLogger("scheduler")


def environment_observers() -> list[Observer]:
    """Return the observers that DEBUG and VIZ ask for; none if both are off."""
    found: list[Observer] = []
    if flags.debug():
        _make_visible()
        found.append(DebugLog(flags.debug()))
    if flags.viz("") is not None and not is_recorded():
        _make_visible()
        found.append(PageWriter())
    return found


def _make_visible() -> None:
    if logger.getEffectiveLevel() > logging.DEBUG:
        logger.setLevel(logging.DEBUG)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


class DebugLog(Recorder):
    """Logs schedules up to a step of the ladder."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level
        self._names = Names()

    def after_pass(self, name: str, roots: Sequence[Node], origins: Origins) -> None:
        """Log the graph at Level.IR."""
        super().after_pass(name, roots, origins)
        if self.level >= Level.IR:
            when = "before all passes" if name == INPUT else f"after {name}"
            logger.debug("%s:\n%s", when, pretty(roots, self._names, origins))

    def scheduled(self, plan: Schedule) -> None:
        """Log the rest, source and loops beside their kernel."""
        # Here, not above: the table is made from the artifact's form, and `emit` imports
        # `scheduler.pipeline`, which imports this module.
        from scheduler.debug.kernel_table import kernel_tables, source_of
        from scheduler.debug.kernel_text import summary, table_text
        from scheduler.emit.artifact import emit

        super().scheduled(plan)
        trace = self.traces.pop()
        manifest = emit({"run": plan}, name="schedule", kind="plain").manifest
        table = kernel_tables(manifest, {"run": plan})[0]
        logger.info("%s", summary(table))
        if self.level >= Level.TABLE:
            logger.info("kernels:\n%s", table_text(table))
        if self.level < Level.LOOPS:
            return
        shown: set[str] = set()
        for launch, lowered in zip(table.launches, plan.lowered, strict=True):
            for loops in trace.loops_of(lowered.kernel):
                logger.debug("%d %s: %s", launch.number, launch.kernel, pretty_loops(loops))
            if self.level >= Level.SOURCE and launch.kernel not in shown:
                shown.add(launch.kernel)
                logger.debug("%s:\n%s", launch.kernel, source_of(manifest, launch.kernel))


class PageWriter(Recorder):
    """Writes the page that VIZ asks for when a schedule is complete."""

    def scheduled(self, plan: Schedule) -> None:
        """Write the page, named after the outputs."""
        from scheduler.debug.viz import write_page
        from scheduler.emit.artifact import emit  # the same cycle as above

        super().scheduled(plan)
        name = "-".join(plan.outputs) or "states"
        path = flags.viz(name)
        if path is not None:
            emitted = emit({"run": plan}, name=name, kind="plain")
            write_page(path, emitted.manifest, [self.traces.pop()])
            logger.info("wrote %s", path)
