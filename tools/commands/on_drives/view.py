"""Serve one local page that shows a daemon at work, or a log: picture, top view, plots, health.

Without LOG the page follows the daemon on the bus and reads the camera's frames from its rings, in
a low-priority process that sends nothing to the daemon. With LOG the page has a timeline. LOG is an
event log, or a segment, route or drive with its videos; --drive names the drive that a log was made
from. If a log lacks frames or model outputs, the page shows the rest. A long log is shown
immediately and loads in the background.

--with draws a second log of the same frames over the first, frame by frame, and marks differences.
Any field of any service can be searched on the page and plotted; --layout starts with a saved
selection.

The page is served on this machine only; to watch from another one, forward the port: ssh -L
8417:127.0.0.1:8417 DEVICE. Up to eight browser tabs can connect. SIGTERM ends the command with exit
code 0, Ctrl-C with 130. With --json one object is printed when the page is ready: url, mode (live
or log) and source.

Example:
  modeld view
  modeld view --bus ipc:///run/modeld --camera-server camerad
  modeld view out.rlog.zst --drive drive.mp4
  modeld view drives/2023-07-27--13-01-19--5
  modeld view out.rlog.zst --with before.rlog.zst --layout steering.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import webbrowser
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from modeld.startup import StopRequested, StopSignals
from tools.drives.open_drive import add_drive_arguments, drive_options
from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import above, whole
from tools.service.options import add_bus_arguments

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
    parser.add_argument(
        "--with", metavar="OTHER", help="a second log, drawn over the first frame by frame"
    )
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
        help=f"port, 0 for any free one ({PORT})",
    )
    page.add_argument(
        "--expose", action="store_true", help="let other machines connect; set --host too"
    )
    page.add_argument(
        "--layout", type=Path, metavar="FILE", help="start with a layout saved on the page"
    )
    page.add_argument("--open", action="store_true", help="open the page in a browser")
    page.add_argument(
        "--picture-rate",
        type=above("--picture-rate", 0, MAX_RATE_HZ),
        default=RATE_HZ,
        metavar="HZ",
        help=f"maximum pictures per second ({RATE_HZ:g})",
    )
    page.add_argument(
        "--picture-width",
        type=whole("--picture-width", 64, MAX_WIDTH),
        default=WIDTH,
        metavar="PX",
        help=f"maximum picture width ({WIDTH})",
    )
    add_drive_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; return 0 after SIGTERM, 130 after SIGINT."""
    if args.drive is not None and args.log is None:
        raise UsageError("--drive: expected a log with it, found none; name the log of the drive")
    if getattr(args, "with") is not None and args.log is None:
        raise UsageError("--with: expected a log with it, found none; name the first log, too")
    # Imported here because they need the extra `view`; usage errors are reported first.
    from tools.live.serve import ServeOptions, live_session, log_session, serve
    from tools.live.server import Address, open_socket, url_of
    from tools.live.viewers import load_layout

    address = Address(args.host, args.port, args.expose)
    with ExitStack() as stack:
        stop = stack.enter_context(StopSignals())
        listening: socket.socket = stack.enter_context(open_socket(address))
        url = url_of(args.host, listening.getsockname()[1])
        options = ServeOptions(
            args.picture_rate,
            args.picture_width,
            drive_options(args),
            args.drive,
            getattr(args, "with"),
            load_layout(args.layout) if args.layout is not None else None,
        )
        try:
            # A log whose first frame comes late takes a while to open.
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
