"""Errors of the runtime. This module imports no other module of the project.

RuntimeFault                 exit code 4   a failure while a program ran
├── ArtifactError            exit code 4   the artifact file is missing, damaged or unsuitable
├── SelfTestError            exit code 4   the device's results differ from the model's
├── NoDeviceError            exit code 3   no OpenCL device can be used
├── BuildError               exit code 3   the device's compiler rejected a kernel
└── InputError               exit code 2   the caller's arrays or names do not fit the program

Each message is one line: the place, the expectation, the finding, and advice.
"""

import re
from typing import Final

_ERROR_MARK: Final = "error:"
_SOURCE_FILE: Final = re.compile(r"\S+\.cl:")  # the name of the driver's temporary file, no help


class RuntimeFault(Exception):  # noqa: N818 - the base of the tree is not itself one error
    """Base of every error of the runtime. `exit_code` is the exit status of the command line."""

    exit_code: int = 4


class ArtifactError(RuntimeFault):
    """The artifact cannot be loaded: missing, truncated, damaged, or of another format."""


class SelfTestError(RuntimeFault):
    """A loaded program's values differ from the expected values in its artifact."""


class NoDeviceError(RuntimeFault):
    """No OpenCL device is usable, or none matches the request."""

    exit_code = 3


class BuildError(RuntimeFault):
    """A program did not build on the device; the message holds the compiler's first error."""

    exit_code = 3


class InputError(RuntimeFault):
    """An input array, entry or state name does not match what the program declares."""

    exit_code = 2


def first_line(text: object) -> str:
    """Return the first non-empty line of `text`, so that an error stays one line."""
    for line in str(text).splitlines():
        if line.strip():
            return line.strip()
    return ""


def compiler_error(error: Exception) -> str:
    """Return the line of a build log that states the error."""
    for line in str(error).splitlines():
        if _ERROR_MARK in line:
            return _SOURCE_FILE.sub("line ", line.strip())
    return first_line(error)
