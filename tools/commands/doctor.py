"""Check a machine for the daemon: devices, drivers, permissions, self-test, kernels, bus, cameras.

Each section has a verdict (good, to look at, or bad) and the next step. Nothing is changed, and a
running daemon is not disturbed: its health is read the way modeld status does, and checks that need
the device are skipped unless --beside-daemon is given. Each section runs in its own process with a
time limit, and reports if it reached that limit.

The self-test and the ten slowest kernels use the given artifact, else the model selected in the
store, else a small example that is compiled on the spot. Kernel times are shown next to the
device's ceilings, measured in the same run.

--output writes one file to attach to a report. User and host names, home paths, values of
environment variables, addresses and serial numbers are removed from everything shown or written.
Exit code 0: no section is bad; 1: one is.

Examples:
  modeld doctor
  modeld doctor driving.pkl --device gpu
  modeld doctor --output report.txt
  modeld doctor --beside-daemon --bus ipc:///run/modeld --json
"""

from __future__ import annotations

import argparse
import getpass
import logging
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from modeld.store.model_store import DEFAULT_STORE
from runtime.files.user_file import whole_file
from tools.checkup.findings import Scrubber, Section, Verdict, report_plain, report_text
from tools.checkup.parts import LIMITS, ON_DEVICE, run_in_process
from tools.errors import UsageError
from tools.lib.json_output import json_text, print_json
from tools.lib.options import MOST_S, above
from tools.service.options import add_bus_arguments

logger = logging.getLogger(__name__)

SUFFIXES: Final = (".txt", ".json")
_BUS: Final = ("bus", "publish", "subscribe", "bus_keys", "stack", "port_hash", "sends")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "artifact", nargs="?", type=Path, help="artifact to run (the store's, else a small example)"
    )
    parser.add_argument("--device", help="OpenCL device, see modeld devices (the best)")
    parser.add_argument(
        "--store", type=Path, default=DEFAULT_STORE, metavar="DIRECTORY", help=f"({DEFAULT_STORE})"
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="also write the report: .txt or .json"
    )
    parser.add_argument(
        "--beside-daemon",
        action="store_true",
        help="run self-test and kernels even if a daemon runs, which they may delay",
    )
    longest = ", ".join(f"{name} {limit:g}" for name, limit in LIMITS.items())
    parser.add_argument(
        "--limit",
        type=above("--limit", 0, MOST_S),
        metavar="S",
        help=f"time limit per section in seconds ({longest})",
    )
    add_bus_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run all checks, print and write the report; return 1 if a section is bad, else 0.

    Raises:
        UsageError: the output file has no known ending.
    """
    if args.output is not None and args.output.suffix not in SUFFIXES:
        raise UsageError(
            f"--output: expected a file named {' or '.join(SUFFIXES)}, found {args.output.name}"
        )
    scrubber = _scrubber()
    sections: list[Section] = []
    for section in _sections(args):
        sections.append(Section.of_plain(scrubber.plain(section.plain())))
        logger.info("%s: %s, %.1f s", section.name, section.verdict, section.seconds)
    if args.json:
        print_json(report_plain(sections))
    else:
        print(report_text(sections))
    if args.output is not None:
        _write(args.output, sections)
    return int(any(section.verdict is Verdict.BAD for section in sections))


def _sections(args: argparse.Namespace) -> Iterator[Section]:
    with tempfile.TemporaryDirectory(prefix="modeld-doctor-", ignore_cleanup_errors=True) as place:
        request: dict[str, Any] = {
            "device": args.device,
            "path": None if args.artifact is None else str(args.artifact.absolute()),
            "store": str(args.store),
            "place": place,
            "bus": {name: _plain(getattr(args, name)) for name in _BUS},
        }
        drives = False
        for name, limit_s in LIMITS.items():
            skipped = _skipped(name, request, drives=drives and not args.beside_daemon)
            if skipped is not None:
                yield skipped
                continue
            section = run_in_process(name, request, args.limit or limit_s)
            if name == "bus":
                drives = bool(section.facts.get("heard") or section.facts.get("daemon_processes"))
            if name == "artifact":
                request["path"] = section.facts.pop("path", None)
            yield section


def _skipped(name: str, request: dict[str, Any], *, drives: bool) -> Section | None:
    """Return a section that says why a part is skipped, or None if the part runs.

    `drives` tells whether a daemon runs that must not be disturbed.
    """
    if name not in ON_DEVICE:
        return None
    section = Section(name)
    if drives:
        section.good("skipped: a daemon runs and needs the device (--beside-daemon overrides this)")
        return section
    if name != "artifact" and request["path"] is None:
        section.look("skipped: there is no artifact to run", "see the section artifact")
        return section
    return None


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _scrubber() -> Scrubber:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        user = ""
    home = os.path.expanduser("~")  # noqa: PTH111 -- Path.home raises where there is none
    return Scrubber(user, home, platform.node(), os.environ)


def _write(path: Path, sections: list[Section]) -> None:
    text = report_text(sections)
    if path.suffix == ".json":
        text = json_text(report_plain(sections), indent=1)
    with whole_file(path) as file:
        file.write(f"{text}\n".encode())
