"""The part of a checkup that looks at OpenCL: devices, drivers, the row taken and why."""

from __future__ import annotations

from pathlib import Path

from runtime.texts import size_text
from tools.checkup.findings import Section
from tools.service.opencl_drivers import DRIVERS, VENDORS, declared, nodes_of, undeclared


def devices(device: str | None, root: Path = Path("/")) -> Section:
    """Return the devices, the selected one, and the target row that it is compiled for."""
    from runtime.errors import NoDeviceError
    from runtime.opencl.device import choose_device, list_devices
    from scheduler.device.targets import spec_of_device

    section = Section("devices")
    vendors = root / VENDORS.relative_to("/")
    section.facts["vendor_files"] = declared(vendors)
    found = list_devices()
    section.facts["devices"] = [
        {
            "index": info.index,
            "kind": info.kind,
            "name": info.name,
            "platform": info.platform,
            "driver": info.driver,
            "units": info.compute_units,
            "clock_mhz": info.clock_mhz,
            "memory_bytes": info.global_mem_bytes,
            "local_bytes": info.local_mem_bytes,
            "group": info.max_work_group_size,
            "images": info.images,
            "fp16": info.half_arithmetic,
            "extensions": list(info.extensions),
            "problem": info.problem,
        }
        for info in found
    ]
    for info in found:
        if info.problem:
            section.look(f"{info.name} cannot be used: {info.problem}", "see docs/drivers.md")
    _hidden_drivers(section, vendors)
    try:
        taken = choose_device(device)
    except NoDeviceError as error:
        section.bad(str(error), "install a driver, or see modeld devices")
        return section
    info, row = taken.info, spec_of_device(taken)
    section.facts["taken"] = info.index
    section.facts["row"] = row.key()
    section.good(
        f"taken: {info.name} ({info.kind}, {info.platform}), {info.compute_units} units, "
        f"{size_text(info.global_mem_bytes)}; {_why_taken(device, info.kind)}"
    )
    section.good(f"compiled for row {row.target}: {_why_row(row.target, info.kind, info.simd)}")
    _unused_gpus(section, [one.kind for one in found], root)
    return section


def _why_taken(device: str | None, kind: str) -> str:
    if device is not None:
        return "--device asks for it"
    return "a GPU goes before a CPU" if kind == "gpu" else "no GPU has a driver here"


def _why_row(target: str, kind: str, simd: str) -> str:
    if target == "adreno":
        return "its name has Adreno, and it reads images"
    if target == "freedreno":
        return "its name is FD and three digits, as Mesa calls an Adreno"
    if kind == "gpu":
        return "a GPU of no row of its own; its limits are those that it reports"
    return f"its compiler generates code for {simd}"


def _hidden_drivers(section: Section, vendors: Path) -> None:
    for driver, library in undeclared(vendors):
        section.look(
            f"{driver.name}'s driver ({library}) is here, and no file of {VENDORS} names it",
            f"echo {library} | sudo tee {VENDORS}/{driver.name.lower()}.icd",
        )


def _unused_gpus(section: Section, kinds: list[str], root: Path) -> None:
    """Add GPUs that the system has and OpenCL has not."""
    if "gpu" in kinds:
        return
    for driver in DRIVERS:
        nodes = nodes_of(driver, root)
        if nodes:
            name = f"/{nodes[0].relative_to(root)}"
            section.look(
                f"{name} is a GPU's, and no OpenCL driver has it",
                f"install the OpenCL driver of {driver.name}, see docs/drivers.md",
            )
