"""Cuts a drive into moments: which frames belong together, and up to when messages were heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from modeld.frames.frame_sync import PAIRING_WINDOW_NS
from tools.drives.encode_index import FRAME, NO_PICTURE
from tools.drives.thinned_states import Rows

NO_FRAME = -1


@dataclass(frozen=True, slots=True)
class MomentPlan:
    """The moments of a drive, one for each frame of the main camera, and for what is between."""

    # (n,) int64, logMonoTime of the last message of each moment, never decreasing.
    cuts_ns: NDArray[np.int64]
    frames: Mapping[str, Rows]  # stream -> (n,) of ``FRAME``; the main camera last
    # Stream -> (n,) bool, there is a picture for that moment.
    present: Mapping[str, NDArray[np.bool_]]

    def __len__(self) -> int:
        return len(self.cuts_ns)

    @property
    def rate_hz(self) -> float:
        """Rate of the main camera, by the median of its intervals."""
        starts = self.frames[list(self.frames)[-1]]["sof_ns"]
        steps = np.diff(starts)
        steps = steps[steps > 0]
        return round(1e9 / float(np.median(steps)), 2) if steps.size else 20.0


def plan_moments(cameras: Mapping[str, Rows], main: str) -> MomentPlan:
    """Pair the frames of the cameras and lay the cuts.

    A moment ends with the later of the camera states of its road and wide frame, and before the
    next frame of the main camera. The wide frame of a moment is the one that began with the road
    frame, within the daemon's own window; the driver camera runs half a period later, and its frame
    belongs to the moment in which it was announced. Where that is not the last one of its moment,
    because the main camera lost a frame or has stopped, it gets a moment of its own. What precedes
    the first picture and follows the last one of all cameras is no moment.

    `cameras`: stream -> (n,) of ``FRAME`` in the order of ``time_ns``. `main`: the camera that sets
    the pace.
    """
    pace = cameras[main]
    count = len(pace)
    frames: dict[str, Rows] = {}
    present: dict[str, NDArray[np.bool_]] = {}
    cuts = pace["time_ns"].copy()
    partner = np.full(count, NO_FRAME, np.int64)
    if main == "road" and "wideRoad" in cameras:
        wide = cameras["wideRoad"]
        partner = _pair(pace["sof_ns"], wide["sof_ns"])
        _wait_for_states(cuts, _chosen(wide, partner)[0], partner)
    cuts, rows = np.maximum.accumulate(cuts), np.arange(count)
    if "driver" in cameras and main != "driver":
        driver = cameras["driver"]
        places = _passed_over(cuts, driver)
        own = driver["time_ns"][list(places)]
        cuts = np.insert(cuts, list(places.values()), own)
        rows = np.insert(rows, list(places.values()), NO_FRAME)
        partner = np.insert(partner, list(places.values()), NO_FRAME)
        frames["driver"], present["driver"] = _chosen(driver, _newest(cuts, driver["time_ns"]))
    if "wideRoad" in cameras and main != "wideRoad":
        frames["wideRoad"], present["wideRoad"] = _chosen(cameras["wideRoad"], partner)
    frames[main], present[main] = _chosen(pace, rows)
    shown = np.flatnonzero(np.any(list(present.values()), axis=0))
    span = slice(int(shown[0]), int(shown[-1]) + 1) if shown.size else slice(0, 0)
    order = [name for name in ("driver", "wideRoad", "road") if name in frames]
    return MomentPlan(
        cuts[span],
        {name: frames[name][span] for name in order},
        {name: present[name][span] for name in order},
    )


def _pair(starts_ns: NDArray[np.int64], others_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each start the nearest of the others within the window, each at most once."""
    partners = np.full(len(starts_ns), NO_FRAME, np.int64)
    if not len(others_ns):
        return partners
    order = np.argsort(others_ns, kind="stable")
    ordered = others_ns[order]
    after = np.clip(np.searchsorted(ordered, starts_ns), 1, max(1, len(ordered) - 1))
    before = after - 1
    after = np.minimum(after, len(ordered) - 1)
    is_before = starts_ns - ordered[before] <= ordered[after] - starts_ns
    nearest = np.where(is_before, before, after)
    gaps = np.abs(ordered[nearest] - starts_ns)
    # The closest first, so that of two frames that want one partner the right one gets it.
    taken: set[int] = set()
    for row in np.argsort(gaps, kind="stable").tolist():
        if gaps[row] < PAIRING_WINDOW_NS and nearest[row] not in taken:
            taken.add(int(nearest[row]))
            partners[row] = order[nearest[row]]
    return partners


def _passed_over(cuts_ns: NDArray[np.int64], frames: Rows) -> dict[int, int]:
    """Return the pictures that are not the newest of their moment, each with its moment."""
    moments = np.searchsorted(cuts_ns, frames["time_ns"])
    newest = set(_newest(cuts_ns, frames["time_ns"]).tolist())
    shown = np.flatnonzero(frames["picture"] != NO_PICTURE).tolist()
    return {row: int(moments[row]) for row in shown if row not in newest}


def _newest(cuts_ns: NDArray[np.int64], times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each cut the last frame announced since the cut before."""
    newest = np.full(len(cuts_ns), NO_FRAME, np.int64)
    moments = np.searchsorted(cuts_ns, times_ns)
    inside = moments < len(cuts_ns)
    # Ascending, so that a later frame replaces an earlier one of the same moment.
    newest[moments[inside]] = np.flatnonzero(inside)
    return newest


def _chosen(frames: Rows, rows: NDArray[np.int64]) -> tuple[Rows, NDArray[np.bool_]]:
    chosen = np.zeros(len(rows), FRAME)
    chosen["picture"] = NO_PICTURE
    there = rows != NO_FRAME
    chosen[there] = frames[rows[there]]
    return chosen, chosen["picture"] != NO_PICTURE


def _wait_for_states(cuts_ns: NDArray[np.int64], wide: Rows, partner: NDArray[np.int64]) -> None:
    """Move cuts to the wide camera's state where that comes before the next frame's."""
    following = np.append(cuts_ns[1:], np.iinfo(np.int64).max)
    waits = (partner != NO_FRAME) & wide["has_state"]
    waits &= (wide["time_ns"] > cuts_ns) & (wide["time_ns"] < following)
    cuts_ns[waits] = wide["time_ns"][waits]
