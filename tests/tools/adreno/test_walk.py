"""How often instructions are issued: trip counts and gates from the number of the work-item."""

import pytest

from tests.tools.adreno.logs import LOOP
from tools.adreno.statistics import read_code, read_log
from tools.adreno.walk import executed, executed_waves, slots_of_counts


def test_loops_and_gates_are_counted_exactly() -> None:
    (kernel,) = read_log(LOOP)
    inside = executed(kernel, items=64, group=64)
    assert inside.is_exact
    slots = slots_of_counts(kernel.code, inside.counts)
    assert (slots["mac"], slots["texture"], slots["store"]) == (12, 3, 3)
    # Items 128 and on have no row to read, items 125 and 126 one or two.
    waves = [[((group, 0, 0), (item, 0, 0))] for group, item in ((2, 0), (1, 61), (1, 62))]
    texels = [
        slots_of_counts(kernel.code, executed_waves(kernel, [wave]).counts)["texture"]
        for wave in waves
    ]
    assert texels == [0, 2, 1]
    # The work-items of a wave share their way: what one of them needs, all of them take.
    assert (
        slots_of_counts(kernel.code, executed_waves(kernel, [waves[1] + waves[2]]).counts)[
            "texture"
        ]
        == 2
    )


@pytest.mark.parametrize(
    ("old", "new", "texels"),
    [
        # A bound out of memory: the loop counts once. A test of a value: the read counts.
        ("cmps.s.ge p0.x, r1.y, c8.y", "cmps.s.ge p0.x, r1.y, r4.x", 1),
        ("cmps.s.ge p0.x, r1.z, 127", "cmps.f.ge p0.x, r4.x, (0.5)", 3),
    ],
)
def test_what_memory_decides_is_marked(old: str, new: str, texels: int) -> None:
    (kernel,) = read_log(LOOP.replace(old, new))
    way = executed(kernel, items=64, group=64)
    assert not way.is_exact
    assert slots_of_counts(kernel.code, way.counts)["texture"] == texels


@pytest.mark.parametrize(
    ("halves", "between", "is_exact"),
    [
        # hr0.y is half of r0.x: writing that one destroys it, writing hr0.x does not.
        (0, "mov.u32u32 r0.x, 0", False),
        (0, "mov.u16u16 hr0.x, 0", True),
        # Where halves are counted they have a file of their own.
        (1, "mov.u32u32 r0.x, 0", True),
    ],
)
def test_halves_are_parts_of_registers_or_none(halves: int, between: str, is_exact: bool) -> None:
    lines = [
        "cmps.s.lt hr0.y, r1.x, 5",
        between,
        "and.b p0.x, hr0.y, hr0.y",
        "br !p0.x, #l1",
        "isam (f32)(xyzw)r4.x, r2.x, s#0, t#0",
        "l1:",
        "end",
        "; CL: inputs: r1.x (SYSTEM_VALUE_LOCAL_INVOCATION_ID s)",
        f"; CL prog 0/0: {halves} half, 5 full",
    ]
    way = executed(read_code("f", lines), items=4, group=4)
    assert way.is_exact is is_exact
    assert way.counts[4] == 1
