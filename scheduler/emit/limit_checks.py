"""Does an artifact stay within what its target takes? Asked before a device is there to refuse it.

Every limit has a name, which `DeviceLimitError.limit` carries. Figures are those of the row
(`device_spec`). What only the device's compiler knows, registers above all, is not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.emit.kernel_source import kernel_texts, parameters_of
from scheduler.errors import DeviceLimitError

_LOCAL_ARRAY: Final = re.compile(r"__local (\w+?)(\d*) \w+((?:\[\d+\])+)")
_DOUBLE: Final = re.compile(r"\bdouble(2|3|4|8|16)?\b")
_BYTES: Final = {
    "char": 1,
    "uchar": 1,
    "short": 2,
    "ushort": 2,
    "half": 2,
    "int": 4,
    "uint": 4,
    "float": 4,
    "long": 8,
    "ulong": 8,
    "double": 8,
}

# Name, where, what the target takes, what was found.
Fault = tuple[str, str, int, int]


def check_limits(manifest: Mapping[str, Any], spec: DeviceSpec) -> None:
    """Check everything a target limits.

    Args:
        manifest: from `emit`.
        spec: the target.

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


def _check_float64(manifest: Mapping[str, Any], spec: DeviceSpec) -> None:
    """Refuse kernels that compute in float64; ranges and constants are folded before."""
    for name, text in kernel_texts(manifest).items():
        if _DOUBLE.search(text):
            raise DeviceLimitError(
                "float64",
                f"kernel {name!r}: computes in float64, which target {spec.target} does not have; "
                "export the model in float32, or cast at its borders",
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
    texts = kernel_texts(manifest)
    for kernel in manifest["kernels"]:
        where = f"kernel {kernel['name']!r}"
        yield from _argument_faults(parameters_of(texts[kernel["name"]]), where, spec)
        group = prod(kernel["local"])
        if group > spec.max_group:
            yield "work-group items", where, spec.max_group, group
        used = local_bytes(texts[kernel["name"]])
        if spec.is_simt and used > spec.local_bytes:
            yield "local memory bytes", where, spec.local_bytes, used


def _argument_faults(parameters: list[str], where: str, spec: DeviceSpec) -> Iterator[Fault]:
    limits = spec.limits
    size = len(parameters) * limits.pointer_bytes
    if size > limits.parameter_bytes:
        yield "argument bytes", where, limits.parameter_bytes, size
    if spec.images is not None:
        read = sum(p.startswith("__read_only image") for p in parameters)
        written = sum(p.startswith("__write_only image") for p in parameters)
        if read > spec.images.max_reads:
            yield "images read", where, spec.images.max_reads, read
        if written > spec.images.max_writes:
            yield "images written", where, spec.images.max_writes, written


def local_bytes(text: str) -> int:
    """Return the bytes of local memory that a kernel's text declares."""
    total = 0
    for base, lanes, extents in _LOCAL_ARRAY.findall(text):
        elements = int(np.prod([int(n) for n in re.findall(r"\d+", extents)]))
        total += _BYTES[base] * int(lanes or 1) * elements
    return total
