"""Explains a refusal: the owner and mode of a path, or the process that holds a port or a lock.

The modes of what this package makes do not depend on the umask (docs/formats/bus.md, ADR 0092).
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
    """Return the owner of `path` for a message: "/run/b belongs to root:root with mode 0755".

    If this process cannot look at it, the message is about the lowest directory above that it can
    see.
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
    """Return the end of a message: the owners of `path` and of this process, and what to do."""
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


# --- The process that holds a port or a lock --------------------------------------------------
# It reads a bounded part of /proc once, after a refusal. Of a socket of another user, it sees only
# the user.

_PROC: Final = Path("/proc")
_LISTENS: Final = "0A"
# Of sockets, of locks, and of open files of all processes: a tenth of a second each.
_MOST_ROWS: Final = 50_000
_MOST_FILES: Final = 50_000
_MOST_COMMAND: Final = 60

_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


class _Socket(NamedTuple):
    state: str
    user: int
    inode: int


def holder_of_port(port: int, host: str) -> str | None:
    """Return who holds a TCP port, as "process 4711 (./bridge)"; None if nobody can tell.

    A `host` that is not a number, such as "*" or a name, stands for every address.
    """
    wanted: _Ip | None = None
    with suppress(ValueError):
        wanted = ipaddress.ip_address(host.strip("[]"))
    with suppress(OSError, ValueError, IndexError):
        # An outgoing connection has a port, too, but a listener is the likelier holder.
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
            # A waiting process has an arrow after the number.
            if words[1] == "FLOCK" and words[5] == file and int(words[4]) > 0:
                return name_of_process(int(words[4]))
    return None


def _rows(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as lines:
        for line in islice(lines, _MOST_ROWS):
            yield line.split()


def _sockets(port: int, wanted: _Ip | None) -> Iterator[_Socket]:
    """Yield the sockets that keep others from binding a port at an address; None: at any."""
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6
            for words in islice(_rows(_PROC / "net" / name), 1, None):
                address, _, hexadecimal = words[1].partition(":")
                inode = int(words[9])
                if int(hexadecimal, 16) == port and inode and _is_at(_ip(address), wanted):
                    yield _Socket(words[3], int(words[7]), inode)


def _ip(hexadecimal: str) -> _Ip:
    """Read an address of /proc/net: words of 32 bits in the order of this machine's bytes."""
    words = (int(hexadecimal[i : i + 8], 16) for i in range(0, len(hexadecimal), 8))
    found = ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    return getattr(found, "ipv4_mapped", None) or found


def _is_at(held: _Ip, wanted: _Ip | None) -> bool:
    return wanted is None or held == wanted or held.is_unspecified or wanted.is_unspecified


def _process_with(link: str) -> str | None:
    """Return the first process that has a file open of which the link says so."""
    left = _MOST_FILES
    for number in filter(str.isdecimal, _names(str(_PROC))):
        files = f"{_PROC}/{number}/fd"
        for file in islice(_names(files), left):
            left -= 1
            with suppress(OSError):  # it was closed meanwhile
                if os.readlink(f"{files}/{file}") == link:  # noqa: PTH115 -- of many, fast
                    return name_of_process(int(number))
    return None


def _names(directory: str) -> list[str]:
    """Return the names in a directory; none where it has gone, or is another user's."""
    try:
        return os.listdir(directory)  # noqa: PTH208 -- only names are needed
    except OSError:
        return []


def name_of_process(number: int) -> str | None:
    """Return a process, or that of a thread, with its command; None of one that is not there."""
    place = _PROC / str(number)
    if not place.is_dir():
        return None
    words = b""
    with suppress(OSError), (place / "cmdline").open("rb") as file:
        words = file.read(4 * _MOST_COMMAND)
    command = words.replace(b"\0", b" ").decode(errors="replace").strip()
    # A command line may hold any character, but a message has one line.
    command = "".join(one if one.isprintable() else "?" for one in command)
    if len(command) > _MOST_COMMAND:
        command = f"{command[: _MOST_COMMAND - 3]}..."
    return f"process {number} ({command})" if command else f"process {number}"
