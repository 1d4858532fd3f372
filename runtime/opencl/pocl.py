"""Workarounds for PoCL: provides a linker on PATH, and can replace PoCL's name of the CPU.

PoCL turns each kernel into a shared object with the `ld` that clang's driver finds on PATH, and
aborts the process if there is none. A machine with only Python has none, but the `ziglang` package
contains LLVM's lld. A two-line `ld` script in our cache directory lets PoCL find that.
`runtime/opencl/probe.py` decides when the name of the CPU is replaced.
"""

import ctypes
import importlib.util
import logging
import os
import shlex
import shutil
import struct
from pathlib import Path
from typing import Final

from runtime.files.cache import cache_dir, write_whole
from runtime.opencl.binding import cl

logger = logging.getLogger(__name__)

MISSING = (
    "PoCL needs the linker `ld` on PATH and there is none: "
    "install binutils, or `pip install ziglang` next to modeld"
)


def ensure_linker() -> bool:
    """Put a linker for PoCL on PATH if there is none; return whether there is one now.

    Without a linker no PoCL device can be used (see MISSING).
    """
    # Python searches default directories if PATH is not set at all; PoCL's linker driver does not.
    os.environ.setdefault("PATH", os.defpath)
    if shutil.which("ld"):
        return True
    zig = find_zig()
    if zig is None:
        return False
    shim = cache_dir() / "linker" / "ld"
    # Paths can contain bytes that are not UTF-8; `os.fsencode` writes them back unchanged.
    script = os.fsencode(f'#!/bin/sh\nexec {shlex.quote(str(zig))} ld.lld "$@"\n')
    if not shim.is_file() or shim.read_bytes() != script:
        write_whole(shim, script, 0o755)
    path = os.environ.get("PATH")
    os.environ["PATH"] = f"{shim.parent}{os.pathsep}{path}" if path else str(shim.parent)
    logger.info("no ld on PATH: PoCL links with %s", zig)
    return shutil.which("ld") is not None


def find_zig() -> Path | None:
    """Return the path of zig, the compiler in the `ziglang` package; None if not installed."""
    spec = importlib.util.find_spec("ziglang")
    for location in (spec.submodule_search_locations or []) if spec else []:
        zig = Path(location) / "zig"
        if os.access(zig, os.X_OK):
            return zig
    return None


# --- PoCL's name of the CPU, replaced if it is useless ----------------------------------------
# PoCL 3.0 gets the CPU's name from its own LLVM 14, which does not know newer CPUs. It reports
# `generic`, which clang then rejects, or an older relative without AVX-512. A `cl_device_id` points
# to a record that holds two adjacent pointers: to the target triple and to the CPU name. Both
# compilers in PoCL (clang for the source, LLVM for the machine code) read the name there.
# Memory is accessed through the Linux kernel (`/proc/self/mem`), so a wrong address causes an error
# and never a fault. Nothing is written unless the driver's version is in `_TRIPLE_AT` and the words
# point to the triple and the name that the driver itself reports (ADR 0003).

POCL: Final = "Portable Computing Language"
FORCED_NAME: Final = "MODELD_POCL_CPU"
# The version reported by the wheel `pocl_binary_distribution` 3.0.
WHEEL_VERSION: Final = "3.0-rc2"
# Driver version -> offset of the triple's pointer, determined from that wheel for x86-64.
_TRIPLE_AT: Final = {WHEEL_VERSION: 0x278}
_WORD: Final = struct.Struct("=QQ")  # the two pointers: triple, CPU name
_LONGEST: Final = 64  # bytes; in LLVM 14 the longest CPU name has 22 and the longest triple 24

# The levels of the x86-64 psABI (section 3.1.1, "Processor Architecture"), best first, with the
# flags that /proc/cpuinfo shows for their features. Each level also requires all later rows. The
# first row is no psABI level: clang's `cascadelake` stands for v4 with AVX512-VNNI, and its flags
# are the features that clang may use for it.
VNNI: Final = "cascadelake"
_LEVELS: Final = (
    (VNNI, "avx512_vnni adx aes clflushopt clwb fsgsbase pclmulqdq rdrand rdseed 3dnowprefetch"),
    ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"),
    ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
    ("x86-64-v2", "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"),
)
_BASELINE: Final = "x86-64"
_NAMES: Final = frozenset({_BASELINE, *(name for name, _ in _LEVELS)})


def level_of(flags: frozenset[str]) -> str:
    """Return clang's name of the best psABI level, or `VNNI`, for a CPU with these flags.

    The flags are those in /proc/cpuinfo, which omits features that Linux does not support.
    """
    best = _BASELINE
    # A level requires all levels below it, so the first gap ends the search.
    for name, needed in reversed(_LEVELS):
        if not flags.issuperset(needed.split()):
            break
        best = name
    return best


def cpu_flags() -> frozenset[str]:
    """Return the flags of this machine's first CPU; empty if Linux does not report them."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                # All CPUs of the machine are assumed to be alike, so the first entry is enough.
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError as error:
        logger.debug("the CPU's flags are not known: %s", error)
    return frozenset()


def forced_name() -> str:
    """Return the CPU name that the user forces on PoCL, or "" to use PoCL's own."""
    return os.environ.get(FORCED_NAME, "")


def name_in_force(handle: cl.Device) -> str | None:
    """Return the CPU name that PoCL's compiler uses; None if the record's layout is unknown."""
    triple_at = _TRIPLE_AT.get(handle.driver_version.strip())
    if triple_at is None or handle.platform.name.strip() != POCL:
        return None
    try:
        with _Memory(os.O_RDONLY) as memory:
            # A device handle points to PoCL's own record, in which the name follows the triple.
            triple, name = map(memory.text, memory.words(handle.int_ptr + triple_at))
    except OSError as error:
        logger.debug("the record of PoCL's device cannot be read: %s", error)
        return None
    # "OpenCL 3.0 PoCL HSTR: pthread-<triple>-<name>", with the name that LLVM gave PoCL.
    reported = handle.version.strip().partition("HSTR: pthread-")[2]
    known = {reported.removeprefix(f"{triple}-"), *_NAMES, forced_name()}
    # Believe the memory only if three things agree: the triple, PoCL's report, and a known name.
    ours = triple.startswith("x86_64-") and reported.startswith(f"{triple}-") and name in known
    return name if ours else None


def rename(handle: cl.Device, name: str) -> bool:
    """Make PoCL's compiler use another CPU name from now on; return whether that worked.

    It has no effect after the device's first launch, which generates machine code: LLVM caches what
    it derived from the old name.
    """
    # If the record does not look as expected, the offset may be wrong, so nothing is written.
    if name_in_force(handle) is None:
        return False
    kept = _permanent_copy(name)
    address = handle.int_ptr + _TRIPLE_AT[handle.driver_version.strip()]
    try:
        with _Memory(os.O_RDWR) as memory:
            triple, _ = memory.words(address)
            # Words are written in pairs, so the triple is written back unchanged.
            memory.write_words(address, triple, kept)
    except OSError as error:
        logger.debug("the record of PoCL's device cannot be written: %s", error)
    return name_in_force(handle) == name


def _permanent_copy(name: str) -> int:
    """Return the address of a copy that nobody frees, except PoCL together with its record."""
    # strdup is the C library's, so PoCL can free this copy.
    copy = ctypes.CDLL(None).strdup
    copy.restype = ctypes.c_void_p
    return int(copy(name.encode()))


class _Memory:
    """This process's memory, through the Linux kernel. An unmapped address raises OSError."""

    def __init__(self, access: int) -> None:
        self._file = os.open("/proc/self/mem", access | os.O_CLOEXEC)

    def __enter__(self) -> "_Memory":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def words(self, address: int) -> tuple[int, int]:
        content = self._read(address, _WORD.size)
        if len(content) < _WORD.size:
            raise OSError(f"{len(content)} of {_WORD.size} bytes at {address:#x}")
        first, second = _WORD.unpack(content)
        return first, second

    def write_words(self, address: int, first: int, second: int) -> None:
        os.pwrite(self._file, _WORD.pack(first, second), address)

    def text(self, address: int) -> str:
        """Return the printable string at an address; "" if none ends within `_LONGEST` bytes."""
        # Without a terminating zero the bytes are not a string, so the address was wrong.
        content, zero, _ = self._read(address, _LONGEST).partition(b"\0")
        text = content.decode("ascii", errors="replace")
        return text if zero and text.isascii() and text.isprintable() else ""

    def _read(self, address: int, size: int) -> bytes:
        if not 0 < address < 1 << 63:  # file offsets are signed
            return b""
        return os.pread(self._file, size, address)
