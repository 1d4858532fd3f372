"""Requirements R37 to R44: loop order, estimates, golden schedules, drawings."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from scheduler.compile import compile_plain
from scheduler.context import CompileContext
from scheduler.debug.kernel_table import KernelTable, kernel_tables
from scheduler.debug.trace import Recorder, observing
from scheduler.debug.viz import page, write_page
from scheduler.device.spec import SPECS
from scheduler.emit.artifact import emit
from scheduler.pipeline import passes, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, same, values_of, x
from tools.make_model import write_models

Golden = Callable[[str, str], None]

# --- R37: loop order --------------------------------------------------------------------------


@pytest.mark.opencl
def test_r37_the_axis_along_which_memory_is_contiguous_is_the_vector() -> None:
    """The output of a permutation is read along another axis than it is written."""
    made = program_of(x(6, 4, 64).permute(1, 0, 2) * 2.0 + x(4, 6, 64, name="b"))
    (launch,) = made.table.launches
    assert launch.lanes == 16
    assert "M_LOAD(float, 16," in made.source
    a, b = floats(6, 4, 64), floats(4, 6, 64, seed=1)
    same(values_of(made, x=a, b=b)[0], a.transpose(1, 0, 2) * 2 + b)


@pytest.mark.opencl
@pytest.mark.parametrize("axis", [0, 1])
def test_r37_a_reduction_reads_along_rows_whichever_axis_is_reduced(axis: int) -> None:
    made = program_of(x(64, 64).sum(axis))
    (launch,) = made.table.launches
    assert launch.lanes == 16
    assert "M_LOAD(float, 16," in made.source
    same(values_of(made, x=floats(64, 64))[0], floats(64, 64).sum(axis), 1e-4)


def test_r37_axes_of_size_one_do_not_count() -> None:
    plain = program_of(x(8, 32) * 2.0)
    assert program_of(x(8, 1, 32, 1) * 2.0).source == plain.source


# --- R38: estimates ---------------------------------------------------------------------------


def test_r38_work_and_traffic_are_known_without_running() -> None:
    made = program_of((x(16, 32) @ x(32, 48, name="w")).relu())
    (launch,) = made.table.launches
    assert launch.flops == 2 * 16 * 32 * 48 + 16 * 48
    assert launch.bytes_moved == 4 * (16 * 32 + 32 * 48 + 16 * 48)
    assert made.manifest["kernels"][0]["flops"] == launch.flops
    assert made.plan.bytes_moved == launch.bytes_moved


def test_r38_what_is_hoisted_or_shared_is_counted_once() -> None:
    """The row maximum is found once per row, not once per element."""
    made = program_of(x(16, 64) - x(16, 64, name="b").max(1, keepdim=True))
    assert made.table.totals.flops <= 2 * 16 * 64
    twice = program_of(x(64, name="c") * x(64, name="c2") + (x(64, name="d") + 1.0))
    assert twice.table.totals.flops == 3 * 64


def test_r38_a_buffer_that_is_read_twice_is_moved_once() -> None:
    a = x(32, 32)
    assert program_of(a.T + a).plan.bytes_moved == 2 * 32 * 32 * 4


# --- R39: storage layout is decided after indexing --------------------------------------------


@pytest.mark.opencl
def test_r39_how_a_value_is_laid_out_is_decided_once_its_readers_are_known() -> None:
    """Nothing in the graph says how an intermediate lies in memory; here its kernel turns it."""
    wide = (x(24, 40) @ x(40, 32, name="w")).contiguous()
    made = program_of(wide.T @ x(24, 16, name="v"), wide.sum(0))
    assert all(dtype == "float32" for dtype, _ in made.stored)
    a, w, v = floats(24, 40), floats(40, 32, seed=1), floats(24, 16, seed=2)
    got = values_of(made, x=a, w=w, v=v)
    same(got[0], (a @ w).T @ v, 1e-4)
    same(got[1], (a @ w).sum(0), 1e-4)


@pytest.mark.opencl
def test_r39_border_checks_that_cannot_fail_are_dropped() -> None:
    """Reading inside the unpadded part needs no check; reading over the border does."""
    padded = x(8, 64).pad([(1, 1), (0, 0)], 0.0)
    inside = program_of(padded[1:-1] * 2.0)
    assert inside.source == program_of(x(8, 64) * 2.0).source
    across = program_of(padded[:-2] + padded[2:])
    a = np.pad(floats(8, 64), ((1, 1), (0, 0)))
    same(values_of(across, x=floats(8, 64))[0], a[:-2] + a[2:])


# --- R43: golden schedules --------------------------------------------------------------------


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
def test_r43_schedules_of_the_example_models(
    models: list[Path], which: int, golden: Golden
) -> None:
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


def test_r43_a_changed_kernel_changes_its_line() -> None:
    (first,) = program_of(x(8) * 2.0).table.launches
    (second,) = program_of(x(8) * 3.0).table.launches
    assert first.kernel != second.kernel
    assert first.flops == second.flops


# --- R44: drawings ----------------------------------------------------------------------------


class _Page(HTMLParser):
    """What a page asks for from elsewhere, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.asked.append(value)


def test_r44_one_page_shows_passes_kernels_and_memory(tmp_path: Path) -> None:
    recorder = Recorder()
    y = (x(8, 16) @ Tensor.weight(floats(16, 8))).contiguous().softmax()
    with observing(recorder):
        plan = schedule({"y": y.node})
    made = emit({"run": plan}, name="two layers", kind="plain")
    text = page(made.manifest, recorder.traces)
    found = _Page(text)
    assert found.asked == []  # nothing is fetched from anywhere
    assert found.tags.count("svg") >= 2  # the kernels, and the memory over time
    for name, _ in passes(CompileContext()):
        assert name in text
    for kernel in made.manifest["kernels"]:
        assert kernel["name"] in text
    assert "__kernel" in text
    write_page(tmp_path / "page.html", made.manifest, recorder.traces)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text


def test_r44_viz_in_the_environment_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.html"
    monkeypatch.setenv("VIZ", str(target))
    program_of((x(8, 16) @ Tensor.weight(floats(16, 8))).relu())
    text = target.read_text(encoding="utf-8")
    assert "<svg" in text
    assert _Page(text).asked == []


# --- all of them ------------------------------------------------------------------------------


def test_every_requirement_has_a_test_named_after_it() -> None:
    texts = [p.read_text(encoding="utf-8") for p in Path(__file__).parent.glob("test_*.py")]
    named = {int(n) for text in texts for n in re.findall(r"^def test_r(\d\d)_", text, re.M)}
    assert set(range(1, 47)) - named == set()
