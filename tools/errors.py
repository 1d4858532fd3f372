"""Exit codes of ``modeld``, and the errors of the command line tools.

::

    ToolError                    1  a check failed
    +-- TrainingError            1  a training that diverged, or cannot go on
    +-- UsageError               2  arguments that cannot work
    +-- MissingPackageError      3  an optional package is not installed
    +-- PackagesError            3  this machine cannot fetch packages of Debian
    |   +-- PackageNotOfferedError  3  no such package, or another version of it
    |   +-- PackageDownloadError    3  lists or packages could not be downloaded whole
    |   +-- PackageDiskError        3  no room for them
    +-- ToolchainError           3  the compiler for Adreno cannot be made, or does not start
    |   +-- ToolchainMissingError   3  it has not been fetched
    +-- VideoError               4  a video that cannot be read
    |   +-- PictureSizeError     4  a video whose pictures change their size
    +-- DriveError               4  a drive that is missing, incomplete or of no known kind
    +-- TelemetryError           4  a telemetry file with missing or unreadable columns
    +-- ArtifactMismatchError    4  an artifact that was not compiled for this job
    +-- FileKindError            4  a file that is missing, or of a kind that is not expected
    +-- CompareError             4  logs that have nothing to compare
    +-- LabelsError              4  labels that are damaged, or of another clip
    +-- RegressionReferenceError 4  a reference that is missing, or of something else
    |   +-- ReferenceFormatError 4  a reference whose file is damaged
    +-- WorkerError              1  a process that ran a drive died, twice

``exit_code`` is what ``modeld`` exits with when the error reaches the command line. The message
is one line: where, expected, found, what to do next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self


class ExitCode(IntEnum):
    """What ``modeld`` exits with; `meaning` is the line of ``--help`` and docs/commands.md.

    Errors of the packages below have the same numbers; a test compares them with these.
    """

    meaning: str

    def __new__(cls, number: int, meaning: str) -> Self:
        """Make a member of a number and what it means."""
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
    """A tool did its work and the result is not what it has to be."""

    exit_code: ClassVar[int] = ExitCode.FAILED


class TrainingError(ToolError):
    """A training diverged, was damaged, or cannot go on."""


class UsageError(ToolError):
    """The arguments cannot work."""

    exit_code: ClassVar[int] = ExitCode.USAGE


class MissingPackageError(ToolError):
    """A package of an optional extra is not installed."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class PackagesError(ToolError):
    """Packages of Debian cannot be fetched on this machine."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class PackageNotOfferedError(PackagesError):
    """The mirror has no such package, or not in the version that is wanted."""


class PackageDownloadError(PackagesError):
    """Lists or packages could not be downloaded whole."""


class PackageDiskError(PackagesError):
    """There is no room for the packages."""


class ToolchainError(ToolError):
    """The compiler for Adreno cannot be made on this machine, or does not start."""

    exit_code: ClassVar[int] = ExitCode.MACHINE


class ToolchainMissingError(ToolchainError):
    """The compiler for Adreno has not been fetched."""


class VideoError(ToolError):
    """A video is missing, or nothing in it can be read."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class PictureSizeError(VideoError):
    """The pictures of a video change their size: what follows cannot be used."""


class DriveError(ToolError):
    """A recorded drive is missing, incomplete, damaged or of no known kind."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class TelemetryError(ToolError):
    """A telemetry file has no usable columns or rows."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class ArtifactMismatchError(ToolError):
    """An artifact is sound but was compiled for something else."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class FileKindError(ToolError):
    """A file that was named is missing, is of another kind than expected, or cannot be read."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class CompareError(ToolError):
    """Two logs have no message in common that could be compared."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class LabelsError(ToolError):
    """Labelled frames that cannot be read, or that are of another clip."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class RegressionReferenceError(ToolError):
    """A reference is missing, or of another model, device class, interface or format."""

    exit_code: ClassVar[int] = ExitCode.INPUT


class ReferenceFormatError(RegressionReferenceError):
    """A reference file is damaged."""


class WorkerError(ToolError):
    """A process that ran a drive ended before it had a result."""
