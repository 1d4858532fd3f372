"""Finds OpenCL drivers that are installed but not declared to the OpenCL loader.

The loader reads the files `/etc/OpenCL/vendors/*.icd`, each with the name of a driver's library. In
containers, a GPU's libraries are often mounted from the host without that file. Adreno's driver is
part of Android and never has one. `vendors_with` creates a directory of such files, to be named in
the variable OCL_ICD_VENDORS.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VENDORS: Final = Path("/etc/OpenCL/vendors")
VARIABLE: Final = "OCL_ICD_VENDORS"


@dataclass(frozen=True, slots=True)
class Driver:
    """An OpenCL driver."""

    name: str
    libraries: tuple[str, ...]  # names of its library, in order of preference
    nodes: tuple[str, ...]  # patterns of its device nodes


DRIVERS: Final = (
    Driver("NVIDIA", ("libnvidia-opencl.so.1",), ("/dev/nvidia[0-9]*",)),
    Driver(
        "Adreno",
        (
            "libOpenCL_adreno.so.1",
            "/vendor/lib64/libOpenCL.so",
            "/system/vendor/lib64/libOpenCL.so",
        ),
        ("/dev/kgsl-3d0",),
    ),
    Driver("Mesa", ("libRusticlOpenCL.so.1", "libRusticlOpenCL.so"), ("/dev/dri/renderD*",)),
    Driver("AMD", ("libamdocl64.so", "/opt/rocm/lib/libamdocl64.so"), ("/dev/kfd",)),
    Driver("Mali", ("libmali.so.1", "libmali.so"), ("/dev/mali0",)),
)


def declared(vendors: Path = VENDORS) -> dict[str, str]:
    """Return the libraries declared in a directory, by the name of the .icd file."""
    found = {}
    for path in sorted(vendors.glob("*.icd")):
        try:
            found[path.name] = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            found[path.name] = ""
    return found


def undeclared(
    vendors: Path = VENDORS, drivers: Sequence[Driver] = DRIVERS
) -> list[tuple[Driver, str]]:
    """Return the drivers with a loadable library that is not declared in the directory.

    Loading a library runs its initializers. A driver's can be slow or crash, so call this in a
    separate process.
    """
    named = {Path(library).name for library in declared(vendors).values()}
    found = []
    for driver in drivers:
        if any(Path(library).name in named for library in driver.libraries):
            continue
        library = next((one for one in driver.libraries if _loads(one)), None)
        if library is not None:
            found.append((driver, library))
    return found


def nodes_of(driver: Driver, root: Path = Path("/")) -> list[Path]:
    """Return the existing device nodes of a driver."""
    return [path for node in driver.nodes for path in sorted(root.glob(node.lstrip("/")))]


def vendors_with(
    directory: Path, vendors: Path = VENDORS, drivers: Sequence[Driver] = DRIVERS
) -> list[str]:
    """Create `directory` for OCL_ICD_VENDORS, which declares all drivers.

    Returns the names of the drivers that are not declared in `vendors`.

    Raises:
        OSError: The directory cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, library in declared(vendors).items():
        (directory / name).write_text(f"{library}\n", encoding="utf-8")
    found = undeclared(vendors, drivers)
    for driver, library in found:
        (directory / f"{driver.name.lower()}.icd").write_text(f"{library}\n", encoding="utf-8")
    return [driver.name for driver, _ in found]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
