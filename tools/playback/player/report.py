"""Reports what a player did: how many messages and frames, how late."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.playback.player.player import PlayCounts, Played

NS_PER_MS: Final = 1e6
# Beyond it a frame counts as late: a tenth of the period of 20 Hz.
LATE_MS: Final = 5.0


def spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    """Return median, 99th percentile and maximum; None of nothing."""
    if not values.size:
        return None
    p50, p99 = np.percentile(values, (50, 99))
    return {
        "p50": round(float(p50), 3),
        "p99": round(float(p99), 3),
        "max": round(float(values.max()), 3),
    }


def play_report(counts: PlayCounts, played: list[Played]) -> dict[str, Any]:
    """Return what `--json` tells of a player.

    `played`: frames of the main camera.
    """
    late_ms = np.array([one.late_ns for one in played], np.float64) / NS_PER_MS
    return {
        "frames": dict(counts.frames),
        "messages": sum(counts.messages.values()),
        "services": dict(sorted(counts.messages.items())),
        "late_ms": spread(late_ms),
        "late_frames": int((late_ms > LATE_MS).sum()),
        "slipped_ms": round(counts.slipped_ns / NS_PER_MS, 3),
        "gaps_skipped": counts.gaps,
        "jumps": counts.jumps,
    }


def late_text(report: dict[str, Any]) -> str:
    """Return the lateness of a report in one line."""
    late = report["late_ms"]
    if late is None:
        return "no frames"
    figures = "  ".join(f"{name} {value:.2f}" for name, value in late.items())
    return (
        f"late ms: {figures}  ({report['late_frames']} frames by more than {LATE_MS:g} ms; "
        f"slipped {report['slipped_ms']:.1f} ms in all)"
    )
