"""Loads pre-scheduled models (artifacts) and runs them on an OpenCL device.

Depends on numpy and pyopencl only. `import runtime` touches no device and does not import
pyopencl; `load_program` does. See docs/formats/artifact.md for the file it reads.
"""

import importlib
from typing import TYPE_CHECKING, Any

from runtime.artifact import Artifact, read_artifact, write_artifact
from runtime.errors import (
    ArtifactError,
    BuildError,
    InputError,
    NoDeviceError,
    RuntimeFault,
    SelfTestError,
)

if TYPE_CHECKING:
    from runtime.device import Device, DeviceInfo, choose_device, list_devices
    from runtime.entry import TensorSpec
    from runtime.executor import Program, build_binaries, load_program, run_once
    from runtime.profile import KernelTime
    from runtime.selftest import SelfTestReport, self_test
    from runtime.stats import ProgramStats

# Resolved on first use, so that a command which needs no device does not load pyopencl.
_LAZY = {
    "Device": "runtime.device",
    "DeviceInfo": "runtime.device",
    "KernelTime": "runtime.profile",
    "Program": "runtime.executor",
    "ProgramStats": "runtime.stats",
    "SelfTestReport": "runtime.selftest",
    "TensorSpec": "runtime.entry",
    "build_binaries": "runtime.executor",
    "choose_device": "runtime.device",
    "list_devices": "runtime.device",
    "load_program": "runtime.executor",
    "run_once": "runtime.executor",
    "self_test": "runtime.selftest",
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
