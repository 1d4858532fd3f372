"""Fetches and runs the Adreno compiler: Debian's Mesa for arm64, qemu, and a program that calls it.

All of it is in one folder of the cache directory. `make adreno-tools` creates it without root by
``python -m tools.adreno.toolchain``; ``--where`` prints the folder and fetches nothing. The version
of Mesa is pinned because the golden numbers depend on it. Everything else has the suite's current
version.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.files.cache import cache_dir
from tools.adreno.debian_packages import Progress, fetch_root, package_versions
from tools.errors import MissingPackageError, ToolchainError, ToolchainMissingError, ToolError
from tools.lib.terminal import counted

SUITE: Final = "trixie"
MESA: Final = "25.0.7-2+deb13u1"
_MESA_PACKAGES: Final = ("mesa-opencl-icd", "mesa-drm-shim")
ARM_PACKAGES: Final = (
    *(f"{name}={MESA}" for name in _MESA_PACKAGES),
    "ocl-icd-libopencl1",
    "opencl-c-headers",
)
# Numbers of Adreno GPUs; the golden numbers are those of the first.
GPUS: Final = (630, 660, 740)

_SOURCE: Final = Path(__file__).with_name("build_programs.c")
_TARGET: Final = "aarch64-linux-gnu.2.36"
_LIBRARIES: Final = "usr/lib/aarch64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """An installed compiler: arm64 packages, qemu, and the program of build_programs.c."""

    root: Path
    qemu: Path
    program: Path

    @property
    def identity(self) -> str:
        """The dependencies of a kernel's code besides its source."""
        return f"mesa {MESA}, {self.program.name}"

    @property
    def logs(self) -> Path:
        """Folder in which the code of kernels is cached."""
        return self.root.parent / "logs"

    def command(self, gpu: int) -> list[str]:
        """Return the command that builds the files whose names it reads from stdin."""
        libraries = self.root / _LIBRARIES
        variables = {
            "LD_LIBRARY_PATH": libraries,
            "LD_PRELOAD": libraries / "libfreedreno_noop_drm_shim.so",
            "FD_GPU_ID": gpu,
            "RUSTICL_ENABLE": "freedreno",
            "OCL_ICD_VENDORS": self.root / "etc/OpenCL/vendors/rusticl.icd",
            "MESA_SHADER_CACHE_DISABLE": "true",
            "IR3_SHADER_DEBUG": "cs",
        }
        given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
        return [str(self.qemu), "-L", str(self.root), *given, str(self.program)]

    def compile(self, source: str, *, options: str = "", gpu: int = GPUS[0]) -> str:
        """Return the log of building one program.

        Raises:
            ToolchainError: the compiler does not start, crashes, or rejects the source.
        """
        with tempfile.TemporaryDirectory(prefix="adreno-") as folder:
            file = Path(folder, "program.cl")
            file.write_text(source, encoding="utf-8")
            done = subprocess.run(  # noqa: S603 - our own program
                self.command(gpu), input=request(file, options), capture_output=True, check=False
            )
        log = done.stderr.decode(errors="replace")
        if f"@end {file} 0\n" not in log:
            raise ToolchainError(
                f"Adreno {gpu}: expected the program to be built, found: "
                f"{problem_in(log, done.returncode)}"
            )
        return log


def request(file: Path, options: str) -> bytes:
    """Return the line that requests the build of a file."""
    return f"{options}\t{file}\n".encode()


def problem_in(log: str, code: int) -> str:
    """Return the reason for a failed build in one line: compiler errors, else the exit status."""
    lines = (line for line in log.splitlines() if line.startswith("@error "))
    errors = [line.removeprefix("@error ") for line in lines]
    serious = [line for line in errors if "error" in line] or errors
    if serious:
        return "; ".join(serious[:3])
    if code < 0 or code > 128:
        return f"the compiler crashed (signal {-code if code < 0 else code - 128})"
    return f"the compiler ended with {code}"


def toolchain_dir() -> Path:
    """Return the folder of the compiler, whether it exists or not.

    It is `$MODELD_ADRENO_DIR`, else `adreno` in the cache directory.
    """
    explicit = os.environ.get("MODELD_ADRENO_DIR")
    return Path(explicit).absolute() if explicit else cache_dir() / "adreno"


def find_toolchain(directory: Path | None = None) -> Toolchain:
    """Return the installed compiler.

    Raises:
        ToolchainMissingError: it is missing, or has another version.
    """
    place = directory or toolchain_dir()
    found = Toolchain(place / "arm64", place / "amd64/usr/bin/qemu-aarch64", place / _name())
    versions = package_versions(found.root)
    if any(versions.get(name) != MESA for name in _MESA_PACKAGES) or not (
        found.qemu.is_file() and found.program.is_file()
    ):
        raise ToolchainMissingError(
            f"{place}: expected the compiler for Adreno (Mesa {MESA}), found none; "
            "fetch it with `make adreno-tools` (`python -m tools.adreno`)"
        )
    return found


def fetch_toolchain(progress: Progress, directory: Path | None = None) -> Toolchain:
    """Return the compiler, fetched or updated if necessary.

    `progress` is called while packages are unpacked.

    Raises:
        PackagesError: packages cannot be fetched on this machine.
        MissingPackageError: ziglang is not installed.
        ToolchainError: this machine cannot run it.
    """
    try:
        return find_toolchain(directory)
    except ToolchainMissingError:
        place = directory or toolchain_dir()
    if platform.machine() not in ("x86_64", "AMD64"):
        raise ToolchainError(
            f"the compiler for Adreno: expected an x86-64 machine to run qemu on, found "
            f"{platform.machine()}; golden figures are made and checked on x86-64 only"
        )
    zig = importlib.util.find_spec("ziglang")
    if zig is None:
        raise MissingPackageError(
            "ziglang is not installed, and builds a program for arm64: pip install 'modeld[linker]'"
        )
    root = fetch_root(
        ARM_PACKAGES,
        architecture="arm64",
        suite=SUITE,
        directory=place / "arm64",
        progress=progress,
    )
    fetch_root(
        ["qemu-user"],
        architecture="amd64",
        suite=SUITE,
        directory=place / "amd64",
        progress=progress,
    )
    try:
        _build_program(root, place / _name())
    except OSError as error:
        raise ToolchainError(
            f"{place}: expected to write a program there, found: {error.strerror or error}; "
            "free space"
        ) from error
    return find_toolchain(directory)


def _name() -> str:
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()
    return f"build_programs-{digest[:12]}"


def _build_program(root: Path, program: Path) -> None:
    """Cross-compile the program and put it in place atomically."""
    with tempfile.TemporaryDirectory(prefix=".building-", dir=program.parent) as folder:
        built = Path(folder, program.name)
        caches = dict.fromkeys(("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"), folder)
        command = [sys.executable, "-m", "ziglang", "cc", "-target", _TARGET, "-O1", "-Wall"]
        command += ["-I", str(root / "usr/include"), "-L", str(root / _LIBRARIES)]
        command += [str(_SOURCE), "-l:libOpenCL.so.1", "-o", str(built)]
        done = subprocess.run(  # noqa: S603 - zig, with files of ours
            command, capture_output=True, text=True, check=False, env={**os.environ, **caches}
        )
        if done.returncode != 0 or not built.is_file():
            problem = " ".join(done.stderr.split())[-300:]
            raise ToolchainError(
                f"{_SOURCE.name}: expected ziglang to build it for arm64, found: {problem}"
            )
        built.replace(program)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the compiler, or print its folder; return 0, or the exit code of a failure."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.adreno.toolchain", description="Fetch it where it is not there."
    )
    parser.add_argument("--where", action="store_true", help="print the folder, fetch nothing")
    args = parser.parse_args(arguments)
    if args.where:
        print(toolchain_dir())
        return 0
    try:
        toolchain = fetch_toolchain(counted)
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{toolchain.root.parent}: Mesa {MESA} for Adreno")
    return 0


if __name__ == "__main__":
    sys.exit(main())
