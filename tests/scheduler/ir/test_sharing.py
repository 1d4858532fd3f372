"""Graphs are immutable and shared: what is written twice is one node."""

from __future__ import annotations

import gc

from scheduler.ir import dtype as dt
from scheduler.ir import node as nodes
from scheduler.ir.node import const, toposort
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, x


def test_a_program_written_twice_is_one_graph() -> None:
    a, w = x(8, 16), Tensor.weight(floats(16, 4))

    def head() -> Tensor:
        return ((a @ w).relu() * 0.5).softmax()

    assert head().node is head().node
    once, twice = program_of(head().flip(0)), program_of(head().flip(0) + head())
    assert twice.launches <= once.launches + 1
    assert twice.source.count("exp(") <= 2 * once.source.count("exp(")


def test_what_differs_is_told_apart() -> None:
    a = x(3)
    assert (a + 0.0).node is not (a + -0.0).node
    assert const(1, dt.int32) is not const(True, dt.bool_)
    assert const(float("nan"), dt.float32) is const(float("nan"), dt.float32)
    assert a.node is not x(3).node  # two inputs, though they have one name
    assert a.sum(0).node is not a.max(0).node


def test_a_million_paths_are_as_many_nodes_as_there_are_operations() -> None:
    y = x(4)
    for _ in range(40):
        y = y + y
    assert len(toposort([y.node])) == 41


def test_nodes_nobody_holds_are_let_go() -> None:
    gc.collect()
    before = len(nodes._interned)
    y = x(4)
    for i in range(100):
        y = y * float(i + 2)
    assert len(nodes._interned) >= before + 200
    del y
    gc.collect()
    assert len(nodes._interned) <= before
