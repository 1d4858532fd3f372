"""Two logs to compare: one as it is, and one that was changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.tools.compare.made_logs import write_log

Pair = Callable[[Sequence[bytes], Sequence[bytes]], tuple[Path, Path]]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Write the Events of both sides."""
    return lambda left, right: (
        write_log(tmp_path / "left.rlog", left),
        write_log(tmp_path / "right.rlog", right),
    )
