"""The conditions: what each changes for a process, and which tests tell most under it."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

GIB = 1 << 30
MEMORY_BYTES = 4 * GIB
SHM_BYTES = 64 << 20  # what containers get where nobody asks for more
# Spaces, accents, another alphabet, a quote and a per cent sign.
ODD_NAME = "odd % näme with 'spaces' и ещё"
SHM = "/dev/shm"  # noqa: S108 - the place of frame rings


class Unavailable(Exception):  # noqa: N818 - nothing is wrong: this machine cannot be made so
    """The condition cannot be made on this machine; says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a condition may put things.

    Attributes:
        tree: the checkout.
        own: an empty directory of this condition.
        kernels: a cache that conditions share, so that equal kernels are compiled once.
    """

    tree: Path
    own: Path
    kernels: Path

    def setting(
        self, enter: Callable[[], None] | None = None, /, **variables: str | None
    ) -> Setting:
        """Return processes in the checkout that use the cache of the conditions."""
        return Setting(self.tree, {"MODELD_CACHE_DIR": str(self.kernels), **variables}, enter)


@dataclass(frozen=True, slots=True)
class Setting:
    """How processes are started under a condition.

    Attributes:
        root: working directory, a source tree.
        environment: variables to set; None removes one.
        enter: called in the new process before its program starts.
        tests: whether tests can run at all.
    """

    root: Path
    environment: Mapping[str, str | None] = field(default_factory=dict)
    enter: Callable[[], None] | None = None
    tests: bool = True


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    name: str
    what: str
    prepare: Callable[[Place], Setting]
    tests: tuple[str, ...]


def _cpu(name: str) -> Callable[[Place], Setting]:
    return lambda place: place.setting(MODELD_POCL_CPU=name)


def _one_core(place: Place) -> Setting:
    core = min(os.sched_getaffinity(0))
    return place.setting(lambda: os.sched_setaffinity(0, {core}))


def _little_memory(place: Place) -> Setting:
    """Limit what a process may have of private, writable memory.

    Not its address space (RLIMIT_AS): libraries reserve more of that than they use, LLVM and
    OpenBLAS among them, and mapped artifacts count there too. A control group would also count
    what children use together, but needs rights that CI seldom has.
    """
    limit = (MEMORY_BYTES, MEMORY_BYTES)
    return place.setting(lambda: resource.setrlimit(resource.RLIMIT_DATA, limit))


def _missing_home(place: Place) -> Setting:
    """Put the home below a file: no user can write there, not even root, whom modes do not stop."""
    (place.own / "file").touch()
    home = str(place.own / "file" / "home")
    cache = str(place.own / "file" / "cache")
    return Setting(place.tree, {"HOME": home, "XDG_CACHE_HOME": None, "MODELD_CACHE_DIR": cache})


def _read_only_home(place: Place) -> Setting:
    """Mount the home read-only, for these processes alone; its cache directory exists."""
    home = place.own / "home"
    cache = home / ".cache" / "modeld"
    cache.mkdir(parents=True)

    def mounts() -> None:
        _mount(str(home), str(home), _MS_BIND)
        _mount(str(home), str(home), _MS_BIND | _MS_REMOUNT | _MS_RDONLY)

    environment = {"HOME": str(home), "XDG_CACHE_HOME": None, "MODELD_CACHE_DIR": str(cache)}
    return Setting(place.tree, environment, _in_own_mounts(mounts))


def _no_home(place: Place) -> Setting:
    names = ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")
    return place.setting(**dict.fromkeys(names))


def _odd_path(place: Place) -> Setting:
    """Copy the tree, and let temporary files, the cache and the home lie below such a path too."""
    base = place.own / ODD_NAME
    tree = base / "tree"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - whichever git the developer uses
        cwd=place.tree,
        capture_output=True,
        check=False,
    )
    if listed.returncode != 0:
        raise Unavailable("no checkout to copy")
    for name in filter(None, os.fsdecode(listed.stdout).split("\0")):
        if (place.tree / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(place.tree / name, tree / name)
    for name in ("tmp", "home"):
        (base / name).mkdir()
    environment = {
        "HOME": str(base / "home"),
        "TMPDIR": str(base / "tmp"),
        "MODELD_CACHE_DIR": str(base / "cache"),
        "PYTHONPATH": str(tree),
    }
    return Setting(tree, environment)


def _small_shm(place: Place) -> Setting:
    mount = functools.partial(_mount, "tmpfs", SHM, 0, "tmpfs", f"size={SHM_BYTES}")
    return place.setting(_in_own_mounts(mount))


def _locale_c(place: Place) -> Setting:
    unset = dict.fromkeys(name for name in os.environ if name.startswith(("LC_", "LANG")))
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return place.setting(**{**unset, "PYTHONIOENCODING": None, **ascii_only})


def _terminal(place: Place) -> Setting:
    narrow = {"COLUMNS": "20", "LINES": "4", "TERM": "dumb"}
    return place.setting(_private_files, **narrow, TZ="FAR-13:45")


def _private_files() -> None:
    os.umask(0o077)


def _no_linker(place: Place) -> Setting:
    """Leave nothing in PATH but a shell: no `ld`, no compiler."""
    programs = place.own / "bin"
    programs.mkdir()
    for name in ("sh", "env", "git"):
        found = shutil.which(name)
        if found:
            (programs / name).symlink_to(found)
    # With the `linker` extra PoCL links all the same; without it the refusal is what is proved.
    links = importlib.util.find_spec("ziglang") is not None
    return replace(place.setting(PATH=str(programs)), tests=links)


_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MS_REC_PRIVATE = 0x44000
_CLONE_NEWNS = 0x20000


def _in_own_mounts(mounts: Callable[[], None]) -> Callable[[], None]:
    """Return a function that gives its process mounts of its own, and then makes some."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        if libc.unshare(_CLONE_NEWNS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        _mount("none", "/", _MS_REC_PRIVATE)
        mounts()

    child = os.fork()
    if child == 0:
        try:
            enter()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise Unavailable("this user may not mount")
    return enter


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [os.fsencode(text) for text in (source, target, kind)]
    if libc.mount(*texts, ctypes.c_ulong(flags), os.fsencode(options)) != 0:
        raise OSError(ctypes.get_errno(), f"mount {target}")


_KERNELS = ("tests/fuzz/test_fuzz.py", "tests/runtime/test_executor.py")
_DEVICES = ("tests/runtime/test_device.py", "tests/tools/test_cli.py")
_NARROW = (*_KERNELS, "tests/scheduler/passes/test_precision.py")
_COMMANDS = ("tests/runtime/test_commands.py", "tests/tools/test_cli.py")
_FILES = (
    *_COMMANDS,
    *("tests/runtime/test_artifact.py", "tests/cereal/test_log_reader.py"),
    *("tests/scheduler/onnx_import/test_load.py", "tests/tools/lib/test_inspect_model.py"),
    *("tests/tools/lib/test_report.py", "tests/tools/lib/test_outputs.py"),
)
_ALL = (
    Condition("cpu-generic", "a CPU that PoCL's compiler cannot name", _cpu("generic"), _NARROW),
    Condition("cpu-unknown", "a CPU with a name of no meaning", _cpu("nonsense-cpu"), _KERNELS),
    Condition("cpu-avx2", "a CPU with AVX2 and no AVX-512", _cpu("x86-64-v3"), _NARROW),
    Condition("cpu-sse", "a CPU without AVX", _cpu("x86-64-v2"), _NARROW),
    Condition(
        "one-core",
        "one core",
        _one_core,
        (*_KERNELS, "tests/runtime/test_megakernel.py"),
    ),
    Condition("memory-4g", "4 GiB of memory (RLIMIT_DATA)", _little_memory, _NARROW),
    Condition("home-missing", "no home, and no cache that can be made", _missing_home, _COMMANDS),
    Condition("home-read-only", "home and cache on a read-only mount", _read_only_home, _COMMANDS),
    Condition(
        "no-home",
        "HOME and its relatives not set",
        _no_home,
        _DEVICES,
    ),
    Condition("odd-path", f"everything below {ODD_NAME!r}", _odd_path, _FILES),
    Condition("locale-c", "locale C, no UTF-8 mode", _locale_c, _FILES),
    Condition("terminal", "20 columns, a far time zone, umask 077", _terminal, _FILES),
    Condition(
        "small-shm",
        "64 MiB of /dev/shm",
        _small_shm,
        ("tests/cereal/test_frames.py", "tests/tools/lib/test_camera.py"),
    ),
    Condition("no-linker", "no linker and no compiler in PATH", _no_linker, _KERNELS),
)
CONDITIONS = {condition.name: condition for condition in _ALL}
