"""The kernel table: rows and estimates by hand, totals against the schedule, short names."""

from __future__ import annotations

from scheduler.context import CompileContext
from scheduler.debug.kernel_table import source_of
from scheduler.device.spec import SPECS
from scheduler.tensor.tensor import Tensor
from tests.scheduler.debug.examples import two_products
from tests.scheduler.support.programs import make_program, program_of, x


def test_work_and_traffic_are_known_without_running() -> None:
    made = program_of((x(16, 32) @ x(32, 48, name="w")).relu())
    (launch,) = made.table.launches
    assert launch.flops == 2 * 16 * 32 * 48 + 16 * 48
    assert launch.bytes_moved == 4 * (16 * 32 + 32 * 48 + 16 * 48)
    assert made.manifest["kernels"][0]["flops"] == launch.flops
    assert made.plan.bytes_moved == launch.bytes_moved


def test_what_is_hoisted_or_shared_is_counted_once() -> None:
    """The row maximum is found once per row, not once per element."""
    made = program_of(x(16, 64) - x(16, 64, name="b").max(1, keepdim=True))
    assert made.table.totals.flops <= 2 * 16 * 64
    twice = program_of(x(64, name="c") * x(64, name="c2") + (x(64, name="d") + 1.0))
    assert twice.table.totals.flops == 3 * 64


def test_a_buffer_that_is_read_twice_is_moved_once() -> None:
    a = x(32, 32)
    assert program_of(a.T + a).plan.bytes_moved == 2 * 32 * 32 * 4


def test_a_state_is_read_before_it_is_written() -> None:
    queue = Tensor.state("q", (4, 2))
    pushed = queue.assign(Tensor.cat([queue[1:], x(1, 2)], 0))
    table = program_of(pushed * 2.0, writes=[pushed]).table
    (old,) = [v for v in table.values if v.kind == "state" and v.producer is None]
    (new,) = [v for v in table.values if v.kind == "state" and v.producer is not None]
    assert (old.first, old.buffer) == (0, new.buffer)


def test_launches_of_work_groups_name_their_kind_and_what_they_write() -> None:
    a = x(64, 40)
    context = CompileContext(SPECS["gpu"])
    table = make_program({"y": (a * 2.0).sum(1), "z": a.sum(0)}, context=context).table
    assert {launch.kind for launch in table.launches} == {"contract"}
    written = [table.values[i].name for launch in table.launches for i in launch.writes]
    assert sorted(written) == ["y", "z"]


def test_source_of_a_kernel_ends_with_it() -> None:
    manifest = program_of(two_products()).manifest
    for kernel in manifest["kernels"]:
        text = source_of(manifest, kernel["name"])
        assert text.startswith("__kernel")
        assert text.endswith("\n}")
        assert text.count("__kernel") == 1
    assert source_of(manifest, "nothing") == ""
