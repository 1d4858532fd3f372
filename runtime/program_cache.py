"""Built OpenCL programs: from an artifact's binary, from our cache, or from source.

Compiling takes 50 ms or more a kernel on PoCL, loading a binary about 1 ms a program. A binary
belongs to exactly one source, device, driver and set of options; all of them are in the cache key.
An entry carries its own digest, because a driver given a damaged binary may abort the process.
"""

import functools
import hashlib
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import Final

from runtime.cache_dir import cache_dir
from runtime.compiler_output import build
from runtime.device import Device, DeviceInfo
from runtime.errors import BuildError, first_line
from runtime.manifest import ABI, ProgramSpec, TargetSpec
from runtime.opencl import cl

logger = logging.getLogger(__name__)

_ENTRY_MAGIC: Final = b"modeldpb"
_MAX_IN_MEMORY: Final = 1024  # programs; a process that realizes many tensors stays bounded
_ERROR_MARK: Final = "error:"
_SOURCE_FILE: Final = re.compile(r"\S+\.cl:")  # the driver's temporary file says nothing


def cache_key(source: str, options: str, info: DeviceInfo) -> str:
    """Return the name of the cache entry for `source` built with `options` on this device."""
    digest = hashlib.sha256()
    for part in (source, info.platform, info.name, info.driver, options, str(ABI)):
        encoded = part.encode()
        # The length keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


class ProgramCache:
    """Builds programs for one device; identical programs are built once and shared."""

    def __init__(self, device: Device, directory: Path | None = None) -> None:
        self.device = device
        self.directory = directory or cache_dir() / "programs"
        self.built_from_source = 0  # how many programs had to be compiled
        self._built: dict[str, cl.Program] = {}
        self._unsaved: dict[str, cl.Program] = {}

    def build(self, spec: ProgramSpec, target: TargetSpec | None = None) -> cl.Program:
        """Return `spec` built: from memory, the artifact's binary, the cache, else the source.

        Args:
            spec: source, options and possibly a binary.
            target: what the binary was made for; it is used only on that device and driver.

        Raises:
            BuildError: the compiler rejects the source; holds its first error.
        """
        key = cache_key(spec.source, spec.options, self.device.info)
        program = self._built.get(key)
        if program is None:
            program = self._from_artifact(spec, target) or self._from_cache(key, spec.options)
            if program is None:
                program = self._compile(spec)
                self.built_from_source += 1
                self._unsaved[key] = program
            self._remember(key, program)
        return program

    def _remember(self, key: str, program: cl.Program) -> None:
        if len(self._built) >= _MAX_IN_MEMORY:
            oldest = next(iter(self._built))
            del self._built[oldest]
            self._unsaved.pop(oldest, None)
        self._built[key] = program

    def save(self) -> None:
        """Write the programs that were compiled to disk; call it after their first launches.

        PoCL compiles a kernel again for the work-group size and grid of its first launch. A
        binary taken before that lacks the result, and each start would compile it again
        (measured: 22 ms a kernel, PoCL 3.0).
        """
        for key, program in self._unsaved.items():
            self._store(key, program)
        self._unsaved.clear()

    def _from_artifact(self, spec: ProgramSpec, target: TargetSpec | None) -> cl.Program | None:
        info = self.device.info
        if not spec.binary or target is None:
            return None
        if (target.device, target.driver) != (info.name, info.driver):
            return None  # the executor says so, once for the whole artifact
        return self._load(spec.binary, spec.options, "the artifact's binary")

    def _from_cache(self, key: str, options: str) -> cl.Program | None:
        path = self.directory / key
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("%s: cannot read the cached program: %s", path, error)
            return None
        binary = _check_entry(content, key)
        if binary is None:
            logger.warning("%s: the cached program is damaged; building it again", path)
            return None
        return self._load(binary, options, str(path))

    def _load(self, binary: bytes, options: str, origin: str) -> cl.Program | None:
        try:
            program = cl.Program(self.device.context, [self.device.handle], [binary])
            return build(program, options)
        except cl.Error as error:
            logger.info("%s: the driver refuses it (%s); building it", origin, first_line(error))
            return None

    def _compile(self, spec: ProgramSpec) -> cl.Program:
        try:
            return build(cl.Program(self.device.context, spec.source), spec.options)
        except cl.Error as error:
            raise BuildError(
                f"{self.device.info.name}: a program does not build: {_compiler_error(error)}"
            ) from error

    def _store(self, key: str, program: cl.Program) -> None:
        """Write the entry; writers of the same entry may race, each leaves a whole file."""
        binary = binary_of(program)
        if not binary:
            return
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.directory, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_entry(binary, key))
                Path(temporary).replace(self.directory / key)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            logger.warning("%s: cannot cache a program: %s", self.directory, error)


@functools.lru_cache(maxsize=8)
def shared_cache(device: Device) -> ProgramCache:
    """Return the process's own cache for `device`, for programs that are built again and again.

    Nobody calls `save` on it: a binary costs 40 ms a kernel on PoCL, whose own cache of
    sources is good enough for one-off kernels.
    """
    return ProgramCache(device)


def binary_of(program: cl.Program) -> bytes:
    """Return the device binary of a built program (on PoCL this links all of its kernels)."""
    binaries = program.get_info(cl.program_info.BINARIES)
    assert isinstance(binaries, list)
    return bytes(binaries[0]) if binaries and binaries[0] else b""


def _entry(binary: bytes, key: str) -> bytes:
    return _ENTRY_MAGIC + hashlib.sha256(key.encode() + binary).digest() + binary


def _check_entry(content: bytes, key: str) -> bytes | None:
    """Return the binary of an entry, or None where it is damaged or belongs to another key."""
    binary = content[len(_ENTRY_MAGIC) + 32 :]
    return binary if content == _entry(binary, key) else None


def _compiler_error(error: Exception) -> str:
    """Return the line of a build log that says what is wrong."""
    for line in str(error).splitlines():
        if _ERROR_MARK in line:
            return _SOURCE_FILE.sub("line ", line.strip())
    return first_line(error)
