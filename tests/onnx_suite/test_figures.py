"""The figures, the table and the sample themselves: what counts as what, and which are drawn."""

from dataclasses import replace

import pytest

from tests.onnx_suite.figures import LEAST_NODE_TESTS, Figures, Result
from tests.onnx_suite.out_of_scope import IN_SCOPE, Traits, exclusion_of, is_in_scope
from tests.onnx_suite.sample import sampled

NODE = Result("node", ("Abs",), in_scope=True, outcome="passed", name="test_abs")
ON_DEVICE = NODE.ran(folded=False)
FOLDED = NODE.ran(folded=True)
FAILED = replace(NODE, outcome="failed", message="ModelError: no")
REFUSED = replace(NODE, excluded="text")


def traits(*operators: str, types: str = "float") -> Traits:
    return Traits(frozenset(operators), frozenset(types.split()))


def test_what_is_folded_or_refused_counts_for_less_than_what_runs() -> None:
    enough = Figures((ON_DEVICE,) * LEAST_NODE_TESTS)
    assert enough.problems() == []
    assert Figures((FOLDED,) * LEAST_NODE_TESTS).problems() != []
    assert Figures((*enough.results[1:], FOLDED)).problems() != []
    models = (replace(ON_DEVICE, kind="light"),) * LEAST_NODE_TESTS
    assert Figures(models).problems() != []


def test_the_share_counts_failures_and_refusals_against_us() -> None:
    assert Figures((ON_DEVICE, FOLDED)).share == 1.0
    assert Figures((ON_DEVICE, FAILED)).share == 0.5
    assert Figures((ON_DEVICE, REFUSED)).share == 0.5
    known = replace(FAILED, outcome="skipped")
    assert Figures((ON_DEVICE, known)).share == 0.5
    elsewhere = replace(FAILED, in_scope=False)
    assert Figures((ON_DEVICE, elsewhere)).share == 1.0
    assert Figures(()).problems() != []


def test_a_listed_operator_with_text_is_out_of_scope_and_not_counted() -> None:
    text = traits("Where", types="string bool")
    found = exclusion_of("test_where_of_text", text)
    assert found is not None
    assert found.reason.startswith("text")
    assert not is_in_scope(text)
    assert exclusion_of("test_where", traits("Where")) is None
    assert is_in_scope(traits("Where", types="float16 bool"))


def test_one_unlisted_operator_takes_a_test_out_of_the_share() -> None:
    assert not is_in_scope(traits("Abs", "NonZero"))
    assert "NonZero" not in IN_SCOPE


# 30 of Conv, each with an operator of its own; 5 of Add, of which one is of Conv too.
CASES = [
    *((f"conv{i}", {"Conv", f"Own{i}"}) for i in range(30)),
    *((f"add{i}", {"Add"}) for i in range(4)),
    ("both", {"Add", "Conv"}),
    ("relu", {"Relu"}),
]
OPERATORS = {operator for _, operators in CASES for operator in operators}


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_has_some_of_every_operator_and_is_the_same_each_time(seed: int) -> None:
    drawn = sampled(CASES, 33, seed)
    assert drawn == sampled(CASES, 33, seed)
    assert len(set(drawn)) == len(drawn) == 33
    assert drawn == [name for name, _ in CASES if name in drawn]
    known = dict(CASES)
    assert set().union(*(known[name] for name in drawn)) == OPERATORS


def test_figures_of_a_sample_say_so_and_are_judged_by_shares() -> None:
    few = Figures((ON_DEVICE,) * 8 + (FOLDED,) * 2, "10 cases, seed 3")
    assert few.problems() == []
    assert next(few.lines()) == (
        "A SAMPLE, not the suite: 10 cases, seed 3; those of ONNX's own among them:"
    )
    assert "SAMPLE" not in "".join(replace(few, sample="").lines())
    assert len(replace(few, sample="").problems()) == 1
    assert len(replace(few, results=(*few.results, FOLDED)).problems()) == 1
    assert len(replace(few, results=(*few.results, FAILED)).problems()) == 1
