"""Gates on the figures of a closed loop: conditions in metres, instead of clean drives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from tools.behaviour.drive_result import numbers_of
from tools.behaviour.gates import Gate, GateVerdict, judge
from tools.closed_loop.figures import figures_of
from tools.closed_loop.result import Outcome
from tools.closed_loop.run import Selection

# Of all drives and of each, beside their figures.
_COUNTS: Final = ("frames", "answered")
# Of a live run.
_LIVE: Final = ("latency_ms_p50", "latency_ms_p99", "slipped_ms", "unanswered")


def gate_names(selection: Selection) -> tuple[str, ...]:
    """Return the names of the figures that drives will have, before any is driven."""
    figures = tuple(figures_of([]).as_json())
    drives = (f"{one.scenario}-{one.seed}" for one in selection.errands())
    return (
        *figures,
        *_COUNTS,
        *_LIVE,
        *(f"scenarios.{one.name}.{name}" for one in selection.scenarios for name in figures),
        *(f"per_drive.{drive}.{name}" for drive in drives for name in (*figures, *_COUNTS)),
    )


def judge_outcome(outcome: Outcome, gates: Sequence[Gate]) -> tuple[GateVerdict, ...]:
    """Judge each gate; one about an unmeasured quantity holds."""
    figures = dict(numbers_of(outcome.as_json()))
    return judge({k: None if math.isnan(v) else v for k, v in figures.items()}, gates)
