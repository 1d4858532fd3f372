"""Check that an artifact stays within the limits of its target, before a device refuses it.

Every limit has a name, which `DeviceLimitError.limit` carries. Figures are those of the target's
row in `scheduler.device.spec`. What only the device's compiler knows, registers above all, is not
checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from scheduler.device.spec import DeviceSpec
from scheduler.errors import DeviceLimitError
from scheduler.kernelize.kernel import name_of
from scheduler.kernelize.limits import Refused
from scheduler.lower import LoweredKernel

# Name, where, what the target takes, what was found.
Fault = tuple[str, str, int, int]


def check_limits(manifest: Mapping[str, Any], spec: DeviceSpec) -> None:
    """Check everything a target limits.

    Raises:
        DeviceLimitError: the first limit that is broken: its name, where, and by how much.
    """
    for name, where, most, found in (*_buffer_faults(manifest, spec), *_faults(manifest, spec)):
        raise DeviceLimitError(
            name,
            f"{where}: {name}: expected at most {most} on target {spec.target}, found {found}; "
            "compile for another --target or a smaller input",
        )
    if not spec.float64:
        _check_float64(manifest, spec)


def refused_by_limits(kernels: Sequence[LoweredKernel], spec: DeviceSpec) -> Refused | None:
    """Return the first kernel that breaks a limit which a smaller one might not, or None."""
    for lowered in kernels:
        for name, most, found in _kernel_faults(lowered, spec):
            stored = frozenset(t for k in kernels for t in k.kernel.targets)
            reason = f"{name}: expected at most {most} on target {spec.target}, found {found}"
            return Refused(lowered.kernel.targets, stored, name_of(lowered.kernel), reason)
    return None


def _kernel_faults(kernel: LoweredKernel, spec: DeviceSpec) -> Iterator[tuple[str, int, int]]:
    parameters = kernel.code.parameters
    size = len(parameters) * spec.limits.pointer_bytes
    if size > spec.limits.parameter_bytes:
        yield "argument bytes", spec.limits.parameter_bytes, size
    if spec.images is not None:
        images = [p for p in parameters if p.image is not None]
        written = sum(p.written for p in images)
        read = len(images) - written
        if read > spec.images.max_reads:
            yield "images read", spec.images.max_reads, read
        if written > spec.images.max_writes:
            yield "images written", spec.images.max_writes, written
    used = kernel.code.needs.local_bytes
    if spec.is_simt and used > spec.local_bytes:
        yield "local memory bytes", spec.local_bytes, used


def _check_float64(manifest: Mapping[str, Any], spec: DeviceSpec) -> None:
    """Refuse kernels that compute in float64; ranges and constants are folded before."""
    for kernel in manifest["kernels"]:
        if kernel["code"]["float64"]:
            raise DeviceLimitError(
                "float64",
                f"kernel {kernel['name']!r}: computes in float64, which target {spec.target} does "
                "not have; export the model in float32, or cast at its borders",
            )


def _buffer_faults(manifest: Mapping[str, Any], spec: DeviceSpec) -> Iterator[Fault]:
    sizes = [(f"buffer {b['name']!r}", b["size"]) for b in manifest["buffers"]]
    sizes.append(("the arena", manifest["arena_size"]))
    for where, size in sizes:
        if size > spec.max_alloc_bytes:
            yield "allocation bytes", where, spec.max_alloc_bytes, size
    for buffer in manifest["buffers"]:
        if "image" not in buffer:
            continue
        where = f"image {buffer['name']!r}"
        width, height = buffer["image"]
        if spec.images is None:
            yield "images", where, 0, 1
        elif width > spec.images.max_width:
            yield "image width", where, spec.images.max_width, width
        elif height > spec.images.max_height:
            yield "image height", where, spec.images.max_height, height


def _faults(manifest: Mapping[str, Any], spec: DeviceSpec) -> Iterator[Fault]:
    for kernel in manifest["kernels"]:
        where = f"kernel {kernel['name']!r}"
        yield from _argument_faults(manifest, kernel, where, spec)
        group = prod(kernel["local"])
        if group > spec.max_group:
            yield "work-group items", where, spec.max_group, group
        used = kernel["code"]["local_bytes"]
        if spec.is_simt and used > spec.local_bytes:
            yield "local memory bytes", where, spec.local_bytes, used


def _argument_faults(
    manifest: Mapping[str, Any], kernel: Mapping[str, Any], where: str, spec: DeviceSpec
) -> Iterator[Fault]:
    size = len(kernel["args"]) * spec.limits.pointer_bytes
    if size > spec.limits.parameter_bytes:
        yield "argument bytes", where, spec.limits.parameter_bytes, size
    if spec.images is not None:
        images = ["image" in manifest["buffers"][i] for i in kernel["args"]]
        written = sum(images[: kernel["code"]["writes"]])
        read = sum(images) - written
        if read > spec.images.max_reads:
            yield "images read", where, spec.images.max_reads, read
        if written > spec.images.max_writes:
            yield "images written", where, spec.images.max_writes, written
