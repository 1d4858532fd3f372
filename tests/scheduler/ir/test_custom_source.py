"""What the source of a custom kernel says of itself."""

from __future__ import annotations

from scheduler.ir.custom_source import read_source


def test_local_memory_that_a_source_spells_out_is_counted() -> None:
    text = """__local float4 a[2][16]; local int b[3];
    /* __local float c[100]; */ // double, barrier
    float d[7]; __local mine e[4]; barrier(CLK_LOCAL_MEM_FENCE);"""
    source = read_source("k", text)
    assert source.local_bytes == 2 * 16 * 16 + 3 * 4
    assert source.work_group
    assert not source.float64


def test_a_source_of_its_own_work_item_needs_no_work_group() -> None:
    source = read_source("k", "double2 locals = 1; out0[get_global_id(0)] = locals.x;")
    assert source.float64
    assert not source.work_group
    assert source.local_bytes == 0
