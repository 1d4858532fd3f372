"""The command-line options for playing a drive, and the player's report."""

from __future__ import annotations

import argparse
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tools.drives.drive import DriveInfo
from tools.errors import UsageError
from tools.lib.options import MOST_S, real
from tools.playback.player.outlet import ServiceFilter
from tools.playback.player.player import MAX_SPEED, MIN_SPEED, PlayCounts, Played, PlayOptions

NS_PER_MS: Final = 1e6
# A frame is late beyond this: a tenth of the period of 20 Hz.
LATE_MS: Final = 5.0


def add_play_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare the options for playing a drive; options that are not given are None."""
    parser.add_argument(
        "--speed",
        type=real("--speed", MIN_SPEED, MAX_SPEED),
        metavar="X",
        help=f"speed factor, {MIN_SPEED:g} to {MAX_SPEED:g} (1)",
    )
    parser.add_argument(
        "--start",
        type=real("--start", 0, MOST_S),
        metavar="S",
        help="start S seconds into the drive (0)",
    )
    for option, what in (("--allow", "play only"), ("--block", "do not play")):
        parser.add_argument(
            option,
            action="append",
            metavar="A,B,...",
            help=f"{what} these services; initData and carParams always pass",
        )


def play_options(
    args: argparse.Namespace, info: DriveInfo, *, loop: bool = False, now: bool = False
) -> PlayOptions:
    """Return the options for playing a drive; the command must declare `args.limit`.

    Raises:
        UsageError: a value is out of range, a service is unknown, or the start is after the end.
    """
    speed = 1.0 if args.speed is None else args.speed
    start_s = 0.0 if args.start is None else args.start
    first = round(start_s * info.rate_hz)
    if info.moments is not None and first >= info.moments:
        raise UsageError(
            f"--start: expected less than the {info.moments / info.rate_hz:.1f} s of "
            f"{info.name}, found {start_s:g}"
        )
    services = ServiceFilter(_names(args.allow), _names(args.block))
    return PlayOptions(
        speed=speed, first=first, loop=loop, limit=args.limit, services=services, now=now
    )


def _names(lists: list[str] | None) -> frozenset[str]:
    return frozenset(name.strip() for one in lists or () for name in one.split(",") if name.strip())


def spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    """Return median, 99th percentile and maximum; None if there are no values."""
    if not values.size:
        return None
    p50, p99 = np.percentile(values, (50, 99))
    return {
        "p50": round(float(p50), 3),
        "p99": round(float(p99), 3),
        "max": round(float(values.max()), 3),
    }


def play_report(counts: PlayCounts, played: list[Played]) -> dict[str, Any]:
    """Return the player's report for `--json`.

    `played`: the played frames of the main camera.
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
    """Return the lateness in a report as one line of text."""
    late = report["late_ms"]
    if late is None:
        return "no frames"
    figures = "  ".join(f"{name} {value:.2f}" for name, value in late.items())
    return (
        f"late ms: {figures}  ({report['late_frames']} frames by more than {LATE_MS:g} ms; "
        f"slipped {report['slipped_ms']:.1f} ms in all)"
    )
