"""Kernels of both sides beside each other: what is counted, and how it is shown."""

import csv
import importlib.util
import io
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.adreno_launches import Launch, totals
from benchmarks.adreno_peers import Row, _their_launch, kernel_table, table, their_launches
from tools.adreno.statistics import read_code

# As the compiler prints it; the loop runs as often as its bound says, at least once.
CODE = """\
mov.u32u32 r1.x, 0
l1:
isam (f32)(xyzw)r4.x, r2.x, s#0, t#0
(rpt1)mad.f32 r3.x, r4.x, r4.y, r3.x
(nop2) add.u r1.x, r1.x, 1
cmps.s.ge p0.x, r1.x, BOUND
br !p0.x, #l1
stg.f32 g[r5.x], r3.x, 1
end
; CL: inputs: r48.x (SYSTEM_VALUE_WORKGROUP_ID s) r0.x (SYSTEM_VALUE_LOCAL_INVOCATION_ID s)
; CL prog 0/0: 12 instr, 0 nops, 12 non-nops, 1 mov, 0 cov, 24 dwords
; CL prog 0/0: 0 last-baryf, 0 last-helper, 0 half, 24 full, 8 constlen
"""


def lines(bound: str) -> list[str]:
    return CODE.replace("BOUND", bound).splitlines()


def launch(bound: str, groups: tuple[int, int, int], group: tuple[int, int, int]) -> Launch:
    return Launch("f", read_code("f", lines(bound)), groups, group)


@pytest.mark.parametrize(
    ("bound", "groups", "group", "trips"),
    [
        ("4", (10, 1, 1), (1, 1, 1), 4),
        # The work-group's number along each axis: y is 0 to 3, and a wave is one row of x.
        ("r48.y", (64, 4, 1), (1, 1, 1), (1 + 1 + 2 + 3) / 4),
        ("r48.z", (1, 64, 3), (1, 1, 1), (1 + 1 + 2) / 3),
        # Of items that run together the one that takes most counts.
        ("r0.x", (3, 1, 1), (64, 1, 1), 63),
        ("r0.y", (2, 1, 1), (16, 4, 1), 3),
    ],
)
def test_slots_follow_work_items_along_three_axes(
    bound: str, groups: tuple[int, int, int], group: tuple[int, int, int], trips: float
) -> None:
    one = launch(bound, groups, group)
    assert one.slots["texture"] == pytest.approx(trips)
    assert (one.slots["mac"], one.slots["wait"]) == pytest.approx((2 * trips, 2 * trips))
    added = totals([one, one])
    assert (added.launches, added.few_waves, added.spills) == (2, 2, 0)
    assert added.column("texture") == pytest.approx(2 * trips * one.items / 1e6)
    assert added.column("floor") == pytest.approx(2 * one.floor_ms)


def test_a_work_groups_size_is_a_constant_of_tinygrads_kernels() -> None:
    plain = {"name": "r_8", "groups": [4, 1, 1], "group": [8, 2, 1], "code": 0}
    found = _their_launch(plain, ["\n".join(lines("c2.x"))])
    assert (found.items, found.slots["texture"]) == (64, 8)


def test_what_is_behind_is_bold_and_a_peer_that_fails_is_named() -> None:
    few, many = launch("2", (1, 1, 1), (64, 1, 1)), launch("9", (1, 1, 1), (64, 1, 1))
    model = Path("models/net.onnx")
    ahead = Row(model, "fp32", (few,), (many,))
    behind = Row(model, "fp16", (many,), (few, few))
    alone = Row(model, "fp16", (few,), (), "tinygrad does not compile it: why")
    shown = table([ahead, behind, alone])
    assert shown[2].startswith("| `models/net` fp32 | 1 / 1 | 0.000 / 0.000 |")
    assert "**" not in shown[2]
    assert "| 1 / 2 | **" in shown[3]
    assert "/ -" in shown[4]
    assert shown[-1] == "- `models/net` fp16: tinygrad does not compile it: why"


def test_kernels_of_both_sides_are_rows_of_a_table() -> None:
    few, many = launch("2", (1, 1, 1), (64, 1, 1)), launch("9", (2, 1, 1), (64, 1, 1))
    row = Row(Path("models/net.onnx"), "fp32", (few, few, many), (few,))
    found = list(csv.DictReader(io.StringIO(kernel_table([row]))))
    assert {one["model"] for one in found} == {"models/net"}
    keys = ("side", "launches", "work_items", "texture", "registers")
    assert [tuple(one[key] for key in keys) for one in found] == [
        ("ours", "1", "128", "9", "24"),
        ("ours", "2", "64", "2", "24"),
        ("tinygrad", "1", "64", "2", "24"),
    ]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("tinymesa") is None, reason="the extra `ir3` is not installed"
)
def test_tinygrad_compiles_a_network_and_its_code_is_kept(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    weights = numpy_helper.from_array(np.ones((8, 8, 3, 3), np.float32), "w")
    one = numpy_helper.from_array(np.array(1, np.float32), "one")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "one"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 16, 16]) for n in "xy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weights, one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    found = their_launches(model, "fp16", tmp_path)
    assert found
    assert totals(found).column("texture") > 0
    assert totals(found).column("mac") > 0
    (kept,) = tmp_path.glob("tinygrad-*.json")
    before = kept.stat().st_mtime_ns
    assert their_launches(model, "fp16", tmp_path)[0].name == found[0].name
    assert kept.stat().st_mtime_ns == before
