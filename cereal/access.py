"""Says in a few words why a path may not be used: whose it is, its mode, and who asks.

Modes of what this package makes are set on purpose, whatever the umask of the process is
(docs/formats/bus.md, ADR 0092); this is for the reader of a refusal.
"""

import grp
import os
import pwd
import stat
from pathlib import Path
from typing import Final

ADVICE: Final = (
    "run both processes with one group, or correct group and mode (docs/formats/bus.md#who-may-use)"
)


def owner_and_mode(path: Path) -> str:
    """Return whose `path` is, for a message: "/run/b belongs to root:root with mode 0755".

    Where it cannot be looked at, this is said of the lowest directory above it that can.
    """
    for place in (path, *path.parents):
        try:
            status = place.lstat()
        except OSError:
            continue
        owner = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
        return f"{place} belongs to {owner} with mode {stat.S_IMODE(status.st_mode):04o}"
    return f"{path} cannot be looked at"


def why_refused(path: Path) -> str:
    """Return whose `path` is, who this process is, and what to do: the end of a message."""
    asks = f"{user_name(os.geteuid())}:{group_name(os.getegid())}"
    return f"{owner_and_mode(path)}, this process is {asks}; {ADVICE}"


def user_name(number: int) -> str:
    """Return the name of a user, or the number where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    """Return the name of a group, or the number where it has none."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def set_mode(descriptor: int, mode: int) -> None:
    """Give an open file of this process its mode; another's is left as it is."""
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)
