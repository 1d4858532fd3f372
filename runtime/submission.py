"""How an entry's launches reach the device: one by one, or recorded by the driver as one command.

    5 launches    ->    1 recording of 5 launches, replayed by each run

Recorded where the device has an extension for it and a run has several launches. On PoCL's CPU
devices the megakernel is one launch already; what it leaves out is not recorded, because PoCL takes
a recording apart and gains nothing. What cannot be recorded, or does not run so once, is launched
one by one, and a line of the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from runtime.device import Device
from runtime.entry import Binder, BoundEntry
from runtime.errors import RuntimeFault
from runtime.guard import recording_wanted
from runtime.opencl import cl
from runtime.recording import recorder_of
from runtime.recording_api import RecordingError

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
    # A single launch is one command already.
    several = [bound for bound in entries.values() if len(bound.steps) > 1]
    wanted = recording_wanted()
    if wanted is None:
        wanted = not device.info.is_pocl
    if support is None or not wanted or not several:
        return entries
    result = dict(entries)
    try:
        recorder = recorder_of(support, queue)
        for bound in several:
            result[bound.name] = binder.recorded(bound, recorder)
            run(result[bound.name])
    except (RecordingError, RuntimeFault) as error:
        # What a driver refuses of one entry it will refuse of the next, so one line is enough.
        logger.warning("launches are enqueued one by one: %s", error)
        for bound in result.values():
            bound.release()
        return entries
    told = ", ".join(f"{b.name} {len(b.launches)}" for b in several)
    logger.info("launches run as one command (%s): %s", support.extension, told)
    return result
