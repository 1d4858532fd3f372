"""OpenCL functions and constants for recording launches, which pyopencl does not provide.

Two extensions record launches once and run them as one command: ``cl_qcom_recordable_queues``
(drivers of Adreno GPUs) and ``cl_khr_command_buffer`` with its layer
``cl_khr_command_buffer_mutable_dispatch``. The two of Khronos are provisional: function signatures
depend on the version that the driver reports. This module only declares how to call them.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from runtime.opencl.binding import cl

QCOM: Final = "cl_qcom_recordable_queues"
KHR: Final = "cl_khr_command_buffer"
KHR_MUTABLE: Final = "cl_khr_command_buffer_mutable_dispatch"

# Queries of clGetDeviceInfo.
DEVICE_RECORDABLE_QUEUE_MAX_SIZE: Final = 0x41DE
DEVICE_COMMAND_BUFFER_REQUIRED_QUEUE_PROPERTIES: Final = 0x12AA
DEVICE_MUTABLE_DISPATCH_CAPABILITIES: Final = 0x12B0
# A property of a queue.
QUEUE_RECORDABLE: Final = 1 << 30
# A property of a command buffer, and its value.
COMMAND_BUFFER_FLAGS: Final = 0x1293
COMMAND_BUFFER_MUTABLE: Final = 1 << 1
# A property of a launch, and its value.
MUTABLE_DISPATCH_UPDATABLE_FIELDS: Final = 0x12B1
MUTABLE_DISPATCH_ARGUMENTS: Final = 1 << 3
# Kinds of structures before version 0.9.3, and the kind of a new dispatch since then.
LINKED_BASE_CONFIG: Final = 0
LINKED_DISPATCH_CONFIG: Final = 1
DISPATCH_CONFIG: Final = 0
UPDATES_ARE_LISTS: Final = (0, 9, 3)  # version since which updates are lists, not linked structures

_VENDOR: Final = "QCOM"
_NEW_STATUS: Final = {
    -1138: "INVALID_COMMAND_BUFFER",
    -1139: "INVALID_SYNC_POINT_WAIT_LIST",
    -1140: "INCOMPATIBLE_COMMAND_QUEUE",
    -1141: "INVALID_MUTABLE_COMMAND",
}

Int: TypeAlias = ctypes.c_int32
Uint: TypeAlias = ctypes.c_uint32
Ulong: TypeAlias = ctypes.c_uint64
Size: TypeAlias = ctypes.c_size_t
Pointer: TypeAlias = ctypes.c_void_p


class RecordingError(Exception):
    """A function of these extensions is missing or failed; the message names it."""


class QcomArgument(ctypes.Structure):
    """A new value of a kernel argument. Launches are numbered within the recording."""

    _fields_ = (
        ("dispatch_index", Uint),
        ("arg_index", Uint),
        ("arg_size", Size),
        ("arg_value", Pointer),
    )


class KhrArgument(ctypes.Structure):
    """A new value of an argument of the launch in a `DispatchConfig`."""

    _fields_ = (("arg_index", Uint), ("arg_size", Size), ("arg_value", Pointer))


_CONFIG: Final[tuple[tuple[str, Any], ...]] = (
    ("command", Pointer),
    *((f"num_{what}", Uint) for what in ("args", "svm_args", "exec_infos")),
    ("work_dim", Uint),
    *((f"{what}_list", Pointer) for what in ("arg", "arg_svm", "exec_info")),
    *((f"{what}", Pointer) for what in ("work_offset", "work_size", "group_size")),
)


class DispatchConfig(ctypes.Structure):
    """The changes of one launch. Null pointers change nothing."""

    _fields_ = _CONFIG


class LinkedDispatchConfig(ctypes.Structure):
    """A `DispatchConfig` before version 0.9.3."""

    _fields_ = (("type", Uint), ("next", Pointer), *_CONFIG)


class LinkedBaseConfig(ctypes.Structure):
    """The argument of an update call before version 0.9.3."""

    _fields_ = (
        ("type", Uint),
        ("next", Pointer),
        ("num_mutable_dispatch", Uint),
        ("mutable_dispatch_list", Pointer),
    )


# Result and argument types of each function. Handles and arrays of any type are pointers.
# The number of events to wait for, their array, and the new event.
_WAIT: Final = (Uint, Pointer, Pointer)
_PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    # queue, kernel, dimensions, offset, global and local size, events
    "clEnqueueNDRangeKernel": (Int, Pointer, Pointer, Uint, Pointer, Pointer, Pointer, *_WAIT),
    # device, query, size, value, actual size
    "clGetDeviceInfo": (Int, Pointer, Uint, Size, Pointer, Pointer),
    "clNewRecordingQCOM": (Pointer, Pointer, Pointer),  # queue, status
    "clEndRecordingQCOM": (Int, Pointer),
    "clReleaseRecordingQCOM": (Int, Pointer),
    # queue, recording; count and array of arguments, offsets, global and local sizes; wait events
    "clEnqueueRecordingQCOM": (Int, Pointer, Pointer, *(Size, Pointer) * 4, *_WAIT),
    # count, queues, properties, status
    "clCreateCommandBufferKHR": (Pointer, Uint, Pointer, Pointer, Pointer),
    # command buffer, queue, properties, kernel, dimensions, offset, global and local size, count
    # and array of sync points to wait for, the new sync point, the new command's handle
    "clCommandNDRangeKernelKHR": (
        *(Int, Pointer, Pointer, Pointer, Pointer, Uint, Pointer, Pointer, Pointer),
        *(Uint, Pointer, Pointer, Pointer),
    ),
    "clFinalizeCommandBufferKHR": (Int, Pointer),
    "clReleaseCommandBufferKHR": (Int, Pointer),
    # count, queues, command buffer, events
    "clEnqueueCommandBufferKHR": (Int, Uint, Pointer, Pointer, *_WAIT),
    # command buffer; count, kinds, configurations (before version 0.9.3 one base configuration)
    "clUpdateMutableCommandsKHR": (Int, Pointer, Uint, Pointer, Pointer),
}
# clUpdateMutableCommandsKHR before version 0.9.3.
LINKED_UPDATE: Final = (Int, Pointer, Pointer)

Function = Callable[..., Any]


@functools.cache
def _library() -> ctypes.CDLL:
    """Return pyopencl's own library. It is linked to the OpenCL loader, so its symbols resolve."""
    return ctypes.CDLL(cl._cl.__file__)


def core_function(name: str) -> Function:
    """Return a core function, which every OpenCL loader has."""
    result, *arguments = _PROTOTYPES[name]
    function = _library()[name]
    function.restype, function.argtypes = result, arguments
    return function


def extension_function(
    handle: cl.Device, name: str, prototype: Sequence[Any] | None = None
) -> Function:
    """Return a function of an extension; raise RecordingError if the driver lacks it.

    `prototype` is its result and argument types, if the driver's version differs from the newest.
    """
    library = _library()
    find = library.clGetExtensionFunctionAddressForPlatform
    find.restype, find.argtypes = Pointer, (Pointer, ctypes.c_char_p)
    address = find(handle.platform.int_ptr, name.encode())
    # Only Qualcomm's driver defines names that end in QCOM. So they may also be looked up without a
    # platform, or in a vendor's library that replaces the loader. Some are found only there.
    if not address and name.endswith(_VENDOR):
        older = library.clGetExtensionFunctionAddress
        older.restype, older.argtypes = Pointer, (ctypes.c_char_p,)
        address = older(name.encode())
        if not address:
            with contextlib.suppress(AttributeError):
                address = ctypes.cast(library[name], Pointer).value
    if not address:
        raise RecordingError(f"the driver has no function {name}")
    return ctypes.CFUNCTYPE(*(prototype or _PROTOTYPES[name]))(address)


def check(status: int, name: str) -> None:
    """Raise RecordingError if `status`, the result of the function `name`, is an error."""
    if status:
        known = {number: text for text, number in vars(cl.status_code).items() if text.isupper()}
        text = (known | _NEW_STATUS).get(status, f"status {status}")
        raise RecordingError(f"{name} failed: {text}")


def device_number(handle: cl.Device, which: int, kind: Any) -> int:
    """Return a number that a device reports, of the ctypes type `kind`; 0 if it is unknown."""
    value = kind()
    pointer = ctypes.byref(value)
    status = core_function("clGetDeviceInfo")(
        handle.int_ptr, which, ctypes.sizeof(value), pointer, None
    )
    return 0 if status else int(value.value)
