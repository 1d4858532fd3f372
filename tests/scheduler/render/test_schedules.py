"""Schedules of the example models as golden text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.compile import compile_plain
from scheduler.debug.kernel_table import KernelTable, kernel_tables
from scheduler.device.spec import SPECS
from tests.scheduler.support.programs import program_of, x
from tools.make_model import write_models

Golden = Callable[[str, str], None]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [path for path, _ in write_models(tmp_path_factory.mktemp("models"))]


def _line(table: KernelTable, i: int) -> str:
    launch = table.launches[i]
    first = launch.origin[0] if launch.origin else "-"
    more = f" +{len(launch.origin) - 1}" if len(launch.origin) > 1 else ""
    return (
        f"{i:3} {launch.kernel:24} items {launch.items:4} flops {launch.flops:9} "
        f"bytes {launch.bytes_moved:8}  {first}{more}"
    )


@pytest.mark.parametrize("which", [0, 1], ids=["vision", "policy"])
def test_schedules_of_the_example_models(models: list[Path], which: int, golden: Golden) -> None:
    """The kernel's name holds the hash of its text: a change of any kernel shows."""
    path = models[which]
    made = compile_plain(path, target=SPECS["cpu"])
    (table,) = kernel_tables(made.manifest)
    totals = table.totals
    head = (
        f"{totals.launches} launches of {totals.kernels} kernels, {totals.flops} flops, "
        f"{totals.bytes_moved} bytes moved, arena {totals.arena_peak} of {totals.arena_unplanned}"
    )
    rows = [_line(table, i) for i in range(len(table.launches))]
    golden(f"schedule_{path.stem}", "\n".join([head, *rows]) + "\n")


def test_a_changed_kernel_changes_its_line() -> None:
    (first,) = program_of(x(8) * 2.0).table.launches
    (second,) = program_of(x(8) * 3.0).table.launches
    assert first.kernel != second.kernel
    assert first.flops == second.flops
