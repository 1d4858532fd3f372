"""A few programs of each kind; and that the fuzzer finds what is wrong, and says which it was."""

import json
from pathlib import Path

import numpy as np
import pytest

from scheduler.ir import dtype as dt
from scheduler.tensor.custom_kernel import alternatives
from scheduler.tensor.tensor import Tensor
from tests.fuzz import choices, graphs, metamorphic, narrow, onnx_kind, strict
from tests.fuzz.__main__ import main, others, parse_name
from tests.fuzz.batch import run_batch
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.compare import Counts, difference
from tests.fuzz.eager import interpreted, run_program
from tests.fuzz.hunt import Plan, Totals, batches
from tests.fuzz.judge import Judge
from tests.fuzz.kinds import KINDS
from tests.fuzz.rounding import Known
from tests.support.selection import quick_cases

MAKERS = {
    "graphs": graphs.make,
    "onnx": onnx_kind.make,
    "state": graphs.with_states,
    "choices": choices.make,
    "metamorphic": metamorphic.make,
    "strict": strict.make,
    "bytes": narrow.of_bytes,
    "halves": narrow.of_halves,
}


PROGRAMS = [
    # kind, row, how many quick ones, how many in all
    ("graphs", "cpu-avx2", 12, 64),
    ("graphs", "cpu-sse", 0, 48),
    ("graphs", "cpu", 0, 48),
    ("graphs", "gpu", 4, 4),
    ("onnx", "cpu", 6, 24),
    ("state", "cpu", 4, 24),
    ("choices", "cpu", 2, 4),
    ("metamorphic", "cpu-avx2", 1, 12),
    ("strict", "cpu", 2, 24),
    ("bytes", "cpu", 4, 24),
    ("halves", "cpu", 5, 25),
]
QUICK = [(kind, row, 0, quick) for kind, row, quick, _ in PROGRAMS if quick]
SLOW = [(kind, row, quick, every) for kind, row, quick, every in PROGRAMS if quick < every]


@pytest.mark.opencl
@pytest.mark.parametrize(
    ("kind", "row", "first", "end"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_few_programs_of_each_kind_are_right(kind: str, row: str, first: int, end: int) -> None:
    outcomes = run_batch([MAKERS[kind](Name(kind, row, seed)) for seed in range(first, end)])
    assert [f"{o.name}: {o.problem}\n{o.text}" for o in outcomes if o.problem] == []
    assert sum(o.counts.exact + o.counts.bounded for o in outcomes) > 100


@pytest.mark.parametrize("block", quick_cases(range(12), 0))
def test_handles_mean_what_they_were_given(block: int) -> None:
    with interpreted():
        for seed in range(block * 10, block * 10 + 10):
            run_program(np.random.default_rng(seed))


@pytest.mark.opencl
@pytest.mark.parametrize("seed", quick_cases(range(3), 0))
def test_eager_programs_run_on_the_device(seed: int) -> None:
    run_program(np.random.default_rng([seed, 1]), steps=25)


def test_a_program_is_found_again_by_its_name() -> None:
    for kind, make in MAKERS.items():
        (name,) = parse_name(f"{kind}/cpu:7")
        assert make(name).text() == make(Name(kind, "cpu", 7)).text()
    assert len(parse_name("graphs:7")) == len(set(KINDS["graphs"].rows))
    assert parse_name("state/gpu:7~3") == [Name("state", "gpu", 7, 3)]
    with pytest.raises(ValueError, match="KIND/ROW:SEED"):
        parse_name("graph:7")


def test_a_plan_has_every_kind_on_every_target() -> None:
    names = [n for batch in batches(Plan(tuple(KINDS), 20_000)) for n in batch]
    assert 20_000 <= len(names) < 20_000 + len(KINDS)
    for kind, one in KINDS.items():
        assert {n.row for n in names if n.kind == kind} == set(one.rows)
    assert len(set(names)) == len(names)


@pytest.mark.opencl
def test_a_wrong_result_is_told_with_its_program() -> None:
    x = Tensor.input("x", (3,))
    name = Name("graphs", "cpu", 0)
    wrong = Variant("wrong", {"y": x + 1.5})
    case = Case(name, {"y": x + 1.0}, [wrong], [{"x": np.array([1, 2, 3], np.float32)}])
    refused = Case(name, {"y": x}, [Variant("", {"y": _broken(x)})], case.runs)
    first, second = run_batch([case, refused])
    assert first.problem.startswith("wrong run 0, output y: 3 of 3 elements; first at [0]")
    assert "add" in first.text
    assert "x = float32[3] [1. 2. 3.]" in first.text
    assert "Error" in second.problem


def _broken(x: Tensor) -> Tensor:
    """Return a value of a type that its operation does not have."""
    return Tensor.of(x.bitcast(dt.int32).node).unary(_SQRT)


_SQRT = Tensor.input("x", (1,)).sqrt().node.op


@pytest.mark.slow
@pytest.mark.opencl
def test_a_process_that_dies_is_the_fault_of_one_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    asked = ["state", "--programs", "2", "--jobs", "1", "--report", str(report)]
    assert main([*asked, "--plant", "crash:1"]) == 1
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["programs"] == 2
    (wrong,) = found["wrong"]
    assert wrong["name"].startswith("state/cpu:1")
    assert "ended with -6" in wrong["problem"]
    assert "WRONG state/cpu:1" in capsys.readouterr().out


@pytest.mark.opencl
def test_other_bytes_are_told_of_variants_and_of_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = Tensor.input("x", (40,))
    name = Name("strict", "cpu", 0)
    given = [{"x": np.linspace(0, 1, 40, dtype=np.float32)}]
    ways = [Variant("sum", {"y": x.sum()}), Variant("backwards", {"y": x.flip(0).sum()})]
    (outcome,) = run_batch([Case(name, {"y": x.sum()}, ways, given, equal=True)])
    assert outcome.problem == "backwards gives other bytes than sum"
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"digests": {"a": "1", "b": "2", "c": "3"}}), encoding="utf-8")
    assert others(Totals(digests={"a": "1", "b": "9", "d": "4"}), report) == ["b"]
    assert "1 of 2 programs gave the same bytes" in capsys.readouterr().out


def test_errors_grow_as_rounding_does_and_decisions_are_exact_or_unknown() -> None:
    x = Tensor.input("x", (4,))
    judge = Judge({"x": np.array([0.5, 2.5, 41.0, 1e-3], np.float32)})
    assert judge.of((x * 2.0 + 1.0).node).error.tolist()[:3] == [0, 0, 0]
    assert judge.of(alternatives(x * 2.0, x + x).node).value.tolist()[:3] == [1, 5, 82]
    assert judge.of(x.sum().node).error > 0  # one of them is no multiple of a small power of two
    assert judge.of(x[:3].sum().node).error == 0
    assert judge.of(x.round().node).value.tolist() == [0, 2, 41, 0]
    assert judge.of(x.round().node).error.tolist() == [0, 0, 0, 0]
    near = x.exp().log()  # within rounding of what it was: no one can say which side
    assert np.isinf(judge.of(near.eq(x).node).error).all()
    assert judge.of((near < x + 1.0).node).error.tolist()[0] == 0
    steps = near.round().cast(dt.int8)  # both 0.5 and 2.5 may go up
    assert judge.of(steps.node).error.tolist() == [1, 1, 0, 0]
    wide = steps.cast(dt.int32) - 3
    assert judge.of((wide * wide).sum().node).error == (3 * 2 + 1) + (1 * 2 + 1)
    for unknown in (wide < -1, steps * 100, Tensor(np.arange(50)).gather(wide, 0), steps ^ 1):
        assert np.isinf(judge.of(unknown.node).error[1])


def test_only_what_may_come_of_a_program_is_accepted() -> None:
    want = Known(np.array([1, np.nan, 3, 4], np.float32), np.array([0, 0, 0.5, np.inf]))
    counts = Counts()
    right = np.array([1, np.nan, 3.25, -9], np.float32)
    assert difference(right, want, counts) == ""
    assert (counts.exact, counts.bounded, counts.undecided) == (2, 1, 1)
    for at, value in ((0, np.nextafter(np.float32(1), 2)), (1, 0), (2, 3.75)):
        wrong = right.copy()
        wrong[at] = value
        assert f"first at [{at}]" in difference(wrong, want, counts)
    place = Known(np.array([3], np.int32), np.array([np.inf]))
    assert difference(np.array([7], np.int32), place, counts, (0, 7)) == ""
    assert "allowed 0 to 7" in difference(np.array([8], np.int32), place, counts, (0, 7))
