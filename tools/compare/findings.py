"""The findings of a comparison of two logs: plain values that are printed, stored and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tools.behaviour.difference import BehaviourVerdict, Sides
from tools.messages.drive_time import DriveTime

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
    """One difference between the logs, summed up over all frames.

    Attributes:
        kind: what differs.
        service: e.g. ``modelV2``.
        field: path below the service, lists as ``[]``: ``laneLines[].y``; "" for whole messages;
            ``valid`` of the Event is ``.valid``.
        frames: how many frames have it.
        first_frame: frame id of the first one; -1 where messages have none (then a position).
        worst_frame: frame id of the largest one.
        worst_place: where in that frame, with indices: ``laneLines[1].y[32]``.
        left: value there, in the left log, as text.
        right: value there, in the right log.
        worst_absolute: |left - right| there; NaN where it has no meaning.
        worst_relative: the same over the larger magnitude; NaN where it has no meaning.
        limit: the tolerance as text: ``abs 1e-3, rel 1e-2``.
    """

    kind: FindingKind
    service: str
    field: str
    frames: int
    first_frame: int
    worst_frame: int
    worst_place: str
    left: str
    right: str
    worst_absolute: float
    worst_relative: float
    limit: str


@dataclass(frozen=True, slots=True)
class FieldStatistics:
    """How one field differs over all frames, also where it stays within its tolerance.

    Attributes:
        service: e.g. ``modelV2``.
        field: path as in `Finding`.
        values: numbers compared.
        differing: of them, not bit-equal.
        mean_difference: mean of right - left.
        standard_error: of that mean, over frames.
        rms_difference: root of the mean square.
        largest: the largest |right - left|.
        drift_per_frame: slope of the frames' mean difference over the frame number.
        left_rms: size of the left values, to judge the rest by.
    """

    service: str
    field: str
    values: int
    differing: int
    mean_difference: float
    standard_error: float
    rms_difference: float
    largest: float
    drift_per_frame: float
    left_rms: float


@dataclass(frozen=True, slots=True)
class FieldSeries:
    """What one field that differs at all did over the frames; thinned out in long logs.

    Attributes:
        service: e.g. ``modelV2``.
        field: path as in `Finding`.
        frames: (n,) int64 frame ids, or positions.
        left: (n,) float64 mean of the field's values in the left log; NaN where it has none.
        right: (n,) the same of the right log.
        largest: (n,) the largest |right - left| of a frame, kept of frames that are left out.
    """

    service: str
    field: str
    frames: NDArray[np.int64]
    left: NDArray[np.float64]
    right: NDArray[np.float64]
    largest: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two logs compared.

    Attributes:
        left: name of the reference.
        right: name of what is compared with it.
        frames: frame ids that both have and that were compared.
        skipped: frames before the calibration, which are not compared.
        messages: messages compared, of all services.
        findings: worst first; none means that the logs agree.
        statistics: of every numeric field.
        warnings: what a user should know: truncated logs, services of one side only that are
            ignored, ...
        series: of every numeric field that differs at all, for plots.
        behaviour: what the difference does to the drive, and gates on it.
        times: of both logs.
        sides: what both models wanted, frame by frame, for judging several drives as one; None
            where nobody noted it.
    """

    left: str
    right: str
    frames: int
    skipped: int
    messages: int
    findings: Sequence[Finding]
    statistics: Sequence[FieldStatistics]
    warnings: Sequence[str]
    series: Sequence[FieldSeries] = ()
    behaviour: BehaviourVerdict = field(default_factory=BehaviourVerdict)
    times: tuple[DriveTime, DriveTime] = field(default_factory=lambda: (DriveTime(), DriveTime()))
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
