"""How an entry's launches reach the device: one by one, or recorded by the driver as one command.

    5 launches    ->    1 recording of 5 launches, replayed by each run

Recorded where the device has an extension for it and a run has several launches; on PoCL's CPU
devices the megakernel is one launch already. What cannot be recorded, or does not run so once, is
launched one by one, and a line of the log says why.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from runtime.device import Device
from runtime.entry import Binder, BoundEntry
from runtime.errors import RuntimeFault
from runtime.opencl import cl
from runtime.recording import record
from runtime.recording_api import RecordingError
from runtime.steps import Recorded

logger = logging.getLogger(__name__)


def recorded_entries(
    entries: dict[str, BoundEntry],
    binder: Binder,
    device: Device,
    queue: cl.CommandQueue,
    run: Callable[[BoundEntry], None],
) -> dict[str, BoundEntry]:
    """Return the entries, recorded where that can be done.

    Args:
        entries: by name; each has run, so drivers have finished its kernels.
        binder: of these entries.
        device: where.
        queue: that runs use.
        run: does a run of an entry, on the inputs that are on the device.
    """
    support = device.info.recording
    if support is None:
        return entries
    make = functools.partial(record, support, queue)
    result = dict(entries)
    for name, bound in entries.items():
        # A single launch is one command already.
        if len(bound.steps) < 2:
            continue
        try:
            recorded = binder.recorded(bound, make)
        except RecordingError as error:
            # What the driver refuses once it will refuse again, so one line is enough.
            logger.warning(
                "entry %r: its %s launches are enqueued one by one: %s",
                name,
                len(bound.steps),
                error,
            )
            break
        result[name] = recorded
        try:
            run(recorded)
        except RuntimeFault as error:
            for step in recorded.steps:
                if isinstance(step, Recorded):
                    step.give_up(error)
            break
    return result
