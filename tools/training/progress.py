"""Says how far a training is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import sys
import time
from typing import Any

# Between two lines where there is no terminal.
_LINE_S = 60.0


class TrainingProgress:
    """A bar over the minutes of a training."""

    def __init__(self, minutes: float, *, show: bool) -> None:
        """Begin; nothing is shown unless wanted."""
        self._minutes = minutes
        self._bar: Any | None = None
        self._show = show
        self._told_s = -_LINE_S
        if show and sys.stderr.isatty():
            from tqdm import tqdm

            form = "{l_bar}{bar}| {n:.1f} of {total:g} min{postfix}"
            self._bar = tqdm(total=minutes, file=sys.stderr, bar_format=form)

    def tell(self, minutes: float, stage: str, text: str) -> None:
        """Show where it is.

        Args:
            minutes: spent so far.
            stage: name.
            text: what to say of it.
        """
        if self._bar is not None:
            self._bar.n = min(round(minutes, 2), self._minutes)
            self._bar.set_description_str(stage, refresh=False)
            self._bar.set_postfix_str(text)
            return
        now = time.perf_counter()
        if self._show and now - self._told_s >= _LINE_S:
            self._told_s = now
            print(f"{minutes:.1f} of {self._minutes:g} min, {stage}: {text}", file=sys.stderr)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()
