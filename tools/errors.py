"""Errors of the command line tools.

::

    ToolError                    1  a check failed
    +-- TrainingError            1  a training that diverged, or cannot go on
    +-- UsageError               2  arguments that cannot work
    +-- MissingPackageError      3  an optional package is not installed
    +-- PackagesError            3  this machine cannot fetch packages of Debian
    |   +-- PackageNotOfferedError  3  no such package, or another version of it
    |   +-- PackageDownloadError    3  lists or packages could not be downloaded whole
    |   +-- PackageDiskError        3  no room for them
    +-- VideoError               4  a video that cannot be read
    |   +-- PictureSizeError     4  a video whose pictures change their size
    +-- DriveError               4  a drive that is missing, incomplete or of no known kind
    +-- TelemetryError           4  a telemetry file with missing or unreadable columns
    +-- ArtifactMismatchError    4  an artifact that was not compiled for this job
    +-- InspectError             4  a file of no known kind
    +-- CompareError             4  logs that have nothing to compare
    +-- LabelsError              4  labels that are damaged, or of another clip

``exit_code`` is what ``modeld`` exits with when the error reaches the command line. The message
is one line: where, expected, found, what to do next.
"""

from __future__ import annotations

from typing import ClassVar


class ToolError(Exception):
    """A tool did its work and the result is not what it has to be."""

    exit_code: ClassVar[int] = 1


class TrainingError(ToolError):
    """A training diverged, was damaged, or cannot go on."""


class UsageError(ToolError):
    """The arguments cannot work."""

    exit_code: ClassVar[int] = 2


class MissingPackageError(ToolError):
    """A package of an optional extra is not installed."""

    exit_code: ClassVar[int] = 3


class PackagesError(ToolError):
    """Packages of Debian cannot be fetched on this machine."""

    exit_code: ClassVar[int] = 3


class PackageNotOfferedError(PackagesError):
    """The mirror has no such package, or not in the version that is wanted."""


class PackageDownloadError(PackagesError):
    """Lists or packages could not be downloaded whole."""


class PackageDiskError(PackagesError):
    """There is no room for the packages."""


class VideoError(ToolError):
    """A video is missing, or nothing in it can be read."""

    exit_code: ClassVar[int] = 4


class PictureSizeError(VideoError):
    """The pictures of a video change their size: what follows cannot be used."""


class DriveError(ToolError):
    """A recorded drive is missing, incomplete, damaged or of no known kind."""

    exit_code: ClassVar[int] = 4


class TelemetryError(ToolError):
    """A telemetry file has no usable columns or rows."""

    exit_code: ClassVar[int] = 4


class ArtifactMismatchError(ToolError):
    """An artifact is sound but was compiled for something else."""

    exit_code: ClassVar[int] = 4


class InspectError(ToolError):
    """A file that is none of the kinds ``modeld inspect`` knows, or that cannot be read."""

    exit_code: ClassVar[int] = 4


class CompareError(ToolError):
    """Two logs have no message in common that could be compared."""

    exit_code: ClassVar[int] = 4


class LabelsError(ToolError):
    """Labelled frames that cannot be read, or that are of another clip."""

    exit_code: ClassVar[int] = 4
