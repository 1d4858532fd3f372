"""What is read from a log: statistics, classes of slots, loops; of all kernels the last variant."""

import pytest

from tests.tools.adreno.logs import LOOP
from tools.adreno.statistics import condensed, kind_of, read_log


def test_the_variant_without_offsets_is_read_and_its_preamble_is_not() -> None:
    (kernel,) = read_log(LOOP)
    assert (kernel.name, kernel.instructions, kernel.nops) == ("gated_64", 30, 8)
    assert (kernel.full, kernel.half, kernel.code_bytes, kernel.spills) == (12, 2, 192, 1)
    assert kernel.inputs == (("WORKGROUP_ID", "r48.x"), ("LOCAL_INVOCATION_ID", "r0.x"))
    assert kernel.constants[:2] == (("c8.x", 64), ("c8.y", 3))
    assert [i.op for i in kernel.code[:2]] == ["mull.u", "add.u"]
    assert kernel.code[-1].op == "end"
    counted = {name: count for name, count in kernel.slots.plain().items() if count}
    assert counted == {
        "mac": 4,
        "integer": 6,
        "conversion": 1,
        "move": 1,
        "texture": 1,
        "store": 2,
        "flow": 4,
        "wait": 8,
    }
    assert kernel.slots.total == 27
    assert kernel.loops == ((3, 14),)
    assert kernel.hot_loop is not None
    assert (kernel.hot_loop.mac, kernel.hot_loop.wait, kernel.hot_loop.total) == (4, 5, 19)


def test_what_is_kept_of_a_log_reads_the_same() -> None:
    assert read_log(condensed(LOOP)) == read_log(LOOP)
    assert len(condensed(LOOP)) < len(LOOP)
    assert read_log("MESA: warning: nothing was compiled\n") == ()


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        *[("mad.f32", "mac"), ("mad.f16", "mac"), ("mad.s24", "integer"), ("madsh.m16", "integer")],
        *[("add.f", "alu"), ("cmps.f.lt", "alu"), ("cmps.s.lt", "integer"), ("sel.b32", "integer")],
        *[("cov.f16f32", "conversion"), ("mov.u32u32", "move"), ("rcp", "special")],
        *[("isam.s2en", "texture"), ("saml", "texture"), ("ldg.u32", "load"), ("ldib.b", "load")],
        *[("stg.f32", "store"), ("stib.b", "store"), ("stp.u32", "store"), ("ldp.u32", "load")],
        *[("ldl.u32", "local"), ("stl.f32", "local"), ("ldc.k", "load"), ("bar", "flow")],
        *[("brao", "flow"), ("predt", "flow"), ("nop", "wait"), ("shl.b", "integer")],
    ],
)
def test_each_instruction_has_a_class(op: str, kind: str) -> None:
    assert kind_of(op) == kind
