"""Explains refused access: the owner and mode of a path, or the process holding a port or lock.

The results are parts of error messages. Files that this package creates have modes that do not
depend on the umask (docs/formats/bus.md, ADR 0092).
"""

import grp
import ipaddress
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

ADVICE: Final = (
    "run both processes with one group, or correct group and mode (docs/formats/bus.md#permissions)"
)


def owner_and_mode(path: Path) -> str:
    """Return the owner and mode of `path`: "/run/b belongs to root:root with mode 0755".

    If this process cannot see `path`, the result is about its closest visible parent directory.
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
    """Return the end of an error message: the owners of `path` and this process, and advice."""
    asks = f"{user_name(os.geteuid())}:{group_name(os.getegid())}"
    return f"{owner_and_mode(path)}, this process is {asks}; {ADVICE}"


def user_name(number: int) -> str:
    """Return a user's name, or the number as text if the user has no name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def group_name(number: int) -> str:
    """Return a group's name, or the number as text if the group has no name."""
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of an open file if this process's user owns it; otherwise do nothing."""
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != mode:
        os.fchmod(descriptor, mode)


# --- The process that holds a port or a lock --------------------------------------------------
# These functions read a bounded part of /proc once, after a refusal. For a socket of another user
# they find only the user.

_PROC: Final = Path("/proc")
_LISTENS: Final = "0A"
# Limits on sockets, locks, and open files of all processes. Each takes about 0.1 s to read.
_MAX_ROWS: Final = 50_000
_MAX_FILES: Final = 50_000
_MAX_COMMAND: Final = 60

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Socket(NamedTuple):
    state: str
    user: int
    inode: int


def holder_of_port(port: int, host: str) -> str | None:
    """Return the holder of a TCP port, such as "process 4711 (./bridge)"; None if unknown.

    A `host` that is not an IP address, such as "*" or a name, matches every address.
    """
    wanted: _Ip | None = None
    with suppress(ValueError):
        wanted = ipaddress.ip_address(host.strip("[]"))
    with suppress(OSError, ValueError, IndexError):
        # An outgoing connection also has a port, but a listening socket is the likelier holder.
        found = sorted(_sockets(port, wanted), key=lambda one: one.state != _LISTENS)
        if found:
            process = _process_with(f"socket:[{found[0].inode}]")
            return process or f"a process of user {user_name(found[0].user)}"
    return None


def holder_of_lock(descriptor: int) -> str | None:
    """Return the holder of the `flock` of an open file, in the form of `holder_of_port`."""
    with suppress(OSError, ValueError, IndexError):
        status = os.fstat(descriptor)
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
        file = f"{device}:{status.st_ino}"
        for words in _rows(_PROC / "locks"):
            # The row of a waiting process has an arrow after its number, which shifts the columns.
            if words[1] == "FLOCK" and words[5] == file and int(words[4]) > 0:
                return name_of_process(int(words[4]))
    return None


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as lines:
        for line in islice(lines, _MAX_ROWS):
            yield line.split()


def _sockets(port: int, wanted: _Ip | None) -> Iterator[_Socket]:
    """Yield the sockets that prevent binding a port at address `wanted`; None is any address."""
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for words in islice(_rows(_PROC / "net" / name), 1, None):
                address, _, hexadecimal = words[1].partition(":")
                inode = int(words[9])
                if int(hexadecimal, 16) == port and inode and _is_at(_ip(address), wanted):
                    yield _Socket(words[3], int(words[7]), inode)


def _ip(hexadecimal: str) -> _Ip:
    """Parse an address of /proc/net: 32-bit words in this machine's byte order."""
    words = (int(hexadecimal[i : i + 8], 16) for i in range(0, len(hexadecimal), 8))
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def _is_at(held: _Ip, wanted: _Ip | None) -> bool:
    return wanted is None or held == wanted or held.is_unspecified or wanted.is_unspecified


def _process_with(link: str) -> str | None:
    """Return the first process with an open file whose link in /proc/PID/fd reads `link`."""
    left = _MAX_FILES
    for number in filter(str.isdecimal, _names(str(_PROC))):
        files = f"{_PROC}/{number}/fd"
        for file in islice(_names(files), left):
            left -= 1
            with suppress(OSError):  # it was closed meanwhile
                if os.readlink(f"{files}/{file}") == link:  # noqa: PTH115 -- of many, fast
                    return name_of_process(int(number))
    return None


def _names(directory: str) -> list[str]:
    """Return the names in a directory; [] if it has disappeared or belongs to another user."""
    try:
        return os.listdir(directory)  # noqa: PTH208 -- only names are needed
    except OSError:
        return []


def name_of_process(number: int) -> str | None:
    """Return a process or thread ID together with its command; None if it does not exist."""
    place = _PROC / str(number)
    if not place.is_dir():
        return None
    words = b""
    with suppress(OSError), (place / "cmdline").open("rb") as file:
        words = file.read(4 * _MAX_COMMAND)
    command = words.replace(b"\0", b" ").decode(errors="replace").strip()
    # A command line may hold any character, but a message has one line.
    command = "".join(one if one.isprintable() else "?" for one in command)
    if len(command) > _MAX_COMMAND:
        command = f"{command[: _MAX_COMMAND - 3]}..."
    return f"process {number} ({command})" if command else f"process {number}"
