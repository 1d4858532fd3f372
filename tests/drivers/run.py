"""Run the suite in this directory under each driver that is installed: `make test-drivers`.

    python tests/drivers/run.py [--all] [driver...] [-- options of pytest]

A process loads its drivers when it starts, so each driver has one of its own. Of a driver that is
not installed one line says which package has it; with `--all` that is an error.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
VENDORS = Path("/etc/OpenCL/vendors")


@dataclass(frozen=True)
class Driver:
    """A driver and how a process gets it.

    Attributes:
        name: of the driver.
        package: of Debian and its derivatives.
        files: where it may be: a file for the OpenCL loader, or the library such a file names.
        environment: what it needs beside `OCL_ICD_VENDORS`.
    """

    name: str
    package: str
    files: tuple[Path, ...]
    environment: dict[str, str] = field(default_factory=dict)

    def find(self) -> Path | None:
        """Return the first of its files that is there."""
        return next((file for file in self.files if file.exists()), None)


DRIVERS = (
    Driver("pocl", "pocl-opencl-icd", (VENDORS / "pocl.icd",)),
    Driver(
        "rusticl", "mesa-opencl-icd", (VENDORS / "rusticl.icd",), {"RUSTICL_ENABLE": "llvmpipe"}
    ),
    Driver(
        "oclgrind",
        "oclgrind",
        tuple(Path(f"/usr/{lib}/oclgrind/liboclgrind-rt-icd.so") for lib in ("lib", "lib64")),
        {
            "OCLGRIND_DATA_RACES": "1",
            "OCLGRIND_UNINITIALIZED": "1",
            # Optimised code has an instruction that its check for values that nobody wrote does
            # not know; see docs/drivers.md.
            "OCLGRIND_BUILD_OPTIONS": "-cl-opt-disable",
        },
    ),
)


def environment_of(driver: Driver, file: Path, scratch: Path) -> dict[str, str]:
    icd = file
    if file.suffix == ".so":
        icd = scratch / f"{driver.name}.icd"
        icd.write_text(f"{file}\n", encoding="utf-8")
    caches = {name: str(scratch / "cache") for name in ("MODELD_CACHE_DIR", "XDG_CACHE_HOME")}
    own = {"OCL_ICD_VENDORS": str(icd), "OCLGRIND_LOG": str(scratch / "reports.txt")}
    inherited = {k: v for k, v in os.environ.items() if k != "POCL_CACHE_DIR"}
    return {**inherited, **driver.environment, **own, **caches, "TESTED_DRIVER": driver.name}


def run(driver: Driver, options: Sequence[str]) -> int | None:
    """Run the suite; return pytest's exit code, None where the driver is not installed."""
    file = driver.find()
    if file is None:
        print(f"{driver.name}: not installed; it is in the package {driver.package}", flush=True)
        return None
    print(f"{driver.name}: {file}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="modeld-drivers-") as scratch:
        command = [sys.executable, "-m", "pytest", str(HERE), "-q", *options]
        environment = environment_of(driver, file, Path(scratch))
        code = subprocess.run(command, env=environment, check=False).returncode
    print(f"{driver.name}: {time.monotonic() - started:.0f} s", flush=True)
    return code


def main(arguments: Sequence[str]) -> int:
    """Return the worst exit code; 2 for wrong arguments, or a missing driver under `--all`."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    asked = [a for a in arguments[:at] if a != "--all"]
    known = {driver.name: driver for driver in DRIVERS}
    unknown = [name for name in asked if name not in known]
    if unknown:
        print(f"no driver {unknown[0]!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    codes = [run(known[name], arguments[at + 1 :]) for name in asked or known]
    missing = 2 if "--all" in arguments and None in codes else 0
    return max([missing, *(code for code in codes if code is not None)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
