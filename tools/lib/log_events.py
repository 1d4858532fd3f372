"""Events of a log for people: what is wrong with the log is one line on stderr, not a traceback."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cereal.log_reader import LogTruncatedWarning, read_log

logger = logging.getLogger(__name__)

# Events that are held at a time.
BATCH = 64


def read_log_events(path: Path) -> Iterator[Any]:
    """Yield the events of a log; that it is cut off or damaged is logged as a warning.

    Raises:
        LogError: the file cannot be read or is no log.
    """
    events = read_log(path)
    batch = None
    while batch is None or batch:
        # Only while reading: what the caller does with an event has its own warnings. In batches,
        # because to catch a warning costs more than to read an event.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", LogTruncatedWarning)
            batch = list(itertools.islice(events, BATCH))
        yield from batch
        for warning in caught:
            logger.warning("%s", warning.message)
