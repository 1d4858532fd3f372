"""Finds OpenCL drivers whose library is installed but not declared to the loader.

The loader reads `/etc/OpenCL/vendors/*.icd`, each the name of a library. Containers often have a
GPU's libraries from the host and not that file; Adreno's driver comes with Android's files and
never has one. `vendors_with` makes a directory of such files, for OCL_ICD_VENDORS.
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
    """An OpenCL driver; the first library that loads counts, `nodes` are patterns of devices."""

    name: str
    libraries: tuple[str, ...]
    nodes: tuple[str, ...]


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
    """Return the libraries that the files of a directory name, by the file's name."""
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
    """Return the drivers whose library loads while no file of the directory names it.

    Loading a library runs its initialisers: a driver's may be slow or crash, so this belongs in a
    process of its own.
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
    """Return the device nodes that a driver may drive."""
    return [path for node in driver.nodes for path in sorted(root.glob(node.lstrip("/")))]


def vendors_with(
    directory: Path, vendors: Path = VENDORS, drivers: Sequence[Driver] = DRIVERS
) -> list[str]:
    """Make a directory that names all drivers, those that a file names already and the others.

    `directory` is made, for OCL_ICD_VENDORS. The result has the drivers that no file named.

    Raises:
        OSError: it cannot be written.
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
