"""Builds many kernels in parallel, each separately and only once.

The compiler takes seconds to start, and a crash also loses the other kernels of its process. So a
few processes build kernels one by one. If one crashes, its kernel is reported and a new process
takes the next kernel. Code is cached next to the compiler, keyed by the content of the source. It
does not depend on other kernels of the program, so equal kernels of several models are built once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import re
import subprocess
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.files.cache import write_whole
from tools.adreno.statistics import KernelCode, condensed, read_log
from tools.adreno.toolchain import Toolchain, problem_in, request
from tools.errors import ArtifactMismatchError, ToolchainError

# Code that may precede kernels: a function, a constant or sampler, a preprocessor line.
_PIECE: Final = re.compile(
    r"^((?:M_INLINE .*?^\}\n|__constant .*?;\n|#[^\n]*\n))", flags=re.MULTILINE | re.DOTALL
)
_FUNCTION: Final = re.compile(r"(\w+)\(")
_DEFINED: Final = re.compile(r"#define (\w+)")
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel with all the code it needs, but no other kernel."""

    name: str
    text: str
    options: str = ""


def kernel_sources(manifest: Mapping[str, Any]) -> dict[str, Source]:
    """Return the source of each kernel of an artifact by name, without the megakernel.

    Raises:
        ArtifactMismatchError: the artifact does not record the positions of its kernels.
    """
    kernels = manifest["kernels"]
    if any("code" not in kernel for kernel in kernels):
        raise ArtifactMismatchError(
            "the artifact: expected kernels whose code is described, found some of another compiler"
        )
    first: dict[int, int] = {}
    for kernel in kernels:
        at = kernel["code"]["start"]
        first[kernel["program"]] = min(at, first.get(kernel["program"], at))
    found: dict[str, Source] = {}
    for kernel in kernels:
        program = manifest["programs"][kernel["program"]]
        code = program["source"][kernel["code"]["start"] : kernel["code"]["end"]].rstrip()
        head = "".join(_needed(program["source"][: first[kernel["program"]]], code))
        found[kernel["name"]] = Source(kernel["name"], f"{head}{code}\n", program["options"])
    return found


def _needed(head: str, code: str) -> Iterator[str]:
    """Yield the pieces before the kernels that a kernel uses, directly or through other pieces."""
    # The split gives pieces at odd positions. Between them are comments that name nodes, and any
    # code of custom kernels.
    pieces = [
        re.sub(r"/\*.*?\*/", "", piece) if n % 2 == 0 else piece
        for n, piece in enumerate(_PIECE.split(head))
    ]
    pieces = [piece for piece in pieces if piece.strip()]
    kept = {n for n, piece in enumerate(pieces) if _name(piece) in {"", "M_INLINE"}}
    words = set(_WORD.findall(code))
    while True:
        more = {n for n, piece in enumerate(pieces) if _name(piece) in words} - kept
        if not more:
            break
        kept |= more
        words |= {word for n in more for word in _WORD.findall(pieces[n])}
    yield from (piece for n, piece in enumerate(pieces) if n in kept)


def _name(piece: str) -> str:
    """Return the name that a piece defines; "" for pieces that are always needed."""
    if piece.startswith("M_INLINE"):
        # Attributes before the name have brackets too.
        bare = piece.replace("__attribute__((overloadable))", "")
        match = _FUNCTION.search(bare)
    elif piece.startswith("__constant"):
        match = re.search(r"(\w+) =", piece)
    else:
        match = _DEFINED.match(piece)
    return match[1] if match else ""


# A kernel of 8000 instructions takes half a minute on a busy machine; a hanging one is ended.
TIMEOUT_S: Final = 900.0
# A process exits right after the end of its input.
_ENDS_WITHIN_S: Final = 5.0
# Number of cached logs, about 4 KiB each.
_KEPT: Final = 4000

# Called with (unit counted, number done, total).
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A kernel that could not be built, with the reason in one line."""

    name: str
    problem: str


Built = KernelCode | Failure


def build(
    toolchain: Toolchain, sources: Iterable[Source], gpu: int, progress: Progress
) -> dict[Source, Built]:
    """Return the compiled code of each kernel, or its failure.

    Equal kernels are built once; `progress` is called after each kernel.

    Raises:
        ToolchainError: the compiler does not start, or its folder cannot be written.
    """
    wanted = list(dict.fromkeys(sources))
    logs = {source: _path(toolchain, source, gpu) for source in wanted}
    built: dict[Source, Built] = {}
    missing: list[Source] = []
    for source in wanted:
        code = _read(logs[source], source.name)
        if code is None:
            missing.append(source)
        else:
            built[source] = code
    # The longest first, so that no process is left with a long one when the others are done.
    missing.sort(key=lambda source: -len(source.text))
    work: queue.SimpleQueue[Source] = queue.SimpleQueue()
    for source in missing:
        work.put(source)
    workers = min(len(missing), len(os.sched_getaffinity(0)))
    done = len(built)
    lock = threading.Lock()

    def build_all(_: int) -> None:
        nonlocal done
        with (
            tempfile.TemporaryDirectory(prefix="adreno-") as folder,
            _Compiler(toolchain, gpu, Path(folder)) as compiler,
        ):
            while True:
                try:
                    source = work.get_nowait()
                except queue.Empty:
                    return
                result = compiler.build(source)
                if isinstance(result, str):
                    _write(logs[source], result)
                    (code,) = [k for k in read_log(result) if k.name == source.name]
                    built[source] = code
                else:
                    built[source] = result
                with lock:
                    done += 1
                    progress("kernels built", done, len(wanted))

    if missing:
        with ThreadPoolExecutor(workers) as threads:
            for _ in threads.map(build_all, range(workers)):
                pass
        _delete_oldest(toolchain.logs)
    return {source: built[source] for source in wanted}


class _Compiler:
    """A process of the compiler, started on demand."""

    def __init__(self, toolchain: Toolchain, gpu: int, folder: Path) -> None:
        self._command = toolchain.command(gpu)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def build(self, source: Source) -> str | Failure:
        """Return the condensed log of a kernel, or its failure."""
        file = self._folder / "kernel.cl"
        try:
            file.write_text(source.text, encoding="utf-8")
        except OSError as error:
            raise ToolchainError(
                f"{file}: expected to write a kernel there, found: {error.strerror}; free space"
            ) from error
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stderr is not None
        watchdog = threading.Timer(TIMEOUT_S, process.kill)
        watchdog.start()
        lines: list[str] = []
        try:
            process.stdin.write(request(file, source.options))
            process.stdin.flush()
            for raw in process.stderr:
                lines.append(raw.decode(errors="replace"))
                if lines[-1].startswith("@end "):
                    break
        except BrokenPipeError:
            # The process ended; its output and exit code show the reason.
            lines += [raw.decode(errors="replace") for raw in process.stderr]
        finally:
            watchdog.cancel()
        log = "".join(lines)
        if log.endswith(" 0\n") and f"\n@end {file} 0\n" in log:
            return condensed(log)
        if f"\n@end {file}" in f"\n{log}":
            return Failure(source.name, problem_in(log, 0))
        code = self._end()
        if "@begin" not in log:
            raise ToolchainError(
                f"the compiler for Adreno: expected it to start, found: {problem_in(log, code)}; "
                "delete its folder and run `make adreno-tools` again"
            )
        return Failure(source.name, problem_in(log, code))

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise ToolchainError(
                f"{self._command[0]}: expected to run it, found: {error.strerror}; "
                "delete its folder and run `make adreno-tools` again"
            ) from error
        return self._process

    def __enter__(self) -> _Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> int:
        """End the process, if there is one, and return its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for stream in (process.stdin, process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        if process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_ENDS_WITHIN_S)
            process.kill()
        return process.wait()


def _path(toolchain: Toolchain, source: Source, gpu: int) -> Path:
    parts = (toolchain.identity, str(gpu), source.options, source.text)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    return toolchain.logs / f"{digest[:32]}.log"


def _read(path: Path, name: str) -> KernelCode | None:
    """Return the cached code; None if there is none, or it is corrupt."""
    try:
        kernels = read_log(zlib.decompress(path.read_bytes()).decode())
        os.utime(path)
    except (OSError, zlib.error, UnicodeDecodeError):
        return None
    return next((kernel for kernel in kernels if kernel.name == name), None)


def _write(path: Path, log: str) -> None:
    try:
        write_whole(path, zlib.compress(log.encode()), 0o644)
    except OSError as error:
        raise ToolchainError(
            f"{path.parent}: expected to write there, found: {error.strerror}; free space"
        ) from error


def _delete_oldest(folder: Path) -> None:
    files = sorted(folder.glob("*.log"), key=lambda file: file.stat().st_mtime)
    for file in files[:-_KEPT]:
        file.unlink(missing_ok=True)
