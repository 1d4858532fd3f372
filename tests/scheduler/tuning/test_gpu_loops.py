"""Loops of GPUs: what can be chosen, that no choice changes numbers, and that tables are taken.

There is a CPU behind the driver here, which runs the same kernels; nothing is said of speed.
"""

from pathlib import Path

import numpy as np
import pytest

from runtime.opencl.device import choose_device
from runtime.run.executor import load_program
from scheduler.context import CompileContext
from scheduler.device import tuned_table
from scheduler.device.spec import SPECS
from scheduler.device.tuned_table import HEURISTIC, Choice, Entry, TunedTable
from scheduler.loops.variations import form_of
from scheduler.schedule_cache import EntryGraph
from scheduler.tensor.tensor import Tensor, evaluate
from scheduler.tuning.launches import Launches
from scheduler.tuning.variants import Job, Variant, jobs_of
from tests.scheduler.loops.jobs import close, normal, weight
from tests.scheduler.support.programs import make_program
from tools import cli

ROWS = ("gpu", "adreno")


def networks() -> dict[str, Tensor]:
    """Loop nests of each kind; the product is large enough for tiles in local memory."""
    image = Tensor.input("image", (1, 12, 10, 24)).permute((0, 3, 1, 2))
    rows = Tensor.input("rows", (64, 48))
    return {
        "product": (rows @ Tensor.input("columns", (48, 64))).relu(),
        "linear": rows @ weight(48, 36) + weight(36),
        "conv": image.conv2d(weight(16, 24, 3, 3), padding=1).relu(),
        "softmax": rows.softmax(-1),
        "stream": rows * 2.0 + weight(64, 48),
    }


def job(name: str, row: str) -> Job:
    graph = EntryGraph({"y": networks()[name].node})
    return max(jobs_of([graph], CompileContext(SPECS[row])), key=lambda j: j.flops)


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        ("product", "gpu", "t64x64"),
        ("product", "gpu", "g256 t32x64"),
        ("product", "gpu", "64/4x4"),
        ("linear", "gpu", "36/1x1"),
        ("linear", "gpu", "36/3x4"),
        ("conv", "adreno", "10/5x1"),
        ("conv", "adreno", "16/4x4"),
        ("stream", "gpu", "3072/2x4"),
    ],
)
def test_tiles_vectors_and_groups_are_among_the_candidates(name: str, row: str, text: str) -> None:
    found = job(name, row)
    forms = [form_of(found.loops(c)) for c in found.tiles()]
    assert forms[0] == found.was
    assert len(set(forms)) == len(forms) <= 32
    assert any(text in form for form in forms)


def test_a_search_then_changes_groups_unrolling_and_where_weights_are() -> None:
    found = job("conv", "adreno")
    around = [form_of(found.loops(c)) for c in found.variations(Choice(rows=2))]
    for text in (" g16", " g256", " g1024", "u[1,1,4]", "u[1,1,8]", " m1"):
        assert any(text in form for form in around), text
    plain, image = found.render(Choice(weights=1)), found.render(HEURISTIC)
    assert [sum(p.image is not None for p in c.parameters) for c in (plain, image)] == [0, 1]


def test_an_image_that_would_become_a_buffer_is_no_candidate() -> None:
    """Lanes are four wherever images are: what else a choice says of them is left alone."""
    found = job("conv", "adreno")
    assert form_of(found.loops(Choice(lanes=1))) == found.was


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", networks())
def test_candidates_give_what_the_heuristic_gives(name: str, row: str) -> None:
    found, device = job(name, row), choose_device("cpu")
    tiles = found.tiles()
    rng = np.random.default_rng(len(name))
    around = found.variations(tiles[int(rng.integers(len(tiles)))])
    some = [*tiles[1:], *around]
    picked = [some[int(i)] for i in rng.choice(len(some), min(5, len(some)), replace=False)]
    picked += [Choice(3, 5, 2, group=24), Choice(weights=1), Choice(local=4, group=64)]
    variants = [Variant(found, c) for c in dict.fromkeys([HEURISTIC, *picked])]
    (trial,) = Launches(device, lambda: 0.0).prepare([variants], 1.0)
    assert trial is not None
    wrong = [str(v.choice) for v, ok in zip(trial.variants, trial.correct, strict=True) if not ok]
    built = len(trial.variants)
    timings = trial.run(range(built), 1)
    trial.release()
    assert not wrong
    assert built == len(variants)
    assert all(0 < t.minimum <= t.median for t in timings)


@pytest.mark.opencl
def test_a_variant_that_does_not_build_loses_itself_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = job("stream", "gpu")
    render = Job.render
    broken = Choice(vectors=2)
    monkeypatch.setattr(
        Job,
        "render",
        lambda self, c: replaced(render(self, c)) if c == broken else render(self, c),
    )
    variants = [Variant(found, c) for c in (HEURISTIC, broken, Choice(vectors=4))]
    prepare = Launches(choose_device("cpu"), lambda: 0.0).prepare
    (trial,) = prepare([variants], 1.0)
    assert trial is not None
    assert [v.choice for v in trial.variants] == [HEURISTIC, Choice(vectors=4)]
    trial.release()
    assert prepare([variants[1:], variants[:1]], 1.0)[0] is None
    assert prepare([variants], 0.0) == [None]


def replaced(code: object) -> object:
    """Return code that no compiler takes."""
    from dataclasses import replace

    return replace(code, body="{ no C }")  # type: ignore[type-var]


@pytest.mark.opencl
@pytest.mark.parametrize("row", ROWS)
def test_a_table_changes_the_loops_and_not_the_numbers(row: str) -> None:
    outputs = {name: networks()[name] for name in ("product", "conv")}
    graph = EntryGraph({n: t.node for n, t in outputs.items()})
    choice = Choice(2, 4, group=32, local=1)
    entries = {j.key: Entry(j.was, choice, 2.0, 1.0, 1) for j in jobs_of([graph], context(row))}
    made = make_program(outputs, context=context(row, TunedTable(entries=entries)))
    assert {k.code.group for k in made.plan.lowered} == {32}
    with made.load() as program:
        inputs = {t.name: normal(*t.shape) for t in program.inputs}
        found = program.run(inputs)
    for name, want in zip(outputs, evaluate(list(outputs.values()), inputs), strict=True):
        close(found[name], want, name)


def context(row: str, table: TunedTable = tuned_table.EMPTY) -> CompileContext:
    return CompileContext(SPECS[row], tuned=table)


@pytest.mark.opencl
@pytest.mark.slow
def test_what_a_search_found_serves_the_next_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command: --tune writes the device's table, and another compilation reads it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TUNED", raising=False)
    monkeypatch.setenv("SCHEDULE_CACHE", "0")
    w = normal(64, 64)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [96, 64]) for n in ("x", "y"))
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [numpy_helper.from_array(w, "w")])
    opsets = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    common = ["compile", "--plain", str(path), "--target", "gpu", "--device", "cpu"]
    assert cli.main([*common, "-o", str(tmp_path / "a.pkl"), "--tune", "6"]) == 0
    info = choose_device("cpu").info
    kept = tuned_table.own_table("gpu", info.name, info.driver)
    assert len(kept.entries) == 1
    # Whatever was faster here: a choice that shows is put in its place.
    (key, entry) = next(iter(kept.entries.items()))
    shown = Entry(entry.was, Choice(rows=2, group=32, local=1), 2.0, 1.0, 1)
    tuned_table.write_table(
        tuned_table.table_path("gpu", info.name, info.driver), kept.with_entries({key: shown})
    )
    assert cli.main([*common, "-o", str(tmp_path / "b.pkl"), "--verify"]) == 0
    with load_program(tmp_path / "b.pkl", "cpu") as program:
        assert [k.local_size[0] for k in program.manifest.kernels] == [32]
        given = normal(96, 64)
        close(program.run({"x": given})["y"], given @ w)
