"""The page: sound, self-contained, deterministic, small enough."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.context import CompileContext, Stages
from scheduler.debug.kernel_table import kernel_tables
from scheduler.debug.viz import LaunchTimes, page, write_page
from scheduler.debug.viz.drawings import (
    BOX_TEXT,
    BOX_WIDTH,
    assign_lanes,
    kernel_graph,
    memory_timeline,
    place_kernels,
)
from scheduler.debug.viz.passes import CHUNK, make_stages, pair_nodes, passes_section, rewired
from scheduler.emit.artifact import Emitted, emit
from scheduler.flags import Flags
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, const, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.pipeline import INPUT, passes, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.debug.examples import layers, two_products
from tests.scheduler.support.programs import program_of, x
from tests.tools.page import Page

ROOT = Path(__file__).parents[3]


def made(tensor: Tensor) -> Emitted:
    plan = schedule({"y": tensor.node}, context=CompileContext(stages=Stages()))
    return emit({"run": plan}, name="two <products>", kind="plain")


Check = Callable[[str], list[str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Return a function that checks that tags nest and nothing is loaded, and returns the ids."""
    path = tmp_path / "checked.html"

    def read(text: str) -> list[str]:
        path.write_text(text, encoding="utf-8")
        assert Page(path).links == []
        assert not re.search(r'\b(?:src|href|action|data)="', text)
        ids = re.findall(r'\bid="([^"]*)"', text)
        assert len(ids) == len(set(ids))
        return ids

    return read


def test_page_is_sound_html_that_loads_nothing(check: Check) -> None:
    emitted = made(two_products())
    text = page(emitted.manifest, emitted.plans)
    check(text)
    assert not re.search(r"https?://|@import|url\(", text)
    assert "default-src 'none'" in text
    assert "two &lt;products&gt;" in text
    again = made(two_products())
    assert page(again.manifest, again.plans) == text, "it is the same every time"


def test_page_shows_passes_kernels_memory_and_source() -> None:
    emitted = made(two_products())
    text = page(emitted.manifest, emitted.plans)
    for name in (INPUT, *(name for name, _ in passes(CompileContext()))):
        assert re.search(f'(<summary>|<div class="same">){name} <span>', text), name
    assert f"<th>{INPUT}</th>" in text
    assert "<th>split concat</th>" not in text, "a pass that changes nothing has no column"
    assert text.count('<g class="k ') == 2
    assert text.count('<path class="e"') == 3  # from the input, between the two, to the output
    assert text.count('<rect class="m"') == 1
    assert text.count("<svg") >= 2
    for kernel in emitted.manifest["kernels"]:
        assert f'<template id="source-{kernel["name"]}">' in text
    assert "__kernel" in text
    assert "for r0&lt;4, r1&lt;16:" in text
    assert "items 1 x" in text  # loops


def test_inputs_and_outputs_are_boxes_by_the_names_of_the_model() -> None:
    def boxes(text: str) -> list[tuple[str, int]]:
        found = re.findall(
            r'class="port".*?translate\(\d+ (\d+)\).*?class="name"[^>]*>([^<]*)<', text
        )
        return [(name, int(y)) for y, name in found]

    emitted = made(two_products())
    text = page(emitted.manifest)
    (given, above), (result, below) = boxes(text)
    assert (given, result) == ("x", "y")
    kernels = [int(y) for y in re.findall(r'class="k .*?translate\(\d+ (\d+)\)', text)]
    assert above < min(kernels) < max(kernels) < below
    assert "<title>x -&gt; 0</title>" in text
    assert "<title>1 -&gt; y</title>" in text
    assert "input · float32 4x8" in text
    # One that nothing reads is there, too, and so is one that is only passed through.
    emitted.manifest["buffers"].append({**emitted.manifest["buffers"][0], "name": "spare <b>"})
    entry = emitted.manifest["entries"]["run"]
    spare = len(emitted.manifest["buffers"]) - 1
    entry["inputs"], entry["outputs"] = [*entry["inputs"], spare], [*entry["outputs"], spare]
    text = page(emitted.manifest)
    assert [name for name, _ in boxes(text)] == ["x", "spare &lt;b&gt;", "y", "spare &lt;b&gt;"]
    assert text.count(" · not read") == text.count(" · passed through") == 1


def test_a_kernel_with_two_results_has_both_names_everywhere() -> None:
    manifest = chain_manifest(3)
    # The second kernel writes what is the second buffer, and the third.
    manifest["kernels"][1] |= {"args": [1, 2, 0], "code": {"writes": 2, "kind": "map"}}
    manifest["kernels"][1]["code"] |= {"start": 0, "end": 10}
    manifest["kernels"][2]["args"] = [0, 2]
    text = page(manifest)
    assert "t1.0 64, t1.1 64" in text
    row = re.findall(r'<tr data-k="1">.*?</tr>', text)
    assert "t1.0 float32 64<br>t1.1 float32 64" in row[-1]
    assert "256<br>512" in row[-1]
    assert "<title>1 -&gt; 2: t1.1, float32 64, 256 B</title>" in text


def test_measured_times_are_in_boxes_table_and_details(check: Check) -> None:
    emitted = made(two_products())
    times = {"run": LaunchTimes((0.75, 0.025), "a <device>")}
    text = page(emitted.manifest, times=times)
    check(text)
    # The page begins with what all launches take, and opens at the slowest.
    assert re.search(r'<p class="lead">2 launches take 0.7[78] ms on a &lt;device&gt;.</p>', text)
    assert '<section id="e0" data-first="0"' in text
    other = page(emitted.manifest, times={"run": LaunchTimes((0.025, 0.75), "a device")})
    assert '<section id="e0" data-first="1"' in other
    costliest = re.findall(r'<tr data-k="(\d+)">', other.partition("<svg")[0])
    assert costliest == ["1", "0"]
    for shown in ("0.75 ms · ", "25.0 us · ", "96.8% of all, on a &lt;device&gt;"):
        assert shown in text
    assert "time, measured on a &lt;device&gt;" in text
    # The bar of the second kernel is a third of a full one, which is a tenth of all.
    bars = [float(v) for v in re.findall(r'class="bar" y="\d+" width="([\d.]+)"', text)]
    assert bars == pytest.approx([BOX_WIDTH, BOX_WIDTH * 10 * 0.025 / 0.775], abs=0.1)
    assert ">time</th>" in text
    # What is too long for a box is cut there.
    lines = re.findall(r'class="soft" x="10" y="46">([^<]*)<', text)
    assert lines[0] == "0.75 ms · 1.088 kFLOP · float32 4x16"
    many = chain_manifest(2)
    many["buffers"][0]["shape"] = [1234567] * 8
    (line, _) = re.findall(r'class="soft" x="10" y="46">([^<]*)<', page(many))
    assert (len(line), line[-1]) == (BOX_TEXT, "…")
    assert "measured on" not in page(emitted.manifest)


def test_passes_that_change_nothing_are_one_folded_line() -> None:
    x = Tensor.input("x", (4,))
    a, b = x.exp().node, x.log().node
    names = {"input": a, "one": a, "two": a, "three": b, "four": b}
    text = passes_section(Stages([(name, (node,)) for name, node in names.items()]))
    assert "<summary>2 passes changed nothing</summary>" in text
    assert "<summary>1 pass changed nothing</summary>" in text
    folded = text.index("2 passes changed nothing")
    assert (
        folded < text.index(">one <span>") < text.index(">two <span>") < text.index("three <span>")
    )
    assert "open" not in re.findall(r"<details[^>]*>", text)


def test_several_entries_are_tabs_of_one_page(check: Check) -> None:
    plans = {
        name: schedule({"y": t.node}, context=CompileContext(stages=Stages()))
        for name, t in (("a", two_products()), ("b", x(4).exp()))
    }
    text = page(emit(plans, name="two", kind="plain").manifest, plans)
    assert {"e0", "e1", "e0-0", "e0-1", "e1-0"} <= set(check(text))
    assert text.count("<nav>") == 1
    assert re.search('<section id="e1" data-first="[0-9]+" hidden>', text)


def test_names_from_a_model_cannot_break_out_of_the_page(check: Check) -> None:
    evil = '</script><img src="http://x">\'"&'
    emitted = made(two_products())
    emitted.manifest["name"] = evil
    for kernel in emitted.manifest["kernels"]:
        kernel["origin"] = [evil]
    check(page(emitted.manifest, emitted.plans))


def test_a_page_is_written_whole_and_makes_no_directory_but_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted = made(two_products())
    manifest, plans = emitted.manifest, emitted.plans
    path, nowhere = tmp_path / "out.html", tmp_path / "new" / "out.html"
    write_page(path, manifest, plans)
    assert path.read_text(encoding="utf-8") == page(manifest, plans)
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(FileNotFoundError) as raised:
        write_page(nowhere, manifest, plans)
    assert raised.value.filename == str(nowhere)
    assert not nowhere.parent.exists()
    monkeypatch.chdir(tmp_path)
    ours = Flags(viz="1").viz_path("y")
    assert ours is not None
    write_page(ours, manifest, plans)
    assert (tmp_path / "build" / "viz-y.html").exists()


def test_viz_in_the_environment_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Check
) -> None:
    monkeypatch.setenv("VIZ", str(tmp_path / "out.html"))
    two_products().schedule()
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert "<svg" in text
    check(text)


def chain_manifest(count: int) -> dict[str, Any]:
    """Kernels in a row, each of which also reads the first one's result."""
    source = "__kernel void k(__global float* a, const __global float* b)\n{\n}\n"
    buffer = {"kind": "arena", "dtype": "float32", "shape": [64], "size": 256}
    buffers = [{**buffer, "name": f"b{i}", "offset": 256 * i} for i in range(count)]
    kernel = {"name": "k", "program": 0, "global": [1, 1, 1], "origin": ["n"]}
    cost = {"flops": 1, "bytes": 2}
    kernels = [{**kernel, **cost, "args": [i, max(0, i - 1)]} for i in range(count)]
    return {
        "name": "chain",
        "buffers": buffers,
        "programs": [{"source": source}],
        "kernels": kernels,
        "entries": {"run": {"inputs": [], "outputs": [], "launches": list(range(count))}},
    }


def test_many_kernels_stay_small_and_many_more_are_folded() -> None:
    text = page(chain_manifest(200))
    assert text.count('<g class="k ') == 200
    assert len(text) < 500_000
    assert "graph of 1,000 kernels</summary>" in page(chain_manifest(1000))


def test_ten_thousand_nodes_are_folded_and_laid_out_in_pieces(check: Check) -> None:
    node: Node = Tensor.input("x", (4,)).node
    one = make(
        Op.EXPAND, dt.float32, (make(Op.RESHAPE, dt.float32, (const(1, dt.float32),), (1,)),), (4,)
    )
    for _ in range(10_000):
        node = make(Op.ADD, dt.float32, (node, one))
    text = passes_section(Stages([(INPUT, (node,))]))
    check(text)
    pieces = re.findall(r'<pre class="ir"[^>]*>(.*?)</pre>', text, re.DOTALL)
    assert len(pieces) == -(-10_004 // CHUNK)
    assert max(piece.count("\n") for piece in pieces) < CHUNK
    assert text.index("<details>") < text.index("<pre")
    assert "open" not in re.findall(r"<details[^>]*>", text)[0]


def test_stages_tell_new_nodes_from_dropped_ones() -> None:
    x = Tensor.input("x", (4,))
    old, new = x.exp().node, x.log().node
    first, second = make_stages(Stages([(INPUT, (old,)), ("p", (new,))]))
    assert first.new == set()
    assert new in second.new
    assert x.node not in second.new
    assert [line.node for line in second.gone] == [n for n in (old,) if n not in (x.node,)]
    assert "<ins>" in passes_section(Stages([(INPUT, (old,)), ("p", (new,))]))


def test_a_node_that_is_left_out_is_all_that_a_stage_shows() -> None:
    x = Tensor.input("x", (4,))
    middle = (x + 1.0).exp()
    with_it, without = middle.abs().sqrt().log().sum(), middle.sqrt().log().sum()
    stages = Stages([(INPUT, (with_it.node,)), ("p", (without.node,))])
    first, second = make_stages(stages)
    # Everything above the abs is another node now; all but it stand for what they stood for.
    assert [line.node.op for line in second.gone] == [Op.ABS]
    assert second.new == set()
    assert [node.op for node in second.rewired] == [Op.SQRT]
    before, after = (
        {(line.node.op, line.text.partition(" ")[0]) for line in stage.lines}
        for stage in (first, second)
    )
    assert {op for op, _ in before - after} == {Op.ABS}  # all others kept their numbers
    assert after < before
    text = passes_section(stages)
    assert '<b class="down">-1</b> <b class="re">~1</b>' in text
    assert text.count('<ins class="re">') == 1


def test_nodes_of_a_pass_are_paired_once_and_with_their_like() -> None:
    x = Tensor.input("x", (4, 4))
    weights = [Tensor.weight(np.full((4, 4), i, np.float32)) for i in range(6)]
    y, z = x, x
    for i, weight in enumerate(weights):
        y = (y @ weight).relu()
        z = (z @ weight) if i == 2 else (z @ weight).relu()
    before, now = toposort([y.node]), toposort([z.node])
    pairs = pair_nodes(before, now, [(z.node, y.node)], Origins())
    assert len(set(pairs.values())) == len(pairs)
    assert all((a.op, a.shape, a.dtype) == (b.op, b.shape, b.dtype) for a, b in pairs.items())
    relu_nodes = len(before) - len(now)
    assert len(pairs) == len(before) - relu_nodes
    assert sum(rewired(node, pairs) for node in now) <= 2
    weights_of = [n for n in now if n.op is Op.BUFFER]
    assert all(pairs.get(n, n) is n for n in weights_of)  # other data is another weight


def test_kernels_stand_below_what_they_wait_for_and_do_not_overlap() -> None:
    placed = place_kernels(4, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
    assert placed.rows == [[0], [1, 2], [3]]
    assert len(set(placed.at.values())) == 4
    wide = place_kernels(6, [(i, 5) for i in range(5)], per_row=2)
    assert wide.rows == [[0, 1], [2, 3], [4], [5]]
    # Lanes are shared by spans that do not meet.
    assert assign_lanes([(0, 2), (1, 4), (3, 5), (5, 6)]) == [0, 1, 0, 1]


def test_rectangles_of_the_timeline_do_not_overlap() -> None:
    assert memory_timeline(program_of(x(4).exp()).table) == "", "there are no intermediates"
    text = memory_timeline(program_of(layers()).table)
    shapes = [
        [float(v) for v in re.findall(r' (?:x|y|width|height)="([-\d.]+)"', rect)]
        for rect in re.findall(r'<rect class="m"[^>]*>', text)
    ]
    assert len(shapes) >= 4
    for i, (x0, y0, w0, h0) in enumerate(shapes):
        for x1, y1, w1, h1 in shapes[:i]:
            apart = x0 >= x1 + w1 - 0.1 or x1 >= x0 + w0 - 0.1
            assert apart or y0 >= y1 + h1 - 0.2 or y1 >= y0 + h0 - 0.2 or (y0, h0) == (y1, h1)


def test_an_order_that_results_imply_is_left_out() -> None:
    manifest = chain_manifest(3)
    manifest["kernels"].append({**manifest["kernels"][2], "args": [0, 2]})  # over the first result
    manifest["entries"]["run"]["launches"] = [0, 1, 2, 3]
    edges = [(a, b) for a, b, _ in kernel_tables(manifest)[0].dependencies()]
    assert edges == [(0, 1), (1, 2), (2, 3)]


def test_an_edge_past_a_row_goes_around_the_boxes() -> None:
    manifest = chain_manifest(3)
    manifest["kernels"][2]["args"] = [2, 0]
    manifest["kernels"][1]["args"] = [1, 0]
    manifest["kernels"].append({**manifest["kernels"][2], "args": [2, 1]})
    manifest["entries"]["run"]["launches"] = [0, 1, 2, 3]
    table = kernel_tables(manifest)[0]
    assert table.dependencies() == [(0, 1, 1), (0, 2, 1), (1, 3, 2), (2, 3, None)]
    assert 'class="e order"' in kernel_graph(table, "e0")
