"""Random graphs: numpy == interpreter == every pass == device, fused or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.debug.trace import Observer, observing
from scheduler.device.spec import SPECS, using
from scheduler.ir.interp import evaluate as evaluate_nodes
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.pipeline import PASSES, run_passes, schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.memory_check import memory_faults
from tests.scheduler.on_device import emitted, load
from tests.scheduler.random_graphs import Array, Graph, agree, apart, scale_of, told_of
from tests.scheduler.random_motifs import build, graphs

CPUS = [name for name, row in SPECS.items() if not row.is_simt]


def states_of(graph: Graph) -> dict[str, Array]:
    """Return the states before the first run."""
    return {n: np.zeros(v.tensor.shape, v.tensor.dtype.np) for n, v in graph.states.items()}


def check_interpreted(graph: Graph, tensors: Sequence[Tensor]) -> None:
    """Compare outputs and new states with numpy over two runs, by the interpreter."""
    values = [*graph.outputs.values(), *graph.writes.values()]
    states = states_of(graph)
    for turn in range(2 if graph.writes else 1):
        given_now = {**graph.feed(turn), **states}
        want = graph.numpy(given_now)
        got = evaluate(tensors, given_now)
        for value, found in zip(values, got, strict=True):
            assert agree(found, want[value.at], value, scale_of(want)), f"v{value.at}, run {turn}"
        states = {n: want[v.at] for n, v in graph.writes.items()}


def check_on_device(graph: Graph, outputs: Sequence[Tensor], writes: Sequence[Tensor]) -> None:
    """Compare outputs and states with numpy over three runs, on the device."""
    with load(dict(zip(graph.outputs, outputs, strict=True)), writes) as program:
        used = {spec.name for spec in program.inputs}
        states = states_of(graph)
        for turn in range(3 if graph.writes else 1):
            feed = graph.feed(turn)
            want = graph.numpy({**feed, **states})
            scale = scale_of(want)
            got = program.run({n: v for n, v in feed.items() if n in used})
            for name, value in graph.outputs.items():
                assert agree(got[name], want[value.at], value, scale), f"{name}, run {turn}"
            for name, value in graph.writes.items():
                assert agree(program.state(name), want[value.at], value, scale), f"{name}, {turn}"
            states = {n: want[v.at] for n, v in graph.writes.items()}


@settings(max_examples=250)
@given(graphs())
def test_numpy_and_the_interpreter_agree_before_and_after_all_passes(graph: Graph) -> None:
    tensors = [*graph.tensors.values(), *graph.assigns]
    with told_of(graph):
        check_interpreted(graph, tensors)
        check_interpreted(graph, [Tensor.of(n) for n in run_passes([t.node for t in tensors])])


class EachStage(Observer):
    """Evaluates the graph after each pass."""

    def __init__(self, inputs: dict[str, Array]) -> None:
        self.inputs = inputs
        self.seen: list[str] = []
        self.found: list[list[Array]] = []

    def after_pass(self, name: str, roots: Sequence[Node], _: Origins) -> None:
        buffers = {
            n.arg: self.inputs[n.arg.name]
            for n in toposort(roots)
            if n.op is Op.BUFFER and n.arg.kind != "weight"
        }
        self.seen.append(name)
        self.found.append(evaluate_nodes(roots, buffers))


@settings(max_examples=60)
@given(graphs())
def test_no_single_pass_changes_a_value(graph: Graph) -> None:
    inputs = {**graph.feed(0), **states_of(graph)}
    stages = EachStage(inputs)
    with told_of(graph), observing(stages):
        run_passes([t.node for t in (*graph.tensors.values(), *graph.assigns)])
        want = graph.numpy(inputs)
        assert stages.seen[1:] == [name for name, _ in PASSES]
        values = [*graph.outputs.values(), *graph.writes.values()]
        for name, found in zip(stages.seen, stages.found, strict=True):
            for value, got in zip(values, found, strict=True):
                assert agree(got, want[value.at], value, scale_of(want)), f"v{value.at}, {name}"


@settings(max_examples=200)
@given(graphs(12))
def test_no_launch_reads_memory_that_was_overwritten(graph: Graph) -> None:
    with told_of(graph):
        assert memory_faults(emitted(graph.tensors, graph.assigns).manifest) == []


@settings(max_examples=25)
@given(graphs())
def test_fusion_never_adds_kernels(graph: Graph) -> None:
    alone = apart([*graph.tensors.values(), *graph.assigns])
    count = len(graph.outputs)
    with told_of(graph):
        fused = schedule(
            {n: t.node for n, t in graph.tensors.items()}, [a.node for a in graph.assigns]
        )
        outputs = {n: t.node for n, t in zip(graph.outputs, alone[:count], strict=True)}
        unfused = schedule(outputs, [t.node for t in alone[count:]])
        assert len(fused.kernels) <= len(unfused.kernels)


@pytest.mark.opencl
@settings(max_examples=45)
@given(graphs(), st.sampled_from(CPUS))
def test_the_device_gives_what_numpy_gives(graph: Graph, row: str) -> None:
    with told_of(graph), using(SPECS[row]):
        check_on_device(graph, list(graph.tensors.values()), graph.assigns)


@pytest.mark.opencl
@settings(max_examples=10)
@given(graphs(7))
def test_every_operation_in_a_kernel_of_its_own_gives_the_same(graph: Graph) -> None:
    tensors = apart([*graph.tensors.values(), *graph.assigns])
    count = len(graph.outputs)
    with told_of(graph):
        check_on_device(graph, tensors[:count], tensors[count:])


def test_the_generator_reaches_what_it_is_for() -> None:
    """Every motif, every element type, and programs of each kind, among a few hundred seeds."""
    texts: set[str] = set()
    kinds: set[str] = set()
    states: set[int] = set()
    for seed in range(300):
        graph = build(seed, 10)
        states.add(len(graph.writes))
        texts.update(step.text.split()[0].split("(")[0] for step in graph.steps)
        kinds.update(v.tensor.dtype.name for v in graph.values)
        assert len(graph.outputs) >= 1
    wanted = "permute flip slice pad window reshape expand cat sum max min mean softmax layernorm"
    wanted += (
        " matmul gather one argmax push assign contiguous half less where int add sub mul write"
    )
    assert set(wanted.split()) <= texts
    assert {"float32", "int32", "uint8", "bool"} <= kinds
    assert {0, 1, 2, 3} <= states


def test_a_wrong_result_is_told_with_its_program() -> None:
    graph = build(3, 4)
    wrong = [Tensor.full(t.shape, 1, t.dtype) + 7 for t in graph.tensors.values()]
    with pytest.raises(AssertionError) as caught, told_of(graph):
        check_interpreted(graph, [*wrong, *graph.assigns])
    assert "v0 = " in "".join(caught.value.__notes__)
