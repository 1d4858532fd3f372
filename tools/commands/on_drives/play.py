"""Play a recorded drive in real time, for a running daemon or any other subscriber.

Messages are sent on the bus and frames in shared-memory rings, the way a car and its cameras send
them. Messages that the daemons publish themselves (modelV2, drivingModelData, cameraOdometry,
driverStateV2) are left out, unless --allow names them. initData and carParams are always sent, the
latter once a second, so that a daemon finds its car whenever it starts. A drive without carParams,
such as a video, gets the car of modeld run --demo. Gaps over 1 s are skipped. Timestamps and frame
ids are those of the recording. After a seek or a loop they continue to rise, so that no daemon
counts dropped frames. With --now the timestamps start at the present.

On a terminal, space pauses, left and right (or , and .) seek 10 s, and q quits. SIGTERM also ends
the command (exit code 0), and so does SIGINT (130). "late" is the delay with which a frame was
sent.

The first printed line is the command that starts a matching daemon, with the bus, the cameras'
address, and the size and focal length of cameras that no device has. Replace driving.pkl with your
artifact and run the command in another terminal. With --loop it can be started at any time.

Example:
  modeld play a2a0ccea32023010--2023-07-27--13-01-19--5 --loop
  modeld play drive.mp4 --bus ipc:///run/modeld --speed 0.5 --start 20
  modeld play segment/ --allow carState,liveCalibration,deviceState,roadCameraState
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from cereal.clock import MonotonicClock
from modeld.service.config import environment_prefix
from modeld.startup import StopSignals
from tools.drives.open_drive import add_drive_arguments, drive_options, open_drive
from tools.errors import DriveError, UsageError
from tools.lib.json_output import print_json
from tools.lib.options import whole
from tools.playback.player.command_line import (
    add_play_arguments,
    late_text,
    play_options,
    play_report,
)
from tools.playback.player.daemon import daemon_commands, with_car
from tools.playback.player.keys import Keys
from tools.playback.player.outlet import OPENED_FIRST, BusOutlet
from tools.playback.player.player import Played, Player
from tools.playback.threads import punctual, read_yielding
from tools.service.options import add_bus_arguments, open_bus, stack_of

SEEK_S: Final = 10.0
# Delay before the first message, so that waiting subscribers miss nothing. ZeroMQ subscribers look
# for a publisher at least every 0.5 s (cereal.transport.zmq), a daemon for cameras every 0.1 s,
# twice.
CONNECT_S: Final = 0.7
STATUS_S: Final = 0.25
_NS_PER_S: Final = 1_000_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("drive", help="segment, route, comma2k19 segment or video file")
    add_bus_arguments(parser, sends=True)
    parser.add_argument(
        "--camera-server",
        default="camerad",
        metavar="ADDRESS",
        help="NAME of the frame rings, visionipc:NAME or visionipc+zmq:NAME (camerad)",
    )
    add_play_arguments(parser)
    parser.add_argument("--loop", action="store_true", help="repeat from --start")
    parser.add_argument(
        "--now", action="store_true", help="start timestamps now, not at the recording's time"
    )
    parser.add_argument("--limit", type=whole("--limit"), metavar="N", help="stop after N frames")
    parser.add_argument(
        "--driver-camera", action="store_true", help="the driver camera's frames, too"
    )
    add_drive_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play the drive; return 0, or 130 after SIGINT."""
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        drive = open_drive(
            args.drive, replace(drive_options(args), driver_camera=args.driver_camera)
        )
        stack.callback(drive.close)
        options = play_options(args, drive.info, loop=args.loop, now=args.now)
        transport = open_bus(args)
        stack.callback(transport.close)
        first = [name for name in OPENED_FIRST if options.services.passes(name)]
        outlet = BusOutlet(
            transport,
            args.camera_server,
            drive.info.formats,
            first,
            stack=stack_of(args),
            prefix=environment_prefix(),
        )
        stack.callback(outlet.close)
        clock = MonotonicClock()
        info = with_car(drive.info)
        player = Player(info, read_yielding(drive), outlet, clock, options)
        played: list[Played] = []
        commands = daemon_commands(args, info)

        def on_frame(one: Played) -> None:
            # Printed only with the first frame: a drive without frames is an error.
            if not (played or args.json or args.quiet):
                print("\n  ".join(["start a daemon for it with:", *commands]), flush=True)
            played.append(one)

        player.on_frame = on_frame
        keys = stack.enter_context(Keys())
        show = not (args.json or args.quiet) and sys.stderr.isatty()
        console = Console(keys, played, show=show)
        stack.callback(console.close)
        if not stop.event.wait(CONNECT_S):
            with punctual():
                player.run(stop.event, console.attend)
        exit_code = stop.exit_code
    name = drive.info.name
    if not stop.event.is_set():
        _check_played(player, options.first, name)
    report = {"drive": name, "speed": options.speed, **play_report(player.counts, played)}
    report["daemons"] = commands
    if args.json:
        print_json(report)
    else:
        frames = "  ".join(f"{stream} {count}" for stream, count in report["frames"].items())
        print(f"{name}: frames: {frames or 'none'}  messages: {report['messages']}")
        print(late_text(report))
    return exit_code


def _check_played(player: Player, first: int, name: str) -> None:
    """Raise an error if the drive ended without any frame or message played."""
    if first and not player.counts.frames:
        start_s = first / player.info.rate_hz
        raise UsageError(
            f"--start: expected a time within {name}, found no frame from {start_s:g} s on"
        )
    if not (player.counts.frames or player.counts.messages):
        raise DriveError(f"{name}: expected frames or messages to play, found none")


class Console:
    """Handles pressed keys and writes the status line to stderr while a drive is played."""

    def __init__(self, keys: Keys, played: list[Played], *, show: bool) -> None:
        self._keys, self._played, self._show = keys, played, show
        self._clock = MonotonicClock()
        self._shown_ns = 0
        self._width = 0

    def attend(self, player: Player) -> None:
        """Handle pressed keys, and write the status line every `STATUS_S` seconds."""
        for key in self._keys.read():
            if key == " ":
                if player.is_paused:
                    player.resume()
                else:
                    player.pause()
            elif key in ("left", ","):
                player.seek(-SEEK_S)
            elif key in ("right", "."):
                player.seek(SEEK_S)
            elif key == "q":
                player.stop()
        now_ns = self._clock.now_ns()
        if self._show and now_ns - self._shown_ns >= STATUS_S * _NS_PER_S:
            self._shown_ns = now_ns
            self._write(self.status(player, now_ns))

    def status(self, player: Player, now_ns: int) -> str:
        """Return the status line: position, length, speed, frame rate and delay."""
        info = player.info
        total = "" if info.moments is None else f" / {clock_text(info.moments / info.rate_hz)}"
        recent = [one for one in self._played[-250:] if now_ns - one.clock_ns <= _NS_PER_S]
        late_ms = max((one.late_ns for one in recent), default=0) / 1e6
        state = "paused" if player.is_paused else f"{len(recent)} Hz, late {late_ms:.1f} ms"
        hint = "  space , . q" if self._keys.is_active else ""
        return f"{clock_text(player.position_s)}{total}  x{player.speed:g}  {state}{hint}"

    def close(self) -> None:
        """End the status line."""
        if self._width:
            self._write("")
            sys.stderr.write("\r")
            sys.stderr.flush()

    def _write(self, line: str) -> None:
        sys.stderr.write(f"\r{line:<{self._width}}")
        sys.stderr.flush()
        self._width = len(line)


def clock_text(seconds: float) -> str:
    """Return a position as minutes and seconds: ``2:05.3``."""
    tenths = int(seconds * 10)
    return f"{tenths // 600}:{tenths // 10 % 60:02d}.{tenths % 10}"
