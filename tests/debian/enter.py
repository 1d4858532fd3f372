"""Runs a command in a root directory, with mounts and processes of its own.

    python enter.py --root DIRECTORY [--emulator QEMU] [--bind FROM TO] ... -- COMMAND ...

Nothing of it can be left behind, however it ends: mounts, processes and the handler by which the
kernel runs programs of aarch64 are those of name spaces that end with their first process, and that
one is killed when the process that started this one ends. It imports nothing of ours, so it starts
at once.
"""

import argparse
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

_NEW_MOUNTS, _NEW_USERS, _NEW_PROCESSES = 0x00020000, 0x10000000, 0x20000000
_BIND, _BIND_ALL, _PRIVATE_ALL = 4096, 4096 | 16384, 0x44000
_SET_DEATH_SIGNAL = 1
_libc = ctypes.CDLL(None, use_errno=True)

# What the kernel knows an executable of aarch64 by: magic, mask. `F` opens the emulator at once, so
# that it needs no place in the root; `P` keeps the name that a program was called by.
_AARCH64 = (
    rb"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
    rb"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the command's exit code, as a shell does for signals; 125 if nothing was started."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--emulator", type=Path, help="runs programs of aarch64")
    parser.add_argument("--bind", nargs=2, action="append", default=[], metavar=("FROM", "TO"))
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(arguments)
    try:
        _end_with_parent()
        _own_name_spaces(users=args.emulator is not None)
    except OSError as error:
        print(f"{error.filename or error}: {error.strerror}", file=sys.stderr)
        return 125
    return _ended(_forked(lambda: _first_process(args)))


def _own_name_spaces(*, users: bool) -> None:
    """Take mounts and processes of our own; a handler also takes users, mapped one to one."""
    flags = _NEW_MOUNTS | _NEW_PROCESSES | (_NEW_USERS if users else 0)
    if not users:
        _checked(_libc.unshare(flags), "name spaces")
        return
    # Only a process outside may say who the users are.
    this, (read, write) = os.getpid(), os.pipe()

    def map_users() -> int:
        os.close(write)
        os.read(read, 1)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{this}/{kind}").write_text(f"0 0 {0xFFFFFFFF}\n")
        return 0

    mapper = _forked(map_users)
    _checked(_libc.unshare(flags), "name spaces")
    os.close(write)
    if _ended(mapper) != 0:
        raise OSError(1, "its users cannot be mapped", "name spaces")


def _first_process(args: argparse.Namespace) -> int:
    """Mount everything, start the command, and gather what its processes leave."""
    _end_with_parent()
    root: Path = args.root
    try:
        _mount("none", "/", _PRIVATE_ALL)
        _mount("proc", root / "proc", 0, "proc")
        _mount("/sys", root / "sys", _BIND_ALL)
        _mount("/dev", root / "dev", _BIND_ALL)
        for name in ("dev/shm", "run", "tmp"):
            _mount("tmpfs", root / name, 0, "tmpfs")
        for source, target in args.bind:
            _mount(source, root / target.lstrip("/"), _BIND)
        if args.emulator is not None:
            _register(root / "proc/sys/fs/binfmt_misc", args.emulator)
        os.chroot(root)
        os.chdir("/")
    except OSError as error:
        print(f"{error.filename or error}: {error.strerror}", file=sys.stderr)
        return 125
    command = _forked(lambda: os.execvp(args.command[0], args.command))  # noqa: S606 - its purpose
    while True:
        number, status = os.wait()
        if number == command:
            return _code(status)


def _register(place: Path, emulator: Path) -> None:
    try:
        _mount("binfmt_misc", place, 0, "binfmt_misc")
    except OSError as error:
        found = f"Linux {os.uname().release}: {error.strerror}"
        what = "handlers of programs for a name space of users: expected Linux 6.7 or newer, found"
        raise OSError(error.errno, found, what) from error
    magic, mask = _AARCH64
    line = b":aarch64:M::" + magic + b":" + mask + b":" + os.fsencode(emulator) + b":PF"
    (place / "register").write_bytes(line)


def _forked(run: Callable[[], int]) -> int:
    child = os.fork()
    if child == 0:
        code = 125
        try:
            code = run()
        except OSError as error:
            print(f"{error.filename or error}: {error.strerror}", file=sys.stderr)
        finally:
            os._exit(code)
    return child


def _ended(process: int) -> int:
    return _code(os.waitpid(process, 0)[1])


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _end_with_parent() -> None:
    _checked(_libc.prctl(_SET_DEATH_SIGNAL, signal.SIGKILL), "prctl")


def _mount(source: str, target: str | Path, flags: int, kind: str = "") -> None:
    texts = [os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), None), f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    sys.exit(main())
