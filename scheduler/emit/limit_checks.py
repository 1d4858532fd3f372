"""Checks that an artifact is within the limits of its target, before a device rejects it.

Each limit has a name, stored in `DeviceLimitError.limit`. The values are those of the target's row
in `scheduler.device.spec`. Properties known only to the device's compiler, above all registers, are
not checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from scheduler.device.spec import DeviceSpec
from scheduler.errors import DeviceLimitError
from scheduler.kernelize.store_plan import Refused
from scheduler.lower import LoweredKernel

# (name, largest value on the target, value found)
Check = tuple[str, int, int]


def check_limits(manifest: Mapping[str, Any], spec: DeviceSpec) -> None:
    """Check all limits of a target.

    Raises:
        DeviceLimitError: the first exceeded limit, with its name, the location and the excess.
    """
    for where, checks in _checks(manifest, spec):
        for name, problem in _broken(checks, spec):
            advice = "compile for another --target or a smaller input"
            raise DeviceLimitError(name, f"{where}: {problem}; {advice}")
    for kernel in manifest["kernels"]:
        # Ranges and constants were folded earlier, so the kernel really computes in float64.
        if kernel["code"]["float64"] and not spec.float64:
            raise DeviceLimitError(
                "float64",
                f"kernel {kernel['name']!r}: computes in float64, which target {spec.target} does "
                "not have; export the model in float32, or cast at its borders",
            )


def refused_by_limits(kernels: Sequence[LoweredKernel], spec: DeviceSpec) -> Refused | None:
    """Return the first kernel that exceeds a limit which a smaller kernel may meet, or None."""
    for lowered in kernels:
        code = lowered.code
        images = [p.image is not None for p in code.parameters]
        checks = _of_kernel(images, len(code.storage), code.needs.local_bytes, spec)
        for _, problem in _broken(checks, spec):
            return Refused(lowered.kernel, problem)
    return None


def _broken(checks: Sequence[Check], spec: DeviceSpec) -> Iterator[tuple[str, str]]:
    """Yield the name of each exceeded limit, and the message."""
    for name, most, found in checks:
        if found > most:
            yield name, f"{name}: expected at most {most} on target {spec.target}, found {found}"


def _checks(manifest: Mapping[str, Any], spec: DeviceSpec) -> Iterator[tuple[str, list[Check]]]:
    """Yield, for each buffer, image and kernel, its name in messages and its checks."""
    sizes = [(f"buffer {b['name']!r}", b["size"]) for b in manifest["buffers"]]
    for where, size in (*sizes, ("the arena", manifest["arena_size"])):
        yield where, [("allocation bytes", spec.max_alloc_bytes, size)]
    for buffer in manifest["buffers"]:
        if "image" in buffer:
            yield f"image {buffer['name']!r}", _of_image(buffer["image"], spec)
    for kernel in manifest["kernels"]:
        images = ["image" in manifest["buffers"][i] for i in kernel["args"]]
        code, group = kernel["code"], prod(kernel["local"])
        checks = _of_kernel(images, code["writes"], code["local_bytes"], spec, group)
        yield f"kernel {kernel['name']!r}", checks


def _of_image(size: Sequence[int], spec: DeviceSpec) -> list[Check]:
    width, height = size
    if spec.images is None:
        return [("images", 0, 1)]
    return [
        ("image width", spec.images.max_width, width),
        ("image height", spec.images.max_height, height),
    ]


def _of_kernel(
    images: Sequence[bool], writes: int, local_bytes: int, spec: DeviceSpec, group: int = 1
) -> list[Check]:
    """Return the checks of a kernel.

    Args:
        images: for each argument, whether it is an image; written ones come first.
        writes: number of arguments that the kernel writes.
        local_bytes: local memory per work-group.
        spec: the device row.
        group: work-items per work-group; even a small kernel has this many.
    """
    limits, written = spec.limits, sum(images[:writes])
    checks = [("argument bytes", limits.parameter_bytes, len(images) * limits.pointer_bytes)]
    if spec.images is not None:
        checks.append(("images read", spec.images.max_reads, sum(images) - written))
        checks.append(("images written", spec.images.max_writes, written))
    checks.append(("work-group items", spec.max_group, group))
    if spec.is_simt:
        checks.append(("local memory bytes", spec.local_bytes, local_bytes))
    return checks
