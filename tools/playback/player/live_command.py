"""The ``--live`` mode of ``modeld replay``: its options and its output."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from tools.drives.open_drive import DriveOptions, open_drive
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import refuse
from tools.playback.lock import output_lock
from tools.playback.model import DRIVING, MONITORING
from tools.playback.player.command_line import add_play_arguments, play_options
from tools.playback.player.live import (
    LiveJob,
    answer_problems,
    live_lines,
    live_report,
    replay_live,
)
from tools.playback.result import DriveResult, read_result

_ONLY_LIVE: Final = "speed|start|allow|block"


def add_live_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of live replay."""
    group = parser.add_argument_group(
        "live replay",
        "With --live the drive is played in real time to a separate daemon process, over real "
        "shared memory and a real bus. The log has the played messages and the daemon's outputs, "
        "stamped with the time of the drive. How regularly modelV2 arrived is printed as well. A "
        "frame without an answer is an error (exit code 1). One drive and one model only.",
    )
    group.add_argument("--live", action="store_true", help="play in real time, as in the car")
    add_play_arguments(group)


def check_not_live(args: argparse.Namespace) -> None:
    """Reject options of live replay if ``--live`` is not given.

    Raises:
        UsageError: such an option was given.
    """
    refuse(vars(args), [(_ONLY_LIVE, "expected with --live only; a replay has no pace")])


def run_live(args: argparse.Namespace, text: str, options: DriveOptions) -> int:
    """Replay one drive live; return 0, or 1 if a frame has no answer or a value is not finite.

    `args`: arguments of ``modeld replay``. `text`: the drive. `options`: options for opening it.

    Raises:
        UsageError: an option is not supported by live replay.
    """
    if args.report is not None:
        raise UsageError("--report: expected without --live, found both; replay the drive as it is")
    (model,) = args.model
    drive = open_drive(text, options)
    try:
        played = play_options(args, drive.info)
        job = LiveJob(model, args.output, played, args.device, args.monitoring)
        with output_lock(args.output):
            live = replay_live(drive, job)
            paths = {DRIVING: model, MONITORING: args.monitoring}
            ran = {kind: path for kind, path in paths.items() if path is not None}
            result = read_result(drive.info, ran, args.output, [])
    finally:
        drive.close()
    problems = answer_problems(live)
    if result.problem is not None:
        problems.append(result.problem)
    figures = result.as_json() | {
        "video": text,
        "wall_s": round(live.outcome.wall_s, 3),
        "report": None,
        "live": live_report(live),
        "problem": problems[0] if problems else None,
    }
    if args.json:
        print_json(figures)
    else:
        _print(figures, result, live_lines(live))
    for problem in problems:
        print(f"modeld: error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _print(figures: dict[str, Any], result: DriveResult, lines: list[str]) -> None:
    messages = "  ".join(f"{name} {count}" for name, count in figures["messages"].items())
    print(f"{result.info.name}: {messages}  valid {figures['valid']}")
    if figures["execution_ms"]:
        times = "  ".join(f"{name} {value:.1f}" for name, value in figures["execution_ms"].items())
        print(f"execution ms: {times}")
    for line in lines:
        print(line)
    print(f"log: {result.log}")
