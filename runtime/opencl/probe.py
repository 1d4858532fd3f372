"""Probes a device: checks that it can build and run a small kernel, and detects its SIMD level.

    python -m runtime.opencl.probe 0:1        {"problem": "", "simd": "avx2"}

A driver may list a device and then fail, or kill the process, at the first kernel. PoCL is tried in
this process, because the causes of its aborts (no linker, an unwritable cache) are checked first.
Any other driver is first tried in a separate process. Successes are remembered in the cache
directory. Failures are tried again at each start, because their cause may have disappeared.

Only `runtime.opencl.device` uses this module.
"""

import hashlib
import json
import logging
import signal
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np

from runtime.errors import compiler_error
from runtime.files.cache import EntryStore, cache_dir
from runtime.opencl import pocl
from runtime.opencl.binding import cl
from runtime.own_process import own_command

logger = logging.getLogger(__name__)

# The SIMD levels of compilers, lowest first, with the preprocessor condition that detects each in
# clang and gcc. The kernel's name contains the level, so building it is enough to detect the level.
_AVX512: Final = " && ".join(f"defined(__AVX512{part}__)" for part in ["F", "BW", "CD", "DQ", "VL"])
_MACROS: Final = {
    "sse": "defined(__SSE2__)",
    "avx": "defined(__AVX__)",
    "avx2": "defined(__AVX2__) && defined(__FMA__)",
    "avx2_vnni": "defined(__AVX2__) && defined(__FMA__) && defined(__AVXVNNI__)",
    "avx512": _AVX512,
    "avx512_vnni": f"{_AVX512} && defined(__AVX512VNNI__)",
    "neon": "defined(__aarch64__)",
}
UNKNOWN: Final = "unknown"  # not a CPU, or its compiler defines none of these macros
_SIMD: Final = (UNKNOWN, *_MACROS)
# Name of a CPU or psABI level (`pocl.level_of`) -> SIMD level; all other names mean "sse".
_OF_LEVEL: Final = {
    pocl.VNNI: "avx512_vnni",
    "x86-64-v4": "avx512",
    "x86-64-v3": "avx2",
}
_CHOICE: Final = "\n".join(
    f"#elif {condition}\n#define PROBE probe_{simd}"
    for simd, condition in reversed(_MACROS.items())
)
SOURCE: Final = f"""
#if 0
{_CHOICE}
#else
#define PROBE probe_{UNKNOWN}
#endif
__kernel void PROBE(__global int* y) {{
  const int i = get_global_id(0);
  y[i] = 3 * y[i] + i;
}}
"""
_ITEMS: Final = 4
_TIMEOUT_S: Final = 120.0  # some drivers start a compiler of their own
# Part of clang's message if it rejects the name of the CPU.
_REFUSED: Final = "unknown target CPU"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a probe.

    `simd` is the level for which the device's compiler generates code: "sse", "avx", "avx2" (with
    FMA), "avx512" (level 4 of the x86-64 psABI), either of the last two with "_vnni", "neon", or
    "unknown".
    """

    problem: str  # the reason that the device cannot be used; "" if it can
    simd: str = UNKNOWN
    cpu: str = ""  # PoCL's name of the CPU; "" if unknown


def examine(handle: cl.Device, index: str) -> Finding:
    """Probe a device with index "platform:device", after correcting PoCL's CPU name if needed."""
    if _is_pocl(handle):
        return _examine_pocl(handle)
    key = _key(handle, "", "ran")
    simd = _remembered(key)
    if simd is not None:
        return Finding("", simd)
    found = _try_in_subprocess(index)
    if not found.problem:
        _remember(key, found.simd)
    return found


def _is_pocl(handle: cl.Device) -> bool:
    return handle.platform.name.strip() == pocl.POCL


def _examine_pocl(handle: cl.Device) -> Finding:
    forced = pocl.forced_name()
    if forced and not pocl.rename(handle, forced):
        return Finding(f"{pocl.FORCED_NAME} is not for this driver; unset it")
    name = pocl.name_in_force(handle)
    # Only build while the name can still be replaced; run once the name is final.
    found = _pocl_probe(handle, name, runs=name is None)
    if name is None:
        return found
    level = pocl.level_of(pocl.cpu_flags())
    wanted = _OF_LEVEL.get(level, "sse")
    # A forced name is kept even if it is poorer than the CPU, but not if clang rejects it.
    poorer = not found.problem and not forced and _SIMD.index(found.simd) < _SIMD.index(wanted)
    if (poorer or _REFUSED in found.problem) and pocl.rename(handle, level):
        logger.info("PoCL calls this CPU %r; compiling for %r instead", name, level)
        name = level
    return _pocl_probe(handle, name, runs=True)


def _pocl_probe(handle: cl.Device, name: str | None, *, runs: bool) -> Finding:
    key = _key(handle, name or "", "ran" if runs else "built")
    simd = _remembered(key)
    if simd is not None:
        return Finding("", simd, name or "")
    found = try_in_process(handle, runs=runs)
    if _REFUSED in found.problem:
        version = handle.driver_version.strip()
        advice = "install another OpenCL driver (Debian: pocl-opencl-icd)"
        return Finding(f"PoCL {version} does not know this CPU ({found.problem}); {advice}")
    if not found.problem:
        _remember(key, found.simd)
    return Finding(found.problem, found.simd, name or "")


def try_in_process(handle: cl.Device, *, runs: bool = True) -> Finding:
    """Build the kernel in this process, and run it if `runs` is set. This may kill the process."""
    try:
        context = cl.Context([handle])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)
            program = cl.Program(context, SOURCE).build()
        name = str(program.get_info(cl.program_info.KERNEL_NAMES)).strip()
        if runs:
            _run(context, cl.Kernel(program, name))
    except (cl.Error, ValueError) as error:
        return Finding(f"a kernel of three lines fails: {compiler_error(error)}")
    simd = name.removeprefix("probe_")
    return Finding("", simd if simd in _SIMD else UNKNOWN)


def _run(context: cl.Context, kernel: cl.Kernel) -> None:
    """Run the kernel on 5, 6, ...; raise ValueError if the result is wrong."""
    values = np.arange(5, 5 + _ITEMS, dtype=np.int32)
    expected = (3 * values + np.arange(_ITEMS)).tolist()
    with cl.CommandQueue(context) as queue:
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffer = cl.Buffer(context, flags, hostbuf=values)
        kernel(queue, (_ITEMS,), None, buffer)
        cl.enqueue_copy(queue, values, buffer)
        queue.finish()
    if values.tolist() != expected:
        raise ValueError(f"expected {expected}, found {values.tolist()}")


def _try_in_subprocess(index: str) -> Finding:
    """Probe a device in a separate process."""
    try:
        result = subprocess.run(  # noqa: S603 - this interpreter, a module of ours
            own_command("runtime.opencl.probe", index),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Finding(f"a kernel of three lines takes more than {_TIMEOUT_S:.0f} s")
    except OSError as error:
        return Finding(f"a kernel of three lines cannot be tried: {error.strerror}")
    if result.returncode:
        how = f"exit status {result.returncode}"
        if result.returncode < 0:
            how = signal.Signals(-result.returncode).name
        return Finding(f"the driver ends the process at a kernel of three lines ({how})")
    return Finding(**json.loads(result.stdout.splitlines()[-1]))


def _key(handle: cl.Device, cpu: str, how: str) -> str:
    """Return the cache key of a success; `how` is "built" or "ran"."""
    platform = handle.platform
    parts = (platform.name, platform.version, handle.name, handle.driver_version, handle.version)
    return hashlib.sha256(json.dumps([*parts, cpu, how, SOURCE]).encode()).hexdigest()


def _remembered(key: str) -> str | None:
    payload = _store().get(key)
    simd = "" if payload is None else payload.decode("ascii", errors="replace")
    return simd if simd in _SIMD else None


def _remember(key: str, simd: str) -> None:
    _store().put(key, simd.encode())


def _store() -> EntryStore:
    return EntryStore(cache_dir() / "probes", "probe")


def main(index: str) -> None:
    """Probe a device in this process and print the finding as one line of JSON."""
    platform, device = map(int, index.split(":"))
    handle = cl.get_platforms()[platform].get_devices()[device]
    found = _examine_pocl(handle) if _is_pocl(handle) else try_in_process(handle)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
