"""Sensors as the kernel shows them, and figures of a process that has no descriptors left."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from modeld.process_figures import (
    MOST_TEMPERATURES,
    FigureReader,
    Figures,
    Temperature,
    find_sensors,
    read_temperatures,
)


def zone(root: Path, number: int, kind: str, text: str) -> Path:
    folder = root / "thermal" / f"thermal_zone{number}"
    folder.mkdir(parents=True)
    (folder / "type").write_text(kind + "\n", encoding="ascii")
    (folder / "temp").write_text(text + "\n", encoding="ascii")
    return folder


def monitor(root: Path, number: int, name: str, device: Path) -> Path:
    folder = root / "hwmon" / f"hwmon{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(name + "\n", encoding="ascii")
    (folder / "device").symlink_to(device)
    return folder


def test_zones_and_monitors_are_read_once(tmp_path: Path) -> None:
    acpi = zone(tmp_path, 0, "acpitz", "27800")
    zone(tmp_path, 10, "gpu", "-274000")  # a sensor that is off
    zone(tmp_path, 2, "cpu0", "54321")
    core = monitor(tmp_path, 1, "coretemp", tmp_path)
    (core / "temp1_input").write_text("61000\n", encoding="ascii")
    (core / "temp1_label").write_text("Package id 0\n", encoding="ascii")
    (core / "temp10_input").write_text("60000\n", encoding="ascii")
    (core / "temp2_input").write_text("no number\n", encoding="ascii")
    # The kernel shows the zone once more.
    again = monitor(tmp_path, 0, "acpitz", acpi)
    (again / "temp1_input").write_text("27800\n", encoding="ascii")
    assert read_temperatures(find_sensors(tmp_path)) == (
        Temperature("acpitz", 27.8),
        Temperature("cpu0", 54.321),
        Temperature("coretemp Package id 0", 61.0),
        Temperature("coretemp temp10", 60.0),
    )


def test_a_sensor_that_goes_away_is_left_out(tmp_path: Path) -> None:
    folder = zone(tmp_path, 0, "battery", "30000")
    sensors = find_sensors(tmp_path)
    (folder / "temp").unlink()
    assert len(sensors) == 1
    assert read_temperatures(sensors) == ()
    assert find_sensors(tmp_path / "nothing") == ()


def test_of_many_sensors_the_hottest_are_told(tmp_path: Path) -> None:
    for number in range(90):
        zone(tmp_path, number, f"zone-{number}", str(1000 * (20 + number * 7 % 90)))
    found = read_temperatures(find_sensors(tmp_path))
    assert len(found) == MOST_TEMPERATURES
    assert {one.degrees_c for one in found} == {float(20 + n) for n in range(74, 90)}
    numbers = [int(one.name.removeprefix("zone-")) for one in found]
    assert numbers == sorted(numbers)


def test_figures_are_read_without_a_free_descriptor() -> None:
    reader = FigureReader()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held: list[int] = []
    found = Figures()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            while True:
                held.append(os.dup(0))
        except OSError:
            found = reader.read()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in held:
            os.close(number)
        reader.close()
    assert found.memory_bytes > 1 << 20
    assert found.threads >= 1
