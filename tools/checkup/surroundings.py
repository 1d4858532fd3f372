"""Parts of a checkup about other processes: daemons on the bus, and camera processes.

Each part is a function that returns a `Section` of the report of ``modeld doctor``.
"""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Final

from cereal.errors import CerealError
from cereal.frame_ring import MAGIC
from cereal.frames import DIRECTORY as RINGS
from cereal.stacks import VISION_ENDPOINT
from cereal.visionipc.protocol import DIRECTORY as SOCKETS
from tools.checkup.findings import Section
from tools.service.health import HealthEar, problems_of
from tools.service.options import open_bus

# A daemon reports once a second.
LISTEN_S: Final = 2.5
_DAEMON: Final = ("modeld", "modeld.process", "dmonitoringmodeld")


def bus(options: argparse.Namespace, proc: Path = Path("/proc")) -> Section:
    """Report the daemons on the bus and their problems. Publishes nothing."""
    section = Section("bus")
    running = sum(1 for _ in daemon_processes(proc))
    section.facts["daemon_processes"] = running
    section.facts["bus"] = options.bus.partition("://")[0]
    try:
        transport = open_bus(options)
    except CerealError as error:
        section.bad(f"the bus cannot be opened: {error}", "see docs/formats/bus.md for addresses")
        return section
    try:
        heard = HealthEar(transport, Event()).listen(LISTEN_S)
    finally:
        transport.close()
    section.facts["heard"] = {
        name: {"phase": health["phase"], "problems": problems_of(health)}
        for name, health in heard.items()
    }
    for name, health in heard.items():
        problems = problems_of(health)
        for problem in problems:
            section.bad(f"{name}: {problem}", "see modeld status, and docs/faults.md")
        if not problems:
            section.good(f"{name}: {health['phase']}, no problems")
    if not heard and running:
        section.look(
            f"a daemon is running, but no messages arrive on {section.facts['bus']}",
            "pass the bus address of its configuration with --bus",
        )
    elif not heard:
        section.good("no daemon is running")
    return section


def daemon_processes(proc: Path) -> Iterator[int]:
    """Yield the IDs of our daemon processes, as far as this user can read their command lines."""
    for place in proc.glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        names = [Path(word).name for word in words[:6]]
        after = [b for a, b in pairwise(names) if a in ("modeld", "tools.cli")]
        if "run" in after or any(name in _DAEMON[1:] for name in names):
            yield int(place.parent.name)


def cameras(rings: Path = RINGS, sockets: Path = SOCKETS) -> Section:
    """Report the camera processes that offer frames, without requesting any.

    `rings` is the directory of frame rings, `sockets` that of VisionIPC's sockets.
    """
    section = Section("cameras")
    found = sorted(_frame_rings(rings))
    servers = sorted(p.name for p in sockets.glob(f"*{VISION_ENDPOINT}*") if _is_socket(p))
    section.facts = {"rings": found, "visionipc": servers}
    unreadable = [name for name in servers if not os.access(sockets / name, os.R_OK | os.W_OK)]
    if unreadable:
        section.bad(
            f"VisionIPC: {', '.join(unreadable)} cannot be opened by this user",
            "run the daemon as the user of the camera process, or in its group",
        )
    if found:
        section.good(f"rings of frames: {', '.join(found)}")
    if servers:
        section.good(f"VisionIPC: {', '.join(servers)}")
    if not found and not servers:
        section.good("no camera process offers frames now; the daemon waits for one")
    return section


def _frame_rings(directory: Path) -> Iterator[str]:
    try:
        paths = list(directory.iterdir())
    except OSError:
        return
    for path in paths:
        if path.is_file() and _is_frame_ring(path):
            yield path.name


def _is_frame_ring(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(8) == MAGIC.to_bytes(8, "little")
    except OSError:
        return False


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False
