"""Exit codes of ``modeld`` and errors of the command line tools.

::

    ToolError                    1  a check failed
    +-- TrainingError            1  a training run that diverged or cannot continue
    +-- UsageError               2  invalid arguments
    +-- MissingPackageError      3  an optional package is not installed
    +-- PackagesError            3  this machine cannot fetch Debian packages
    |   +-- PackageNotOfferedError  3  no such package, or not in the required version
    |   +-- PackageDownloadError    3  lists or packages could not be downloaded completely
    |   +-- PackageDiskError        3  not enough disk space for them
    +-- ToolchainError           3  the compiler for Adreno cannot be built or does not start
    |   +-- ToolchainMissingError   3  it has not been fetched
    +-- VideoError               4  a video that cannot be read
    |   +-- PictureSizeError     4  a video whose pictures change their size
    +-- DriveError               4  a drive that is missing, incomplete or of unknown kind
    +-- TelemetryError           4  a telemetry file with missing or unreadable columns
    +-- ArtifactMismatchError    4  an artifact that was not compiled for this job
    +-- FileKindError            4  a file that is missing or of an unexpected kind
    +-- CompareError             4  logs that have nothing to compare
    +-- LabelsError              4  labels that are damaged or belong to another clip
    +-- RegressionReferenceError 4  a reference that is missing or belongs to something else
    |   +-- ReferenceFormatError 4  a reference whose file is damaged
    +-- WorkerError              1  a process that ran a drive died, twice

``exit_code`` is the exit code of ``modeld`` when the error reaches the command line. The message is
one line: the place, the expected thing, the found thing, and the remedy.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self


class ExitCode(IntEnum):
    """Exit codes of ``modeld``; `meaning` is the text in ``--help`` and docs/commands.md.

    Errors of the lower packages use the same numbers; a test compares them.
    """

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """Create a member from its number and meaning."""
        code = int.__new__(cls, number)
        code._value_ = number
        code.meaning = meaning
        return code

    DONE = 0, "done; the daemon: stopped by SIGTERM"
    FAILED = 1, "a check failed, or an unexpected error"
    USAGE = 2, "bad usage: an invalid option, configuration or input array"
    MACHINE = 3, "no usable device, a kernel that does not build, or a missing optional package"
    INPUT = 4, "bad model, artifact, video or log; a device that fails"
    INTERRUPTED = 130, "interrupted (SIGINT)"
    CLOSED_PIPE = 141, "a closed pipe (SIGPIPE)"
    TERMINATED = 143, "terminated (SIGTERM)"


class ToolError(Exception):
    """A tool finished, but its result fails a check."""

    exit_code: ClassVar[int] = ExitCode.FAILED


class TrainingError(ToolError):
    """A training run diverged, is damaged or cannot continue."""


class UsageError(ToolError):
    """The arguments are invalid."""

    exit_code: ClassVar[int] = ExitCode.USAGE


class MissingPackageError(ToolError):
    """A package of an optional extra is not installed."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class PackagesError(ToolError):
    """Debian packages cannot be fetched on this machine."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class PackageNotOfferedError(PackagesError):
    """The mirror has no such package, or not in the required version."""


class PackageDownloadError(PackagesError):
    """Lists or packages could not be downloaded completely."""


class PackageDiskError(PackagesError):
    """There is not enough disk space for the packages."""


class ToolchainError(ToolError):
    """The compiler for Adreno cannot be built on this machine, or does not start."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class ToolchainMissingError(ToolchainError):
    """The compiler for Adreno has not been fetched."""


class VideoError(ToolError):
    """A video is missing or cannot be read."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class PictureSizeError(VideoError):
    """The pictures of a video change their size, so the rest cannot be used."""


class DriveError(ToolError):
    """A recorded drive is missing, incomplete, damaged or of unknown kind."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class TelemetryError(ToolError):
    """A telemetry file has no usable columns or rows."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class ArtifactMismatchError(ToolError):
    """An artifact is sound but was compiled for another purpose."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class FileKindError(ToolError):
    """A named file is missing, is of an unexpected kind or cannot be read."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class CompareError(ToolError):
    """Two logs have no message in common that could be compared."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class LabelsError(ToolError):
    """Labels of frames cannot be read or belong to another clip."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class RegressionReferenceError(ToolError):
    """A reference is missing or belongs to another model, device class, interface or format."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class ReferenceFormatError(RegressionReferenceError):
    """A reference file is damaged."""


class WorkerError(ToolError):
    """A process that ran a drive ended before it returned a result."""
