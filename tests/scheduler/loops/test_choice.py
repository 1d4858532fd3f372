"""Choices of loops: their text, and that none of them changes what a kernel computes."""

import numpy as np
import pytest
from hypothesis import given, settings

from runtime.opencl.device import choose_device
from scheduler.context import context_for
from scheduler.device.spec import SPECS
from scheduler.device.tuned_table import (
    HEURISTIC,
    MAX_BODY,
    MAX_TILE,
    Choice,
    Entry,
    TunedTable,
    parse_choice,
)
from scheduler.flags import Flags
from scheduler.loops.choose import body_key, tuned_schedule
from scheduler.loops.schedule import choose_schedule
from scheduler.loops.variations import form_of
from scheduler.tensor.tensor import Tensor
from scheduler.tuning.trial import Builders, make_trials
from scheduler.tuning.variants import Variant
from tests.scheduler.loops.jobs import choices, jobs_for, normal, weight
from tests.scheduler.support.programs import compute, program_of, values_of


@pytest.fixture(autouse=True)
def tables_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNED")


@given(choices())
def test_a_choice_comes_back_from_its_text(choice: Choice) -> None:
    assert parse_choice(str(choice)) == choice


def test_the_text_of_choices_in_tables_stays_what_it_is() -> None:
    choice = Choice(3, 8, 2, 32, 4, 8, 1, 2, 64, 2, 1)
    assert str(choice) == "v3 r8 u2 i32 b4 l8 o1 a2 g64 t2 m1"
    assert parse_choice("") == HEURISTIC
    assert str(HEURISTIC) == ""


@pytest.mark.parametrize(
    "text", ["v0", "q3", "v17", "v2 v3", "l5", "v16 r64", "v4 r16 u9", "-", "v2r3"]
)
def test_what_is_no_choice_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_choice(text)


def contraction() -> Tensor:
    x = Tensor.input("x", (37, 24))
    return (x @ weight(24, 80) + weight(80)).relu()


def test_candidates_begin_with_the_heuristic_and_are_bounded_different_and_in_one_order() -> None:
    (job,), (again,) = jobs_for({"y": contraction()}), jobs_for({"y": contraction()})
    tiles = job.tiles()
    assert tiles[0] == HEURISTIC
    assert 5 < len(tiles) <= 16
    assert len({form_of(job.loops(c)) for c in tiles}) == len(tiles)
    assert [str(c) for c in again.tiles()] == [str(c) for c in tiles]
    for best in tiles:
        around = job.variations(best)
        assert around[0] == HEURISTIC
        assert len(around) <= 32
    for choice in tiles:
        tile = max(1, choice.vectors) * max(1, choice.rows)
        assert tile <= MAX_TILE
        assert tile * max(1, choice.unroll) <= MAX_BODY


def test_equal_layers_are_one_job_and_other_sizes_another() -> None:
    x = Tensor.input("x", (32, 48))
    first, second = weight(48, 48), Tensor.weight(normal(48, 48) + 1)
    rows = (x @ first).relu()
    found = jobs_for({"y": (rows @ second).relu()})
    assert [job.times for job in found] == [2]
    other = jobs_for({"y": (Tensor.input("x", (33, 48)) @ first).relu()})
    assert other[0].key != found[0].key


def test_a_key_tells_lanes_and_vectors_apart() -> None:
    (job,) = jobs_for({"y": contraction()})
    body, loops = job.nest.body, job.nest.schedule
    keys = {body_key(body, loops.vector, n) for n in (4, 8, 16)} | {body_key(body, None, 16)}
    assert len(keys) == 4


def test_targets_have_tables_of_their_own() -> None:
    table = TunedTable(entries={"0" * 24: Entry("", HEURISTIC, 1, 1, 1)})
    assert context_for(tuned=table).tuned is table
    assert context_for().tuned.target == "cpu"
    assert not context_for(SPECS["gpu"]).tuned.entries
    assert not context_for(tuned=table, flags=Flags(tuned=False)).tuned.entries


def networks() -> dict[str, Tensor]:
    """One of each kind of loop nest, of sizes that blocks do not divide."""
    image = Tensor.input("image", (1, 13, 15, 24)).permute((0, 3, 1, 2))
    rows = Tensor.input("rows", (19, 45))
    return {
        "conv": image.conv2d(weight(40, 24, 3, 3), padding=1).relu(),
        "window": image.conv2d(weight(24, 1, 3, 3), groups=24, padding=1),
        "strided": image.conv2d(weight(48, 1, 3, 3), groups=24, stride=2),
        "product": rows @ weight(45, 52),
        "softmax": (rows @ weight(45, 33)).softmax(-1),
        "norm": rows.layernorm() @ weight(45, 16),
        "row": Tensor.input("one", (1, 70)) @ weight(70, 90),
        "narrow": rows @ weight(45, 10),
        "stream": rows * 2.0 + weight(19, 45),
        "mean": image.mean((2, 3)),
    }


@pytest.mark.opencl
@pytest.mark.parametrize(
    "names",
    [
        ("product", "softmax", "window"),
        pytest.param((*networks(),), marks=pytest.mark.slow),
    ],
    ids=["few", "all"],
)
def test_every_candidate_gives_what_the_heuristic_gives(names: tuple[str, ...]) -> None:
    """Of every kind of loop nest some of the tiles, with other loops around them, in one program.

    The trial that a search makes is what compares them.
    """
    made = networks()
    found = jobs_for({name: made[name] for name in names})
    assert len(found) >= len(names)
    rng = np.random.default_rng(5)
    variants = []
    for job in found:
        tiles = job.tiles()
        around = job.variations(tiles[int(rng.integers(len(tiles)))])
        some = [*tiles, *around]
        picked = [some[int(i)] for i in rng.choice(len(some), min(2, len(some)), replace=False)]
        drawn = Choice(int(rng.integers(1, 4)), int(rng.integers(1, 9)), outside=1, blocks=2)
        variants += [Variant(job, c) for c in dict.fromkeys([HEURISTIC, *picked, drawn])]
    with Builders(choose_device("cpu"), 0) as builders:
        (trial,) = make_trials(builders, [variants], float("inf"))
    assert trial is not None
    checked = zip(variants, trial.correct, strict=True)
    wrong = [(v.job.name, str(v.choice)) for v, right in checked if not right]
    trial.release()
    assert not wrong


@settings(max_examples=60)
@given(choices())
def test_any_choice_covers_every_element(choice: Choice) -> None:
    """What a choice gives is a schedule as any other: steps, chunks and blocks fit together."""
    for job in JOBS:
        loops = job.loops(choice)
        outer = loops.tiles[: len(loops.tiles) - loops.inner]
        steps = int(np.prod([t.outer for t in outer]))
        assert loops.steps == steps
        assert 1 <= loops.items <= steps
        for tile in loops.tiles:
            assert tile.unroll >= 1
            assert tile.outer * tile.block >= tile.atom.size
        if loops.blocked is not None:
            atom, block = loops.blocked
            (count,) = [t.outer for t in outer if t.atom is atom]
            assert count % block == 0
        across = set(loops.across.values())  # what lanes leave over there is a loop of its own
        for r, unroll in loops.reduce_unroll.items():
            assert r in across or r.size % unroll == 0


JOBS = jobs_for(networks())


@pytest.mark.opencl
def test_a_table_changes_the_loops_and_not_the_numbers() -> None:
    tensor, x = contraction(), normal(37, 24)
    (job,) = jobs_for({"y": tensor})
    entry = Entry(job.was, Choice(2, 3, items=2), 2.0, 1.0, 3)
    table = TunedTable(entries={job.key: entry})
    expected = compute(tensor, x=x)
    nest, heuristic = job.nest, job.nest.schedule
    loops = tuned_schedule(nest.body, heuristic.vector, heuristic.lanes, nest.spec, table)
    assert form_of(loops) == form_of(job.loops(entry.choice)) != job.was
    made = program_of(tensor, context=context_for(tuned=table))
    assert [form_of(n.schedule) for k in made.plan.lowered for n in k.nests] == [form_of(loops)]
    (found,) = values_of(made, x=x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_entry_against_other_loops_is_not_used() -> None:
    (job,) = jobs_for({"y": contraction()})
    heuristic = job.nest.schedule
    args = (job.nest.body, heuristic.vector, heuristic.lanes, job.nest.spec)
    choice = Choice(1, 2)
    for was, used in ((job.was, True), ("8/1x8 u[] i1 b0 x0 a0", False)):
        table = TunedTable(entries={job.key: Entry(was, choice, 2.0, 1.0, 3)})
        found = form_of(tuned_schedule(*args, table))
        assert (found == form_of(choose_schedule(*args, choice))) is used
