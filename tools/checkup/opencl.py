"""Parts of a checkup that use OpenCL: the devices, an artifact, its self-test and its kernels.

Each part is a function that returns a `Section` of the report of ``modeld doctor``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.texts import short_origin, size_text
from tools.checkup.findings import Section
from tools.checkup.machine import (
    DRIVERS,
    Driver,
    judge_heat,
    nodes_of,
    read_sensors,
)

if TYPE_CHECKING:
    from tools.timing.roofline import KernelRow

VENDORS: Final = Path("/etc/OpenCL/vendors")
VENDORS_VARIABLE: Final = "OCL_ICD_VENDORS"
EXAMPLE: Final = "example.pkl"
EXAMPLE_INTERFACE: Final = "split-2025"
SHOWN: Final = 10
ITERATIONS: Final = 20
# Cameras deliver a frame every 50 ms. Runs close to that are occasionally late.
BUDGET_MS: Final = 50.0
NEAR_BUDGET_MS: Final = 40.0
# Share of the kernels' time, in kernels that reach less than half of the device's limits.
MOST_BELOW_HALF: Final = 0.5
# A loaded GPU whose clock is below this share of its maximum is being throttled.
SLOW_CLOCK: Final = 0.6


def devices(device: str | None, root: Path = Path("/")) -> Section:
    """Report the devices, the selected one, and the device row used to compile for it."""
    from runtime.errors import NoDeviceError
    from runtime.opencl.device import choose_device, list_devices
    from scheduler.device.targets import spec_of_device

    section = Section("devices")
    vendors = root / VENDORS.relative_to("/")
    section.facts["vendor_files"] = declared_libraries(vendors)
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
    _add_undeclared(section, vendors)
    try:
        taken = choose_device(device)
    except NoDeviceError as error:
        section.bad(str(error), "install a driver, or see modeld devices")
        return section
    info, row = taken.info, spec_of_device(taken)
    section.facts["taken"] = info.index
    section.facts["row"] = row.key()
    section.good(
        f"selected: {info.name} ({info.kind}, {info.platform}), {info.compute_units} units, "
        f"{size_text(info.global_mem_bytes)}; {_choice_reason(device, info.kind)}"
    )
    section.good(
        f"compiled for target {row.target}: {_target_reason(row.target, info.kind, info.simd)}"
    )
    _add_unused_gpus(section, [one.kind for one in found], root)
    return section


def _choice_reason(device: str | None, kind: str) -> str:
    if device is not None:
        return "chosen by --device"
    return "GPUs are preferred over CPUs" if kind == "gpu" else "no GPU has an OpenCL driver"


def _target_reason(target: str, kind: str, simd: str) -> str:
    if target == "adreno":
        return "its name contains Adreno, and it supports images"
    if target == "freedreno":
        return "its name is FD and three digits, as Mesa calls an Adreno"
    if kind == "gpu":
        return "a GPU without a target of its own; its own limits apply"
    return f"its compiler generates code for {simd}"


def _add_undeclared(section: Section, vendors: Path) -> None:
    for driver, library in undeclared_drivers(vendors):
        section.look(
            f"{driver.name}'s driver ({library}) is installed, but no file in {VENDORS} names it",
            f"echo {library} | sudo tee {VENDORS}/{driver.name.lower()}.icd",
        )


def _add_unused_gpus(section: Section, kinds: list[str], root: Path) -> None:
    """Report GPUs of the system that no OpenCL driver provides."""
    if "gpu" in kinds:
        return
    for driver in DRIVERS:
        nodes = nodes_of(driver, root)
        if nodes:
            name = f"/{nodes[0].relative_to(root)}"
            section.look(
                f"{name} belongs to a GPU that no OpenCL driver provides",
                f"install the OpenCL driver of {driver.name}, see docs/drivers.md",
            )


def artifact(given: Path | None, store: Path, device: str | None, place: Path) -> Section:
    """Choose the artifact for the next parts: `given`, the store's, or else a small example.

    `place` is a directory for the example.
    """
    from modeld.errors import ModeldError
    from modeld.store.model_store import ModelStore

    section = Section("artifact")
    if given is not None:
        return _taken(section, given, f"{given.name}, as given")
    if store.is_dir():
        try:
            found, problems = ModelStore(store).candidates("driving")
        except ModeldError as error:
            section.look(f"the store has no driving model: {error}", "see modeld models list")
        else:
            for problem in problems:
                section.bad(problem, "see modeld models list")
            if found:
                return _taken(section, found[0], f"{found[0].parent.name}, selected in the store")
    try:
        path = make_example(place, device)
    except ModuleNotFoundError as error:
        section.look(
            f"no artifact was given, and no example can be made without {error.name}",
            "name one: modeld doctor ARTIFACT.pkl, or pip install 'modeld[compile]'",
        )
        return section
    return _taken(section, path, f"a small example ({EXAMPLE_INTERFACE}, random weights)")


def _taken(section: Section, path: Path, text: str) -> Section:
    section.facts["path"] = str(path)
    section.good(text)
    return section


def make_example(place: Path, device: str | None) -> Path:
    """Compile a small driving model for the device and return the artifact's path.

    Raises:
        ModuleNotFoundError: the extra `compile` is not installed.
        NoDeviceError: no OpenCL device is usable.
    """
    from scheduler.check.vectors import with_self_test
    from scheduler.compile import compile_driving
    from scheduler.device.targets import AUTO, target_for
    from tools.example_models import write_interface

    models = [path for path, _ in write_interface(place, EXAMPLE_INTERFACE)]
    compiled = with_self_test(compile_driving(models, target=target_for(AUTO, device)))
    path = place / EXAMPLE
    compiled.write(path)
    return path


def self_test(path: Path, device: str | None) -> Section:
    """Check that the device computes the model's values."""
    from runtime import load_program
    from runtime.run.selftest import ADVICE, run_self_test

    section = Section("self-test")
    with load_program(path, device) as program:
        report = run_self_test(program)
    section.facts = {"device": report.device, "runs": report.runs, "ms": report.duration_ms}
    if not report.runs:
        section.look("the artifact carries no self-test", "compile it again without --no-selftest")
    elif report.passed:
        section.good(str(report))
        if report.worst is not None:
            worst = report.worst
            section.facts["worst"] = {"of": worst.name, "deviation": worst.deviation}
    else:
        section.bad(f"{report}: {report.worst}", ADVICE)
    return section


def kernels(path: Path, device: str | None, *, is_example: bool) -> Section:
    """Report the slowest kernels in relation to the device's limits, and the time of a run."""
    import runtime
    from tools.timing.program_inputs import make_inputs
    from tools.timing.roofline import (
        CeilingProbe,
        describe,
        make_kernels,
        make_rows,
        quietest,
        share_below,
        weight_bytes_of,
    )
    from tools.timing.run_times import measure

    section = Section("kernels")
    opened = runtime.choose_device(device)
    with runtime.load_program(path, opened) as program:
        entry = program.entries[0]
        inputs = make_inputs(program.entry_inputs(entry), 0)
        probe = CeilingProbe(opened)
        ceilings = probe.measure()
        profile = program.profile(inputs, entry, ITERATIONS)
        frame = measure(program, inputs, entry, ITERATIONS)
        under_load = read_sensors()
        ceilings = ceilings.best_of(probe.measure())
        rows = make_rows(quietest([profile]), weight_bytes_of(program.manifest, entry), ceilings)
        driving = program.manifest.kind == "driving"
    found = make_kernels(rows, ceilings)
    section.table = _table(found)
    kernels_ms = sum(row.ms for row in rows)
    section.facts = {
        "entry": entry,
        "run_ms": {name: frame[f"{name}_ms"] for name in ("median", "p99", "min")},
        "kernels_ms": kernels_ms,
        "launches": len(rows),
        "least_ms": sum(row.least_ms for row in rows),
        "below_half_share": share_below(rows),
        "ceilings": describe(ceilings),
        "under_load": under_load.plain(),
    }
    section.good(f"ceilings: {'; '.join(describe(ceilings))}")
    _judge_frame(section, frame["median_ms"], frame["p99_ms"], driving and not is_example)
    least = section.facts["least_ms"]
    text = f"kernels take {kernels_ms:.2f} ms, at the ceilings {least:.2f} ms"
    if share_below(rows) > MOST_BELOW_HALF and not is_example:
        section.look(
            f"{text}; {share_below(rows):.0%} of the time is below half of the ceilings",
            "tune the kernels on this device: modeld compile --tune 120",
        )
    else:
        section.good(text)
    for clock in under_load.gpu:
        if clock.share < SLOW_CLOCK:
            section.look(
                f"GPU {clock.name} under load: {clock.now:.0f} of {clock.most:.0f} MHz",
                "it is throttled: check its governor and its temperature",
            )
    judge_heat(section, under_load)
    return section


def _judge_frame(section: Section, median_ms: float, p99_ms: float, counts: bool) -> None:
    text = f"a run takes {median_ms:.2f} ms (median), {p99_ms:.2f} ms (p99)"
    if counts and median_ms >= BUDGET_MS:
        section.bad(
            f"{text}; a frame comes every {BUDGET_MS:.0f} ms",
            "compile with --precision fp16, choose a smaller model, or another --device",
        )
    elif counts and p99_ms >= NEAR_BUDGET_MS:
        section.look(
            f"{text}; a frame comes every {BUDGET_MS:.0f} ms",
            "see the settings of [realtime], and modeld bench ARTIFACT --paced",
        )
    else:
        section.good(text)


def _table(found: list[KernelRow]) -> list[tuple[object, ...]]:
    head = ("kernel", "launches", "ms", "expected ms", "reached", "bound", "origin")
    rows: list[tuple[object, ...]] = [head]
    for kernel in sorted(found, key=lambda k: -k.ms)[:SHOWN]:
        least = kernel.ms * kernel.of_roofline
        rows.append(
            (
                *(kernel.name, len(kernel.launches), round(kernel.ms, 4), round(least, 4)),
                *(f"{kernel.of_roofline:.0%}", kernel.bound, short_origin(kernel.origin)),
            )
        )
    return rows


# --- Drivers that are installed but not declared to the OpenCL loader --------------------------
#
# The loader reads `/etc/OpenCL/vendors/*.icd`, each of which names a driver's library. Containers
# often have the GPU libraries of the host but not that file, and Adreno's driver for Android never
# has one.


def declared_libraries(vendors: Path = VENDORS) -> dict[str, str]:
    """Return the library that each `.icd` file of a directory names, by file name."""
    found = {}
    for path in sorted(vendors.glob("*.icd")):
        try:
            found[path.name] = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            found[path.name] = ""
    return found


def undeclared_drivers(
    vendors: Path = VENDORS, drivers: Sequence[Driver] = DRIVERS
) -> list[tuple[Driver, str]]:
    """Return the drivers that no `.icd` file names although their library loads, with the library.

    Loading a library runs its initializers, which may be slow or crash. Call this only in a process
    that may be lost.
    """
    named = {Path(library).name for library in declared_libraries(vendors).values()}
    found = []
    for driver in drivers:
        if any(Path(library).name in named for library in driver.libraries):
            continue
        library = next((one for one in driver.libraries if _loads(one)), None)
        if library is not None:
            found.append((driver, library))
    return found


def write_vendors(
    directory: Path, vendors: Path = VENDORS, drivers: Sequence[Driver] = DRIVERS
) -> list[str]:
    """Write `.icd` files for all drivers, and return the names of those that `vendors` lacks.

    `directory` is created if it is missing; `OCL_ICD_VENDORS` can point to it. It gets a copy of
    each file in `vendors` and one file for each undeclared driver.

    Raises:
        OSError: a file cannot be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name, library in declared_libraries(vendors).items():
        (directory / name).write_text(f"{library}\n", encoding="utf-8")
    found = undeclared_drivers(vendors, drivers)
    for driver, library in found:
        (directory / f"{driver.name.lower()}.icd").write_text(f"{library}\n", encoding="utf-8")
    return [driver.name for driver, _ in found]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
