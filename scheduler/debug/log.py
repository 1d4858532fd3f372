"""Reports finished schedules: as text on stderr (DEBUG) and as an HTML page (VIZ).

Messages go to the logger "scheduler". This is the only library code that configures it, because a
user who set DEBUG or VIZ wants to see the output.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any

from scheduler.context import Stages
from scheduler.debug.kernel_table import KernelTable, kernel_tables, source_of, summary, table_text
from scheduler.debug.pretty import Names, pretty, pretty_loops
from scheduler.debug.viz import write_page
from scheduler.emit.schedule import Schedule
from scheduler.flags import Flags, Level

logger = logging.getLogger("scheduler")


def report(manifest: Mapping[str, Any], plans: Mapping[str, Schedule], flags: Flags) -> None:
    """Log the output that DEBUG requests and write VIZ's page; raise OSError if writing fails."""
    if not flags.is_watched:
        return
    _make_visible()
    if flags.debug:
        for table in kernel_tables(manifest, plans):
            plan = plans[table.entry]
            if flags.debug >= Level.IR and plan.stages is not None:
                _log_stages(plan.stages)
            _log_kernels(manifest, table, plan, flags.debug)
    path = flags.viz_path(manifest["name"])
    if path is not None:
        write_page(path, manifest, plans)
        logger.info("wrote %s", path)


def _make_visible() -> None:
    if logger.getEffectiveLevel() > logging.DEBUG:
        logger.setLevel(logging.DEBUG)
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)


def _log_stages(stages: Stages) -> None:
    names = Names()
    for i, (name, roots) in enumerate(stages.graphs):
        when = f"after {name}" if i else "before all passes"
        logger.debug("%s:\n%s", when, pretty(roots, names, stages.origins))


def _log_kernels(
    manifest: Mapping[str, Any], table: KernelTable, plan: Schedule, level: int
) -> None:
    """Log the summary and, at higher levels, the table and each kernel's loops and source."""
    logger.info("%s", summary(table))
    if level >= Level.TABLE:
        logger.info("kernels:\n%s", table_text(table))
    if level < Level.LOOPS:
        return
    shown: set[str] = set()
    for launch, lowered in zip(table.launches, plan.lowered, strict=True):
        for why in (plan.reasons[t] for t in lowered.kernel.targets if t in plan.reasons):
            logger.debug("%d %s: stored: %s", launch.number, launch.kernel, why)
        for nest in lowered.nests:
            logger.debug("%d %s: %s", launch.number, launch.kernel, pretty_loops(nest.schedule))
        if level >= Level.SOURCE and launch.kernel not in shown:
            shown.add(launch.kernel)
            logger.debug("%s:\n%s", launch.kernel, source_of(manifest, launch.kernel))
