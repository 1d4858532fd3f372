"""Errors of regression.

::

    ToolError
    +-- ReferenceError         4  a reference that is missing, damaged or of something else
        +-- ReferenceFormatError  4  its bytes are not what they should be
    +-- WorkerError            1  a process that ran a drive died, twice
"""

from __future__ import annotations

from typing import ClassVar

from tools.errors import ToolError


class RegressionReferenceError(ToolError):
    """A reference is missing, or of another model, device class, interface or format."""

    exit_code: ClassVar[int] = 4


class ReferenceFormatError(RegressionReferenceError):
    """A reference file is damaged."""


class WorkerError(ToolError):
    """A process that ran a drive ended before it had a result."""
