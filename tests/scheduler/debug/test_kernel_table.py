"""The kernel table: rows by hand, totals against the schedule, short names."""

from __future__ import annotations

import numpy as np

from scheduler.context import CompileContext
from scheduler.debug.kernel_table import KernelTable, Nest, kernel_tables, source_of
from scheduler.device.spec import SPECS
from scheduler.emit.artifact import emit
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor


def two_products() -> Tensor:
    """relu(x w1) w2: two kernels with 256 bytes between them."""
    rng = np.random.default_rng(3)
    w1, w2 = (Tensor.weight(rng.normal(size=s).astype(np.float32)) for s in ((8, 16), (16, 4)))
    return (Tensor.input("x", (4, 8)) @ w1).relu().contiguous() @ w2


def table_of(tensor: Tensor) -> KernelTable:
    plan = schedule({"y": tensor.node})
    return kernel_tables(emit({"run": plan}, name="t", kind="plain").manifest, {"run": plan})[0]


def test_table_of_a_program_checked_by_hand() -> None:
    table = table_of(two_products())
    first, second = table.launches
    # 4x16 results of 8 multiply-adds, and a comparison; then 4x4 of 16 multiply-adds.
    assert first.flops == 4 * 16 * 8 * 2 + 4 * 16
    assert second.flops == 4 * 4 * 16 * 2
    assert first.bytes_moved == 4 * (4 * 8 + 8 * 16 + 4 * 16)
    assert second.bytes_moved == 4 * (4 * 16 + 16 * 4 + 4 * 4)
    assert first.nests == (Nest((4, 16), ((8,),)),)
    assert second.nests == (Nest((4, 4), ((16,),)),)
    (between,) = table.arena
    assert (between.offset, between.size, between.first, between.last) == (0, 256, 0, 1)
    totals = table.totals
    assert (totals.kernels, totals.launches) == (2, 2)
    assert (totals.arena_peak, totals.arena_unplanned, totals.arena_live) == (256, 256, 256)
    assert table.dependencies() == [(0, 1, first.writes[0])]


def test_totals_agree_with_the_schedule() -> None:
    x = Tensor.input("x", (64, 64))
    for i in range(4):
        x = (x @ Tensor.weight(np.full((64, 64), i, np.float32))).softmax(1).contiguous() + x
    plan = schedule({"y": x.node})
    totals = kernel_tables(emit({"run": plan}, name="t", kind="plain").manifest)[0].totals
    assert totals.launches == len(plan.launches)
    assert totals.bytes_moved == plan.bytes_moved
    assert totals.flops == sum(k.flops for k in plan.lowered)
    assert totals.arena_peak == plan.arena().size
    assert totals.arena_live == plan.arena().live
    assert totals.arena_unplanned == plan.arena().unplanned


def test_a_state_is_read_before_it_is_written() -> None:
    queue = Tensor.state("q", (4, 2))
    pushed = queue.assign(Tensor.cat([queue[1:], Tensor.input("x", (1, 2))], 0))
    plan = schedule({"y": (pushed * 2.0).node}, [pushed.node])
    table = kernel_tables(emit({"run": plan}, name="t", kind="plain").manifest, {"run": plan})[0]
    old = [v for v in table.values if v.kind == "state" and v.producer is None]
    new = [v for v in table.values if v.kind == "state" and v.producer is not None]
    assert len(old) == len(new) == 1
    assert (old[0].first, old[0].buffer) == (0, new[0].buffer)


def test_launches_of_work_groups_name_their_kind_and_what_they_write() -> None:
    x = Tensor.input("x", (64, 40))
    outputs = {"y": (x * 2.0).sum(1).node, "z": x.sum(0).node}
    plan = schedule(outputs, context=CompileContext(SPECS["gpu"]))
    manifest = emit({"run": plan}, name="t", kind="plain").manifest
    (table,) = kernel_tables(manifest)
    assert {launch.kind for launch in table.launches} == {"contract"}
    written = [table.values[i].name for launch in table.launches for i in launch.writes]
    assert sorted(written) == ["y", "z"]


def test_source_of_a_kernel_ends_with_it() -> None:
    plan = schedule({"y": two_products().node})
    manifest = emit({"run": plan}, name="t", kind="plain").manifest
    for kernel in manifest["kernels"]:
        text = source_of(manifest, kernel["name"])
        assert text.startswith("__kernel")
        assert text.endswith("\n}")
        assert text.count("__kernel") == 1
    assert source_of(manifest, "nothing") == ""
