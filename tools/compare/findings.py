"""The findings of a comparison of two logs: plain values that are printed, stored and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tools.behaviour.difference import BehaviourVerdict, Sides
from tools.messages.drive_log import DriveTime

FindingKind = Literal[
    "missing",  # a frame, or a message, of the left log that the right one lacks
    "extra",  # the other way round
    "repeated",  # a frame id that comes twice in the right log only
    "reordered",  # the same frames in another order
    "value",  # numbers, texts or enumerants beyond the tolerance
    "nonfinite",  # NaN or infinity on one side, or of another kind
    "length",  # lists of different lengths
    "type",  # a union member or a structure that the other side does not have
    "shift",  # each value within its tolerance, but all of them moved to one side
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the logs, summed up over all frames."""

    kind: FindingKind  # what differs
    service: str  # e.g. ``modelV2``
    # Path below the service, lists as ``[]``: ``laneLines[].y``; "" for whole messages; ``valid``
    # of the Event is ``.valid``.
    field: str
    frames: int  # how many frames have it
    first_frame: int  # frame id of the first one; -1 where messages have none (then a position)
    worst_frame: int  # frame id of the largest one
    worst_place: str  # where in that frame, with indices: ``laneLines[1].y[32]``
    left: str  # value there, in the left log, as text
    right: str  # value there, in the right log
    worst_absolute: float  # |left - right| there; NaN where it has no meaning
    worst_relative: float  # the same over the larger magnitude; NaN where it has no meaning
    limit: str  # the tolerance as text: ``abs 1e-3, rel 1e-2``


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """How one field differs over all frames, also where it stays within its tolerance."""

    service: str  # e.g. ``modelV2``
    field: str  # path as in `Finding`
    values: int  # numbers compared
    differing: int  # of them, not bit-equal
    mean_difference: float  # mean of right - left
    standard_error: float  # of that mean, over frames
    rms_difference: float  # root of the mean square
    largest: float  # the largest |right - left|
    drift_per_frame: float  # slope of the frames' mean difference over the frame number
    left_rms: float  # size of the left values, to judge the rest by


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """What one field that differs at all did over the frames; thinned out in long logs."""

    service: str  # e.g. ``modelV2``
    field: str  # path as in `Finding`
    frames: NDArray[np.int64]  # (n,) int64 frame ids, or positions
    # (n,) float64 mean of the field's values in the left log; NaN where it has none.
    left: NDArray[np.float64]
    right: NDArray[np.float64]  # (n,) the same of the right log
    # (n,) the largest |right - left| of a frame, kept of frames that are left out.
    largest: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two logs compared."""

    left: str  # name of the reference
    right: str  # name of what is compared with it
    frames: int  # frame ids that both have and that were compared
    skipped: int  # frames before the calibration, which are not compared
    messages: int  # messages compared, of all services
    findings: Sequence[Finding]  # worst first; none means that the logs agree
    statistics: Sequence[FieldStatistics]  # of every numeric field
    # What a user should know: truncated logs, services of one side only that are ignored.
    warnings: Sequence[str]
    series: Sequence[FieldSeries] = ()  # of every numeric field that differs at all, for plots
    # What the difference does to the drive, and gates on it.
    behaviour: BehaviourVerdict = field(default_factory=BehaviourVerdict)
    # Of both logs.
    times: tuple[DriveTime, DriveTime] = field(default_factory=lambda: (DriveTime(), DriveTime()))
    # What both models wanted, frame by frame, for judging several drives as one; None where nobody
    # noted it.
    sides: Sides | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        """Whether nothing differs beyond what is allowed."""
        return not self.failing and self.behaviour.holds

    @property
    def failing(self) -> list[Finding]:
        """The findings that no gate stands in for."""
        stands_in = self.behaviour.stands_in_for
        return [one for one in self.findings if not stands_in(one.kind, one.field)]
