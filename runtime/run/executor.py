"""Loads an artifact onto a device: from a file, from memory for one run, or to get its binaries.

The result is a `Program`, whose `run` executes one of the artifact's entry points.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import NDArray

from runtime.errors import ArtifactError
from runtime.format.artifact import Artifact, from_memory, read_artifact
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import ProgramCache, shared_cache
from runtime.run.profile import ProgramStats
from runtime.run.program import Program
from runtime.run.selftest import self_test


def load_program(
    path: str | os.PathLike[str] | Artifact,
    device: Device | str | None = None,
    *,
    priority: str | None = None,
    on_build: Callable[[], None] = lambda: None,
) -> Program:
    """Load an artifact onto a device.

    Args:
        path: Path of an artifact made by `modeld compile`, or an artifact read already.
        device: An opened device, a name for `choose_device`, or None for the best device.
        priority: Priority of its work on the device: "high", "medium", "low", or None for the
            driver's default. `Program.priority_refusal` is the reason if it is refused.
        on_build: Called before each program that has to be compiled, which takes seconds.

    Raises:
        ArtifactError: the file is missing, damaged, or does not fit the device.
        NoDeviceError: no device is usable.
        BuildError: a kernel does not build on it.
    """
    started_ns = time.perf_counter_ns()
    artifact = path if isinstance(path, Artifact) else read_artifact(path)
    opened = device if isinstance(device, Device) else choose_device(device)
    try:
        cache = ProgramCache(opened, on_build=on_build)
        program = Program(artifact, opened, cache, warm_up=True, priority=priority)
        cache.save()
    except ArtifactError as error:
        raise ArtifactError(f"{artifact.path or 'artifact'}: {error}") from error
    program.stats.load_ms = (time.perf_counter_ns() - started_ns) / 1e6
    return program


def run_once(
    manifest: Mapping[str, Any],
    data: bytes | memoryview,
    inputs: Mapping[str, NDArray[Any]],
    device: Device | str | None = None,
) -> dict[str, NDArray[Any]]:
    """Run the first entry of an in-memory artifact once; the caller owns the outputs.

    Programs are built through a cache shared by the process, so realizing the same kernels again
    compiles nothing. Arguments and errors are those of `write_artifact`, `Program.run` and
    `load_program`.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    with Program(from_memory(manifest, data), opened, shared_cache(opened)) as program:
        return dict(program.run(inputs))


def build_binaries(
    manifest: Mapping[str, Any], data: bytes | memoryview, device: Device | str | None = None
) -> list[bytes]:
    """Return the device binaries for the compiler to store in an artifact, one per program.

    They are read after the first launch of every kernel, because only then can a driver load them
    without compiling, and after the self-test, if any. The manifest's `target` must then name
    `device.info.name` and `device.info.driver`. Raises the errors of `load_program`, and
    SelfTestError if the results differ from the model's.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    cache = ProgramCache(opened)
    artifact = from_memory(manifest, data)
    with Program(artifact, opened, cache, warm_up=True) as program:
        self_test(program)
        return program.binaries()


__all__ = ["Program", "ProgramStats", "build_binaries", "load_program", "run_once"]
