"""Loads artifacts (compiled models) and runs them on an OpenCL device.

It depends on numpy and pyopencl only. `import runtime` does not import pyopencl or use a device;
`load_program` does. docs/formats/artifact.md describes the artifact file.
"""

import importlib
from typing import TYPE_CHECKING, Any

from runtime.errors import (
    ArtifactError,
    BuildError,
    InputError,
    NoDeviceError,
    RuntimeFault,
    SelfTestError,
)
from runtime.format.artifact import Artifact, read_artifact, write_artifact

if TYPE_CHECKING:
    from runtime.opencl.device import Device, DeviceInfo, choose_device, list_devices
    from runtime.run.entry import TensorSpec
    from runtime.run.executor import Program, build_binaries, load_program, run_once
    from runtime.run.profile import KernelTime, ProgramStats
    from runtime.run.selftest import SelfTestReport, self_test

# Imported on first use, so that a command that needs no device does not load pyopencl.
_LAZY = {
    "Device": "runtime.opencl.device",
    "DeviceInfo": "runtime.opencl.device",
    "KernelTime": "runtime.run.profile",
    "Program": "runtime.run.executor",
    "ProgramStats": "runtime.run.profile",
    "SelfTestReport": "runtime.run.selftest",
    "TensorSpec": "runtime.run.entry",
    "build_binaries": "runtime.run.executor",
    "choose_device": "runtime.opencl.device",
    "list_devices": "runtime.opencl.device",
    "load_program": "runtime.run.executor",
    "run_once": "runtime.run.executor",
    "self_test": "runtime.run.selftest",
}


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'runtime' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


__all__ = [
    "Artifact",
    "ArtifactError",
    "BuildError",
    "Device",
    "DeviceInfo",
    "InputError",
    "KernelTime",
    "NoDeviceError",
    "Program",
    "ProgramStats",
    "RuntimeFault",
    "SelfTestError",
    "SelfTestReport",
    "TensorSpec",
    "build_binaries",
    "choose_device",
    "list_devices",
    "load_program",
    "read_artifact",
    "run_once",
    "self_test",
    "write_artifact",
]
