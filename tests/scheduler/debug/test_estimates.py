"""Estimates of work and traffic."""

from __future__ import annotations

from tests.scheduler.support.programs import program_of, x


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
