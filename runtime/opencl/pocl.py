"""Repairs for PoCL: a linker on PATH, and the right name of the CPU.

PoCL aborts the whole process when it finds no `ld` on PATH: it turns each kernel into a shared
object with the linker that clang's driver finds. A machine with only Python has none; the `ziglang`
package carries LLVM's lld, and a two-line `ld` script in our cache directory makes it the one PoCL
finds. Used by `runtime.opencl.device` only.
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
    """Put a linker for PoCL on PATH if it lacks one; return whether there is one now.

    Without one no PoCL device may be used (see MISSING).
    """
    # Python looks in a default place where PATH is not set at all; PoCL's linker driver does not.
    os.environ.setdefault("PATH", os.defpath)
    if shutil.which("ld"):
        return True
    zig = find_zig()
    if zig is None:
        return False
    shim = cache_dir() / "linker" / "ld"
    # A path is bytes; text of it is only as good as the locale.
    script = os.fsencode(f'#!/bin/sh\nexec {shlex.quote(str(zig))} ld.lld "$@"\n')
    if not shim.is_file() or shim.read_bytes() != script:
        write_whole(shim, script, 0o755)
    path = os.environ.get("PATH")
    os.environ["PATH"] = f"{shim.parent}{os.pathsep}{path}" if path else str(shim.parent)
    logger.info("no ld on PATH: PoCL links with %s", zig)
    return shutil.which("ld") is not None


def find_zig() -> Path | None:
    """Return the compiler of the extra `linker`, None where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    for location in (spec.submodule_search_locations or []) if spec else []:
        zig = Path(location) / "zig"
        if os.access(zig, os.X_OK):
            return zig
    return None


# --- The name by which PoCL's compiler knows the CPU, replaced if it is useless ---------------
# PoCL 3.0 asks its own LLVM 14 for the name, which knows no CPU newer than itself: it reports
# `generic`, which clang then refuses, or the name of an older relative without AVX-512. The name is
# in the record behind a `cl_device_id`, in the word after the target triple. Both compilers that
# PoCL runs (clang for the source, LLVM for the machine code) read it there, for each kernel.
# All access goes through the kernel (`/proc/self/mem`), so a wrong address is an error and never a
# fault. Nothing is written unless the driver's version is in `_TRIPLE_AT`, and the words hold the
# triple and the name that the driver itself reports (ADR 0003).

POCL: Final = "Portable Computing Language"
FORCED_NAME: Final = "MODELD_POCL_CPU"
# The version that the wheel `pocl_binary_distribution` 3.0 reports.
WHEEL_VERSION: Final = "3.0-rc2"
# Offset of the triple's pointer by driver version, read from that wheel for x86-64.
_TRIPLE_AT: Final = {WHEEL_VERSION: 0x278}
_WORD: Final = struct.Struct("=QQ")
_LONGEST: Final = 64  # bytes; the longest name in LLVM 14 has 22, the triple 24

# The levels of the x86-64 psABI (section 3.1.1, "Processor Architecture"), best first, by the names
# that Linux gives to the features in /proc/cpuinfo; each level needs those below it, too. Above
# them stands the plainest CPU of clang that has AVX512-VNNI, with all that clang may use of it.
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
    """Return the best psABI level, or `VNNI`, that a CPU with these flags is, as clang names it.

    The flags are those in /proc/cpuinfo, which omits what Linux does not save at a switch.
    """
    best = _BASELINE
    # A level counts only if all levels below it are there, so the first gap ends the search.
    for name, needed in reversed(_LEVELS):
        if not flags.issuperset(needed.split()):
            break
        best = name
    return best


def cpu_flags() -> frozenset[str]:
    """Return the flags of this machine's first CPU; none where Linux does not say."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                # All CPUs of a machine are taken to be alike, so the first entry is enough.
                if line.startswith("flags"):
                    return frozenset(line.partition(":")[2].split())
    except OSError as error:
        logger.debug("the CPU's flags are not known: %s", error)
    return frozenset()


def forced_name() -> str:
    """Return what the driver is to believe first, empty for what it finds out itself."""
    return os.environ.get(FORCED_NAME, "")


def name_in_force(handle: cl.Device) -> str | None:
    """Return the name that the compiler is given, None where the record is not one we know."""
    triple_at = _TRIPLE_AT.get(handle.driver_version.strip())
    if triple_at is None or handle.platform.name.strip() != POCL:
        return None
    try:
        with _Memory(os.O_RDONLY) as memory:
            # The pointer of a device handle is PoCL's own record, in which triple and name follow
            # each other.
            triple, name = map(memory.text, memory.words(handle.int_ptr + triple_at))
    except OSError as error:
        logger.debug("the record of PoCL's device cannot be read: %s", error)
        return None
    # "OpenCL 3.0 PoCL HSTR: pthread-<triple>-<name>", with the name that LLVM gave PoCL.
    reported = handle.version.strip().partition("HSTR: pthread-")[2]
    known = {reported.removeprefix(f"{triple}-"), *_NAMES, forced_name()}
    # Three signs must agree before memory is believed: the triple, what PoCL reports, and a known
    # name.
    ours = triple.startswith("x86_64-") and reported.startswith(f"{triple}-") and name in known
    return name if ours else None


def rename(handle: cl.Device, name: str) -> bool:
    """Let the compiler take the CPU for another one from now on; return whether that worked.

    Only before the device's first successful build: LLVM keeps what it made for the old name.
    """
    # Nothing is written where the record does not look as expected: the offset may be wrong.
    if name_in_force(handle) is None:
        return False
    kept = _forever(name)
    address = handle.int_ptr + _TRIPLE_AT[handle.driver_version.strip()]
    try:
        with _Memory(os.O_RDWR) as memory:
            triple, _ = memory.words(address)
            # The triple is written back unchanged, as words are written in pairs.
            memory.write_words(address, triple, kept)
    except OSError as error:
        logger.debug("the record of PoCL's device cannot be written: %s", error)
    return name_in_force(handle) == name


def _forever(name: str) -> int:
    """Return the address of a copy that nobody frees, or that PoCL may free with its own record."""
    # strdup is the C library's, so PoCL's own free would fit this copy.
    copy = ctypes.CDLL(None).strdup
    copy.restype = ctypes.c_void_p
    return int(copy(name.encode()))


class _Memory:
    """This process's memory by way of the kernel: an address that is not mapped is an OSError."""

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
        """Return the printable string at an address, empty if there is none within bounds."""
        # Without a zero in bounds the bytes are no string, and the address was wrong.
        content, zero, _ = self._read(address, _LONGEST).partition(b"\0")
        text = content.decode("ascii", errors="replace")
        return text if zero and text.isascii() and text.isprintable() else ""

    def _read(self, address: int, size: int) -> bytes:
        if not 0 < address < 1 << 63:  # an offset in a file is signed
            return b""
        return os.pread(self._file, size, address)
