"""Tables of interned objects forget what nobody holds, and nothing else."""

from __future__ import annotations

import gc

from scheduler.ir.interned import Interned


class Thing:
    """Something that can be held weakly."""


def test_a_structure_is_one_object_while_somebody_holds_it() -> None:
    table: Interned[Thing] = Interned()
    assert table.get(("a", 1)) is None
    held = table["a", 1] = Thing()
    table["b", 2] = Thing()
    gc.collect()
    assert table.get(("a", 1)) is held
    assert table.get(("b", 2)) is None
    assert len(table) == 1
    del held
    gc.collect()
    assert len(table) == 0


def test_an_object_made_again_outlives_the_one_before() -> None:
    table: Interned[Thing] = Interned()
    first = table["a"] = Thing()
    second = table["a"] = Thing()
    del first
    gc.collect()
    assert table.get("a") is second
