"""Builds OpenCL programs and caches them, while a program is loaded and never during a frame.

The clang inside a driver writes "1 warning generated." to the process's standard error stream,
without the warning itself, and OpenCL has no option to prevent that. Therefore that stream is
redirected to a file during a build, and only other text in it is passed on. The warnings
themselves are in the build log, which is logged at debug level.
"""

import atexit
import contextlib
import functools
import hashlib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from runtime.errors import BuildError, compiler_error, first_line
from runtime.files.cache import EntryStore, cache_dir
from runtime.format.manifest import ABI, ProgramSpec, TargetSpec
from runtime.opencl.binding import cl, pocl_directory
from runtime.opencl.device import Device, DeviceInfo

logger = logging.getLogger(__name__)

STDERR: Final = 2
# CompilerInstance::ExecuteAction of clang: "1 warning and 2 errors generated."
_COUNTS: Final = re.compile(
    rb"^\d+ (?:warning|error)s?(?: and \d+ errors?)? generated(?: when compiling for \w+)?\.\n",
    re.MULTILINE,
)
# The stream belongs to the process, so only one build at a time may redirect it.
_STREAM: Final = threading.Lock()


def build(program: cl.Program, options: str = "") -> cl.Program:
    """Build a program and return it. On failure pyopencl.Error contains the build log."""
    pocl_directory.ensure()
    with _STREAM, warnings.catch_warnings(), _without_counts():
        # pyopencl warns of every log that is not empty. We log it at debug level instead.
        warnings.simplefilter("ignore", cl.CompilerWarning)
        program.build(options)
    if logger.isEnabledFor(logging.DEBUG):
        built: Any = program  # pyopencl types neither of the two
        for device in built.get_info(cl.program_info.DEVICES):
            log = built.get_build_info(device, cl.program_build_info.LOG)
            if log:
                logger.debug("build log: %s", log.strip())
    return program


@contextlib.contextmanager
def _without_counts() -> Iterator[None]:
    """Redirect the stream within the block; afterwards pass on all text except the counts."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    try:
        stream = os.dup(STDERR)
    except OSError:  # the stream is closed
        yield
        return
    caught = os.memfd_create("compiler-output")
    os.dup2(caught, STDERR)
    try:
        yield
    finally:
        # Other threads may have written to the stream too, so the file contains their text as well.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os.dup2(stream, STDERR)
        os.close(stream)
        with os.fdopen(caught, "rb") as file:
            file.seek(0)
            text = file.read()
        for count in _COUNTS.findall(text):
            logger.debug("compiler: %s", count.decode().strip())
        _write_all(_COUNTS.sub(b"", text))


def _write_all(text: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads the stream
        while text:
            text = text[os.write(STDERR, text) :]


# --- The cache of built programs: from an artifact's binary, from our cache, or from source ---
# On PoCL, compiling takes 50 ms or more per kernel, and loading a binary about 1 ms per program.
# The cache key covers everything that a binary depends on: source, device, driver and options.
# Entries have a digest (`EntryStore`), because a damaged binary can make a driver abort.

# Version of the entries on disk. Entries of other versions are ignored.
_LAYOUT: Final = "2"
_MAX_IN_MEMORY: Final = 1024  # programs; limits a process that realizes many tensors


def cache_key(source: str, options: str, info: DeviceInfo) -> str:
    """Return the key of the cache entry for `source`, built with `options` on this device."""
    digest = hashlib.sha256()
    for part in (source, info.platform, info.name, info.driver, options, str(ABI), _LAYOUT):
        encoded = part.encode()
        # The length distinguishes ("ab", "c") from ("a", "bc").
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


class ProgramCache:
    """Builds programs for one device. Identical programs are built once and shared."""

    def __init__(
        self,
        device: Device,
        directory: Path | None = None,
        *,
        on_build: Callable[[], None] = lambda: None,
    ) -> None:
        self.device = device
        self._on_build = on_build  # called before each compilation from source
        self._binaries = EntryStore(directory or cache_dir() / "programs", "program")
        self.built_from_source = 0  # number of programs that had to be compiled
        self._built: dict[str, cl.Program] = {}
        self._unsaved: dict[str, cl.Program] = {}

    def build(self, spec: ProgramSpec, target: TargetSpec | None = None) -> cl.Program:
        """Return the built program: from memory, the artifact's binary, the cache, or the source.

        The binary is used only if device and driver are those of `target`. Raises BuildError with
        the compiler's first error if it rejects the source.
        """
        key = cache_key(spec.source, spec.options, self.device.info)
        program = self._built.get(key)
        if program is None:
            program = self._from_artifact(spec, target) or self._from_cache(key, spec.options)
            if program is None:
                self._on_build()
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
        """Write newly compiled programs to disk. Call it after their first launches.

        PoCL compiles a kernel again for the work-group size and grid of its first launch. A binary
        saved earlier lacks the result, so each start would compile it again (measured: 22 ms per
        kernel, PoCL 3.0).
        """
        for key, program in self._unsaved.items():
            binary = binary_of(program)
            if binary:
                self._binaries.put(key, binary)
        self._unsaved.clear()

    def launched(self) -> None:
        """Do nothing. `Program.close` calls it once the programs built so far have run."""

    def _from_artifact(self, spec: ProgramSpec, target: TargetSpec | None) -> cl.Program | None:
        info = self.device.info
        if not spec.binary or target is None:
            return None
        if (target.device, target.driver) != (info.name, info.driver):
            return None  # the executor logs this once for the whole artifact
        return self._load(spec.binary, spec.options, "the artifact's binary")

    def _from_cache(self, key: str, options: str) -> cl.Program | None:
        binary = self._binaries.get(key)
        if binary is None:
            return None
        return self._load(binary, options, str(self._binaries.directory / key))

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
                f"{self.device.info.name}: a program does not build: {compiler_error(error)}"
            ) from error


class SharedCache(ProgramCache):
    """A cache for kernels that are compiled, run and dropped, such as those of tensors.

    It does not save their binaries, which takes 40 ms per kernel on PoCL. Instead it keeps PoCL's
    own files, which only have to be copied and speed up the next compilation of the same source
    (measured: 110 ms instead of 1170 ms for two programs of five kernels on PoCL 3.0).
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._files = EntryStore(cache_dir() / "kernels", "kernel")
        self._to_keep: dict[str, str] = {}  # key -> PoCL's name of a program that is not yet kept
        atexit.register(self.launched)

    def save(self) -> None:
        """Save nothing; see `launched`."""

    def launched(self) -> None:
        """Store PoCL's files of the programs built so far, now that they include first launches."""
        while True:
            try:  # other threads may add and remove items
                key, name = self._to_keep.popitem()
            except KeyError:
                return
            try:
                self._files.put(key, pocl_directory.pack(name))
            except OSError as error:
                logger.info("%s: PoCL's files cannot be kept: %s", name, error)

    def _compile(self, spec: ProgramSpec) -> cl.Program:
        if not self.device.info.is_pocl:
            return super()._compile(spec)
        key = cache_key(spec.source, spec.options, self.device.info)
        packed = self._files.get(key)
        if packed is not None:
            try:
                pocl_directory.unpack(packed)
            except (ValueError, OSError) as error:
                logger.warning("%s: not used: %s", self._files.directory / key, error)
        with pocl_directory.new_programs() as added:
            program = super()._compile(spec)
        if len(added) == 1:
            self._to_keep[key] = added[0]
        return program


@functools.lru_cache(maxsize=8)
def shared_cache(device: Device) -> SharedCache:
    """Return the process's shared cache for `device`, for programs that are built repeatedly."""
    return SharedCache(device)


def binary_of(program: cl.Program) -> bytes:
    """Return the device binary of a built program (on PoCL this links all of its kernels)."""
    binaries = program.get_info(cl.program_info.BINARIES)
    assert isinstance(binaries, list)
    return bytes(binaries[0]) if binaries and binaries[0] else b""
