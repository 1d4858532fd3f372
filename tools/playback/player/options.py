"""The options of playing, for every command that plays a drive live."""

from __future__ import annotations

import argparse

from tools.drives.drive import DriveInfo
from tools.errors import UsageError
from tools.lib.options import MOST_S, real
from tools.playback.player.outlet import ServiceFilter
from tools.playback.player.player import MAX_SPEED, MIN_SPEED, PlayOptions


def add_play_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare how a drive is played; not given is None."""
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
    """Return how to play a drive; `args.limit` is declared by the command.

    Raises:
        UsageError: a value is out of range, a service unknown, the start beyond the end.
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
