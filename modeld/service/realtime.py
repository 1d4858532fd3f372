"""Applies real-time settings: CPU affinity, priority, locked memory, no garbage collection.

Each setting is optional. If the system refuses one, that is not an error: a daemon that is a little
late drives better than one that does not start. The result of each setting is an `Effect`, for the
log and the health message. The calls are those of Linux and glibc.

The main thread calls `apply_to_process` and `apply_to_program` once the model is loaded: memory in
use by then is locked, and the collector ignores existing objects. The loop's thread first calls
`apply_to_loop`. The driver's threads already exist then and do not inherit the loop's CPUs;
`runtime.opencl.workers` assigns theirs. ADR 0094 has the gain of each setting.
"""

import ctypes
import errno
import gc
import os
import resource
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from modeld.service.config import RealtimeConfig

if TYPE_CHECKING:
    import runtime

# Time after which a thread must release the interpreter lock to a waiting one. Python's default of
# 5 ms, a tenth of a frame, would delay the loop when the supervisor runs. A shorter interval costs
# nothing, because the two threads seldom compete.
SWITCH_INTERVAL_S: Final = 0.000_5
# Bytes of the loop's stack to touch in advance, more than any frame uses.
STACK_BYTES: Final = 256 * 1024

# <sys/mman.h>; these values are the same on all supported architectures of Linux.
_MCL_CURRENT: Final = 1
_MCL_FUTURE: Final = 2
_MCL_ONFAULT: Final = 4
_MADV_POPULATE_WRITE: Final = 23  # since Linux 5.14
# <malloc.h>, glibc.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Blocks up to this size are allocated on the heap; the largest value that glibc accepts.
_KEPT_BLOCK_BYTES: Final = 32 * 1024 * 1024
# Free memory that the heap keeps instead of returning it to the system.
_KEPT_HEAP_BYTES: Final = 256 * 1024 * 1024

_CAP_IPC_LOCK: Final = 14  # <linux/capability.h>
_STATUS: Final = Path("/proc/self/status")
_LATENCY: Final = Path("/dev/cpu_dma_latency")
_RT_RUNTIME: Final = Path("/proc/sys/kernel/sched_rt_runtime_us")


@dataclass(frozen=True, slots=True)
class Effect:
    """A real-time setting and whether it took effect."""

    name: str  # name of the setting in ``[realtime]``
    wanted: str  # its value as text
    effective: bool
    reason: str = ""  # why it took no effect, and the remedy; "" if it did

    def __str__(self) -> str:
        text = f"{self.name} {self.wanted}"
        return text if self.effective else f"{text} without effect: {self.reason}"


def apply_to_process(settings: RealtimeConfig) -> tuple[Effect, ...]:
    """Apply the settings of the process; call after the model is loaded, before the loop starts."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    effects = []
    if settings.lock_memory:
        effects.append(_lock_memory())
    if settings.freeze_gc:
        # Existing objects need no further collection, and the loop creates few reference cycles.
        gc.collect()
        gc.freeze()
        gc.disable()
        effects.append(Effect("freeze_gc", "true", effective=True))
    return tuple(effects)


def apply_to_loop(settings: RealtimeConfig) -> tuple[Effect, ...]:
    """Apply the settings of the calling thread."""
    effects = []
    # The main thread's stack cannot be touched in advance: it grows on demand, and is locked then.
    if settings.lock_memory and threading.current_thread() is not threading.main_thread():
        effects.append(_touch_stack())
    if settings.cpus is not None:
        effects.append(_stay_on(settings.cpus))
    if settings.priority > 0:
        effects.append(_run_first(settings.priority))
    return tuple(effects)


def apply_to_program(settings: RealtimeConfig, program: "runtime.Program") -> tuple[Effect, ...]:
    """Apply the settings of the device: the priority of its queue and of a CPU driver's threads.

    The program must have been loaded with ``gpu_priority``.
    """
    effects = []
    if settings.gpu_priority is not None:
        refusal = program.priority_refusal
        effects.append(Effect("gpu_priority", settings.gpu_priority, not refusal, refusal))
    if settings.priority > 0 and program.workers is not None:
        # On a CPU device these threads compute the model, so the loop's own priority is not enough.
        name, wanted = "priority of the device's threads", str(settings.priority)
        try:
            program.workers.run_first(settings.priority)
            effects.append(Effect(name, wanted, effective=True))
        except OSError as error:
            reason = _refused_first(error, settings.priority)
            effects.append(Effect(name, wanted, effective=False, reason=reason))
    return tuple(effects)


def newest(effects: Sequence[Effect]) -> tuple[Effect, ...]:
    """Return the last effect of each setting.

    A setting is applied more than once if a second thread continues the loop.
    """
    return tuple({effect.name: effect for effect in effects}.values())


@contextmanager
def awake(*, wanted: bool = True) -> Iterator[tuple[Effect, ...]]:
    """Keep all CPUs out of deep idle states, from which they wake up slowly.

    This costs power; on a virtual machine, an idle CPU counts as busy for its host. The system
    drops the request when the process ends, even if it crashes.
    """
    if not wanted:
        yield ()
        return
    name = "keep_awake"
    try:
        request = os.open(_LATENCY, os.O_WRONLY | os.O_CLOEXEC)
    except OSError as error:
        reason = f"{_LATENCY}: {_text(error)}: let the service write it (group, udev, DeviceAllow)"
        yield (Effect(name, "true", effective=False, reason=reason),)
        return
    try:
        # Latency in microseconds as a native 32-bit integer (Linux: pm_qos_interface).
        os.write(request, struct.pack("=i", 0))
        yield (Effect(name, "true", effective=True),)
    finally:
        os.close(request)


@contextmanager
def collector_restored() -> Iterator[None]:
    """Restore the garbage collector and the switch interval at the end of the block."""
    interval_s, enabled = sys.getswitchinterval(), gc.isenabled()
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        if enabled:
            gc.enable()


def cpus_of(text: str) -> frozenset[int]:
    """Return the CPUs in a list such as "7" or "0-3,6"; raise ValueError if it is malformed."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise ValueError(f"expected CPUs as in 7 or 0-3,6, found {text!r}")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers:
            raise ValueError(f"expected the smaller CPU first, found {text!r}")
        found.update(numbers)
    return frozenset(found)


def _stay_on(cpus: str) -> Effect:
    try:
        wanted = cpus_of(cpus)
        missing = wanted - os.sched_getaffinity(0)
        # The system silently ignores CPUs that the process may not use.
        if missing:
            names = ",".join(map(str, sorted(missing)))
            reason = (
                f"CPU {names} is not this process's; expected some of "
                f"{','.join(map(str, sorted(os.sched_getaffinity(0))))}: change cpus or the unit's "
                "CPUAffinity"
            )
            return Effect("cpus", cpus, effective=False, reason=reason)
        os.sched_setaffinity(0, wanted)
    except (OSError, ValueError) as error:
        return Effect("cpus", cpus, effective=False, reason=_text(error))
    return Effect("cpus", cpus, effective=True)


def _run_first(priority: int) -> Effect:
    name, wanted = "priority", str(priority)
    try:
        # Threads and processes started by the loop do not inherit the priority.
        policy = os.SCHED_FIFO | os.SCHED_RESET_ON_FORK
        os.sched_setscheduler(0, policy, os.sched_param(priority))
    except OSError as error:
        return Effect(name, wanted, effective=False, reason=_refused_first(error, priority))
    return Effect(name, wanted, effective=True)


def _refused_first(error: OSError, priority: int) -> str:
    if error.errno != errno.EPERM:
        return _text(error)
    limit = resource.getrlimit(resource.RLIMIT_RTPRIO)[0]
    if limit != resource.RLIM_INFINITY and limit < priority:
        return f"RLIMIT_RTPRIO is {limit}: set the unit's LimitRTPRIO={priority}"
    runtime_us = _read(_RT_RUNTIME)
    return (
        "the system gives this process no real-time: check the control group's cpu.rt_runtime_us "
        f"and {_RT_RUNTIME} ({runtime_us})"
    )


def _lock_memory() -> Effect:
    name, wanted = "lock_memory", "true"
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    # With a limit, a later allocation beyond it would fail at some frame.
    if limit != resource.RLIM_INFINITY and not _may_lock():
        reason = f"RLIMIT_MEMLOCK is {limit} bytes: set the unit's LimitMEMLOCK=infinity"
        return Effect(name, wanted, effective=False, reason=reason)
    libc = ctypes.CDLL(None, use_errno=True)
    # Keep freed memory: if it is returned to the system, each page costs a fault at its next use.
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BLOCK_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_HEAP_BYTES)
    # Lock pages at their first use only. The driver's compiler is larger than everything else
    # together, and is no longer used.
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return Effect(name, wanted, effective=False, reason=f"mlockall: {_text(error)}")
    return Effect(name, wanted, effective=True)


def _may_lock() -> bool:
    """Return whether this process may exceed the limit of locked memory (CAP_IPC_LOCK)."""
    for line in _read(_STATUS).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1)
    return False


def _touch_stack() -> Effect:
    """Touch the part of this thread's stack that frames use, so its pages exist and are locked."""
    name, wanted = "lock_memory of the stack", "true"
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "pthread_getattr_np"):
        return Effect(
            name, wanted, effective=False, reason="the C library does not report the stack"
        )
    # pthread_attr_t has 64 bytes or fewer on 64-bit Linux.
    attributes = ctypes.create_string_buffer(128)
    lowest, size = ctypes.c_void_p(), ctypes.c_size_t()
    libc.pthread_self.restype = ctypes.c_void_p
    libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes)
    libc.pthread_attr_getstack(attributes, ctypes.byref(lowest), ctypes.byref(size))
    libc.pthread_attr_destroy(attributes)
    page = resource.getpagesize()
    length = min(STACK_BYTES, size.value) // page * page
    # Stacks grow downwards, so the pages used first have the highest addresses.
    start = ((lowest.value or 0) + size.value - length) // page * page
    if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_POPULATE_WRITE) != 0:
        error = OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return Effect(name, wanted, effective=False, reason=f"madvise: {_text(error)}")
    return Effect(name, wanted, effective=True)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError as error:
        return _text(error)


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
