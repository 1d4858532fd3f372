"""Events of a log for people: what is wrong with the log is one line on stderr, not a traceback."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cereal.log_reader import read_log

logger = logging.getLogger(__name__)


def read_log_events(path: Path) -> Iterator[Any]:
    """Yield the events of a log; that it is cut off or damaged is logged as a warning.

    Raises:
        LogError: the file cannot be read or is no log.
    """
    return read_log(path, logger.warning)
