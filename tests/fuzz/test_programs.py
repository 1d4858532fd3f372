"""What random programs reach, and what holds of every one of them besides its values."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from scheduler.context import CompileContext, Stages
from scheduler.debug.pretty import pretty
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import ELEMENTWISE, MOVEMENT, REDUCERS, Op
from scheduler.pipeline import passes, run_passes, schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.fuzz.apart import apart, with_copies
from tests.fuzz.case import Name
from tests.fuzz.compare import Counts, difference
from tests.fuzz.graphs import LENGTHS, build, network, programs, single_steps, situations
from tests.fuzz.judge import Judge
from tests.fuzz.motifs import SITUATIONS
from tests.fuzz.onnx_kind import imported_case
from tests.fuzz.onnx_networks import Network
from tests.fuzz.onnx_nodes import GENERATORS, case_of
from tests.fuzz.program import Program
from tests.scheduler.onnx_import.test_ops import build as model_of_node
from tests.scheduler.support.memory_check import memory_faults
from tests.scheduler.support.programs import emitted

# Of each ONNX operator; more where shapes, indices and attributes meet in many ways.
NODES = 12
MORE_NODES = dict.fromkeys(("ConvTranspose", "GatherND", "ScatterElements", "ScatterND"), 64)


@pytest.mark.slow
def test_programs_reach_every_step_type_and_operation() -> None:
    steps: set[str] = set()
    ops: set[Op] = set()
    reducers: set[Op] = set()
    kinds: set[dt.DType] = set()
    written: set[int] = set()
    lengths: set[int] = set()
    for seed in range(300):
        name = Name("graphs", "cpu", seed)
        p = situations(name) if seed % 2 else single_steps(name)
        steps |= p.reached
        written.add(len(p.writes))
        lengths.add(max(t.size for t in p.values).bit_length())
        for node in toposort([t.node for t in p.tensors]):
            ops.add(node.op)
            kinds.add(node.dtype)
            if node.op is Op.REDUCE:
                reducers.add(node.arg[0])
        assert p.outputs
    assert {step.__name__ for step in SITUATIONS} - steps == set()
    # GELU and DOT4 are made by passes, which have random tests; `with_copies` puts CUSTOM in.
    leaves = {Op.BUFFER, Op.CONST, Op.IOTA, Op.GATHER, Op.REDUCE, Op.CONTIGUOUS, Op.ASSIGN}
    assert (ELEMENTWISE | MOVEMENT | leaves) - ops == {Op.GELU, Op.DOT4}
    assert reducers == REDUCERS
    assert set(dt.ALL) - kinds == set()
    assert {0, 1, 2, 3} <= written
    assert max(lengths) > 15  # long enough to be reduced in stages


def test_networks_reach_products_convolutions_and_computed_gathers() -> None:
    ops: set[Op] = set()
    ranks: set[int] = set()
    for seed in range(60):
        case = network(Name("graphs", "cpu", seed))
        ranks.add(case.runs[0]["x"].ndim)
        ops.update(n.op for n in toposort([t.node for t in case.outputs.values()]))
    assert {Op.WINDOW, Op.GATHER, Op.CAT, Op.PAD, Op.EXP, Op.ERF, Op.WHERE, Op.ROUND} <= ops
    assert ranks == {3, 4}


def test_copies_by_hand_have_epilogues() -> None:
    found = 0
    for seed in range(40):
        outputs = with_copies(list(build(seed, 8).outputs.values()))
        plan = schedule({f"y{i}": t.node for i, t in enumerate(outputs)})
        found += sum(k.custom is not None and k.custom.epilogue is not None for k in plan.launches)
    assert found > 20


@pytest.mark.slow
@settings(max_examples=120)
@given(programs())
def test_no_single_pass_changes_a_value(program: Program) -> None:
    stages = Stages()
    run_passes([t.node for t in program.tensors], CompileContext(stages=stages))
    assert [n for n, _ in stages.graphs[1:]] == [n for n, _ in passes(CompileContext())]
    judge = Judge(program.inputs)
    states = {n: judge.of(t.node).value for n, t in program.states.items()}
    for name, roots in stages.graphs:
        found = evaluate([Tensor.of(root) for root in roots], {**program.inputs, **states})
        for tensor, got in zip(program.tensors, found, strict=True):
            assert difference(got, judge.of(tensor.node), Counts()) == "", name


@pytest.mark.slow
@settings(max_examples=200)
@given(programs(12))
def test_no_launch_reads_memory_that_was_overwritten(program: Program) -> None:
    made = emitted(program.outputs, list(program.writes.values()))
    assert memory_faults(made.manifest) == []


@pytest.mark.slow
@settings(max_examples=60)
@given(programs())
def test_no_copy_by_hand_reads_memory_that_was_overwritten(program: Program) -> None:
    copied = with_copies(program.tensors)
    outputs = dict(zip(program.outputs, copied, strict=False))
    assert memory_faults(emitted(outputs, copied[len(outputs) :]).manifest) == []


@pytest.mark.slow
@settings(max_examples=25)
@given(programs())
def test_fusion_never_adds_kernels(program: Program) -> None:
    def kernels(tensors: Sequence[Tensor]) -> int:
        outputs = {n: t.node for n, t in zip(program.outputs, tensors, strict=False)}
        return len(schedule(outputs, [t.node for t in tensors[len(outputs) :]]).kernels)

    assert kernels(program.tensors) <= kernels(apart(program.tensors))


def test_fewer_steps_are_a_prefix_of_the_same_program() -> None:
    for seed in range(8):
        # Without what states are given at the end, which are values of a longer program.
        short, long = (build(seed, n, states=False).values for n in (LENGTHS[1], LENGTHS[4]))
        prefix = long[: len(short)]
        assert pretty([t.node for t in short]) == pretty([t.node for t in prefix])


@pytest.mark.parametrize("op", GENERATORS)
def test_random_nodes_agree_with_onnxruntime(op: str) -> None:
    for seed in range(MORE_NODES.get(op, NODES)):
        made = case_of(op, seed)
        model, feeds = model_of_node(made, folded=seed % 4 == 3)
        found = imported_case(Name("onnx", "cpu", seed), model, feeds, op)
        assert found.problem == "", f"seed {seed}: {made.label}"


def test_random_networks_agree_with_onnxruntime() -> None:
    for seed in range(24):
        network = Network(seed)
        found = imported_case(Name("onnx", "cpu", seed), network.proto(), network.feeds, "")
        assert found.problem == "", f"seed {seed}"
