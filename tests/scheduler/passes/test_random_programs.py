"""Random programs keep their values, whatever pass runs on them, and all passes together."""

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import strategies as st

from scheduler.ir.node import Node
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.one_hot import one_hot
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import push_slices
from scheduler.passes.split import split_concat_sums
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.pipeline import run_passes
from tests.fuzz.graphs import programs
from tests.fuzz.networks import stack
from tests.fuzz.program import Program
from tests.scheduler.passes.pass_check import EXAMPLES, Pass, batched, check, for_all, sliced

PASSES: tuple[Pass, ...] = (
    *(batched, canonicalize, fold_constants, one_hot, push_gather, push_slices),
    *(split_concat_sums, strength_reduce),
)
SEEDS = st.integers(0, 2**32 - 1)


@EXAMPLES
@pytest.mark.parametrize("apply", PASSES, ids=lambda apply: apply.__name__)
def test_a_pass_keeps_the_values_of_programs(apply: Pass, examples: int) -> None:
    """Of their outputs, cut at random, or of everything that is computed."""

    def keeps(drawn: tuple[Program, int]) -> None:
        program, seed = drawn
        roots = sliced(program, seed) if seed % 2 else [t.node for t in program.tensors]
        check(apply, roots, program.inputs)

    for_all(examples, st.tuples(programs(14), SEEDS), keeps)


@EXAMPLES
def test_all_passes_together_keep_values(examples: int) -> None:
    def apply(roots: Sequence[Node]) -> dict[Node, Node]:
        return dict(zip(roots, run_passes(roots), strict=True))

    def keeps(program: Program) -> None:
        check(apply, [t.node for t in program.outputs.values()], program.inputs)

    for_all(examples, programs(states=False), keeps)


@EXAMPLES
def test_networks_that_are_cut_keep_their_values(examples: int) -> None:
    def keeps(seed: int) -> None:
        outputs, inputs = stack(seed)
        choice = Random(seed)  # noqa: S311  # a test program, not a secret
        roots = [t[..., -choice.randint(1, t.shape[-1]) :].node for t in outputs.values()]
        check(push_slices, roots, inputs)

    for_all(examples, SEEDS, keeps)
