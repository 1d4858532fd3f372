"""Figures of the rows of the device table: what is decided by cost follows from them."""

from collections.abc import Callable

from scheduler.device.spec import SPECS


def test_the_figures_are_the_kept_ones(golden: Callable[[str, str], None]) -> None:
    rows = (f"{name}\n  " + spec.key().replace("; ", "\n  ") for name, spec in SPECS.items())
    golden("device_rows", "\n".join(rows) + "\n")
