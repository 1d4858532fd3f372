"""Serve one local page that shows a daemon at work, or a log: picture, top view, plots, health.

Without LOG the daemon on the bus is followed, and the camera's frames are taken from its rings: a
process of its own with low priority, of which the daemon knows nothing. With LOG the page has a
timeline to drag. LOG is an event log, or a segment, route or drive with its videos; --drive names
the drive that a log was made from. A log without frames, or without answers of a model, shows the
rest.

The page is served on this machine only; to watch from another one, take its port along:
ssh -L 8417:127.0.0.1:8417 DEVICE. Up to eight pages may watch. SIGTERM ends it with exit code 0,
Ctrl-C with 130. With --json one object is printed when the page is there: url, mode (live or log)
and source.

Example:
  modeld view
  modeld view --bus ipc:///run/modeld --camera-server camerad
  modeld view out.rlog.zst --drive drive.mp4
  modeld view drives/2023-07-27--13-01-19--5
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import webbrowser
from contextlib import ExitStack
from typing import TYPE_CHECKING

from modeld.startup import StopRequested, StopSignals
from tools.drives.arguments import add_drive_arguments, drive_options
from tools.errors import UsageError
from tools.lib.bus_options import add_bus_arguments
from tools.lib.json_output import print_json
from tools.lib.number_options import above, whole

if TYPE_CHECKING:
    import socket

PORT = 8417
RATE_HZ, WIDTH = 10.0, 960
MAX_RATE_HZ, MAX_WIDTH = 20.0, 1928


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "log", nargs="?", metavar="LOG", help="event log, segment or route (the daemon on the bus)"
    )
    parser.add_argument("--drive", metavar="DRIVE", help="the drive that the log was made from")
    add_bus_arguments(parser)
    parser.add_argument(
        "--camera-server",
        default="camerad",
        metavar="ADDRESS",
        help="NAME of the frame rings, visionipc:NAME or visionipc+zmq:NAME (camerad)",
    )
    page = parser.add_argument_group("page")
    page.add_argument("--host", default="127.0.0.1", help="address to serve on (127.0.0.1)")
    page.add_argument(
        "--port",
        type=whole("--port", 0, 65535),
        default=PORT,
        help=f"0 takes any that is free ({PORT})",
    )
    page.add_argument(
        "--expose", action="store_true", help="let other machines watch: with their --host"
    )
    page.add_argument("--open", action="store_true", help="open the page in a browser")
    page.add_argument(
        "--picture-rate",
        type=above("--picture-rate", 0, MAX_RATE_HZ),
        default=RATE_HZ,
        metavar="HZ",
        help=f"at most this many pictures a second ({RATE_HZ:g})",
    )
    page.add_argument(
        "--picture-width",
        type=whole("--picture-width", 64, MAX_WIDTH),
        default=WIDTH,
        metavar="PX",
        help=f"of the pictures, at most ({WIDTH})",
    )
    add_drive_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return 0 after SIGTERM, 130 after SIGINT."""
    if args.drive is not None and args.log is None:
        raise UsageError("--drive: expected a log beside it, found none; name the log of the drive")
    # Here, because they need the extra `view`: usage errors come first.
    from tools.live.serve import ServeOptions, live_session, log_session, serve
    from tools.live.server import Address, open_socket, url_of

    address = Address(args.host, args.port, args.expose)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        listening: socket.socket = stack.enter_context(open_socket(address))
        url = url_of(args.host, listening.getsockname()[1])
        options = ServeOptions(
            args.picture_rate, args.picture_width, drive_options(args), args.drive
        )
        try:
            # A long log is read for a while.
            with stop.interrupting():
                if args.log is None:
                    session = live_session(args, options, stack)
                else:
                    session = log_session(args.log, options, stack)
        except StopRequested:
            return stop.exit_code

        def on_ready() -> None:
            if args.json:
                print_json({"url": url, "mode": session.mode, "source": session.title})
            elif not args.quiet:
                print(f"{session.title}: {url}", flush=True)
            if args.open and not webbrowser.open(url):
                print(f"no browser could be opened; open {url}", file=sys.stderr)

        asyncio.run(serve(session, address, listening, stop.event, on_ready))
        return stop.exit_code


if __name__ == "__main__":
    from tools.cli import main

    sys.exit(main(["view", *sys.argv[1:]]))
