"""What becomes a kernel, and in which order kernels run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.ir.rewrite import remake
from scheduler.kernelize.kernel import Kernel, states_in_place
from scheduler.kernelize.kernels import make_kernels
from scheduler.pipeline import kernelize, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.on_device import load

Build = Callable[[], Tensor]


def x(*shape: int, name: str = "a") -> Tensor:
    return Tensor.input(name, shape)


def b(*shape: int) -> Tensor:
    return x(*shape, name="b")


def w(*shape: int) -> Tensor:
    return Tensor.weight(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def count(*outputs: Tensor) -> int:
    return len(kernelize({f"y{i}": t.node for i, t in enumerate(outputs)})[1])


def conv_bn(image: Tensor) -> Tensor:
    c = image.shape[1]
    y = image.conv2d(w(c, c, 3, 3), padding=1)
    return y.batchnorm(w(c), w(c), w(c), w(c) * w(c) + 1.0)


def residual_block() -> Tensor:
    image = x(1, 8, 6, 6)
    return (conv_bn(conv_bn(image).relu()) + image).relu()


def conv_bias_activation_residual() -> Tensor:
    image = x(1, 8, 6, 6)
    return (image.conv2d(w(8, 8, 3, 3), w(8), padding=1) + image).relu()


NETWORKS: list[tuple[str, int, Build]] = [
    ("conv, bias, activation, residual", 1, conv_bias_activation_residual),
    ("residual block", 2, residual_block),
    ("softmax", 3, lambda: x(8, 64).softmax()),
    ("layernorm", 3, lambda: x(8, 64).layernorm()),
    ("matmul, bias, gelu", 1, (x(16, 32) @ w(32, 64) + w(64)).gelu),
]


@pytest.mark.parametrize(("most", "build"), [n[1:] for n in NETWORKS], ids=[n[0] for n in NETWORKS])
def test_networks_take_no_more_kernels_than(most: int, build: Build) -> None:
    assert count(build()) <= most


def _t58() -> Tensor:
    image = x(1, 64, 32, 32)
    return (conv_bn(conv_bn(image).relu()) + image).relu()


def _expand_and_permute() -> Tensor:
    total = x(10, 10, 1) + b(10, 10, 1)
    return total.broadcast_to((10, 10, 10)) + total.permute(2, 1, 0)


def _conv(image: Tensor) -> Tensor:
    return image.conv2d(w(4, image.shape[1], 3, 3))


def _attention(*masks: Tensor) -> Tensor:
    q, k, v = (x(2, 4, 16, 8, name=n) for n in "qkv")
    scores = q @ k.transpose()
    for mask in masks:
        scores = scores + mask
    return scores.softmax() @ v


def _batch_statistics() -> Tensor:
    image = x(1, 32, 4, 4)
    centred = image - image.mean((0, 2, 3), keepdim=True)
    variance = centred.square().mean((0, 2, 3), keepdim=True)
    return centred * (variance + 1e-5).rsqrt()


def _with_its_sum(value: Tensor) -> list[Tensor]:
    return [value, value.sum(-1)]


def _sums_of_sums() -> list[Tensor]:
    base = x(4, 4, 4).sum(0) + 6.0
    return [base.sum(0) * 4.0, base.sum(1) * 2.0]


def _transposed_product() -> list[Tensor]:
    base = x(4, 4, 4).sum(2) + b(4, 4)
    turned = base.T * 4.0
    return [turned, base * turned]


# Programs of a peer's schedule tests, with the smallest count any of its versions reached.
PEER: list[tuple[str, int, Build]] = [
    ("t02", 1, lambda: x(10) + b(10) + x(10, name="c") + x(10, name="d")),
    ("t04", 1, lambda: (x(10, 10) * b(10, 10)).sum().relu()),
    ("t06", 1, lambda: (x(2, 5) + b(2, 5)).T + x(5, 2, name="c")),
    ("t10", 1, lambda: x(1, 5).elu()),
    ("t12", 1, lambda: x(10, 10).sum(0) + b(10)),
    ("t14", 1, lambda: ((x(100) + b(100)).reshape(10, 10) + x(10, 10, name="c")).sum(0)),
    ("t20", 2, lambda: _mean_twice(x(32, 32))),
    ("t22", 1, lambda: (x(4) * b(4)) / b(4)),
    ("t24", 1, lambda: (x(4) / b(4)) / x(4, name="c")),
    ("t30", 1, lambda: x(8, 8).sum(keepdim=True).sqrt().__neg__()),
    ("t40", 2, lambda: _conv(_conv(x(1, 3, 12, 12)).relu()).relu()),
    ("t42", 1, lambda: _conv(x(1, 3, 12, 12)).elu()),
    ("t32", 3, _batch_statistics),
    ("t44", 1, (x(64, 64).sum(0) + x(64, 64).sum(1)).relu),
    ("t46", 1, (x(4, 4, 4, 4) + b(4, 4, 4, 4)).reshape(16, 16).T.contiguous),
    ("t48", 1, lambda: x(4, 4, 4, 4).sum((0, 1)).half().float().T.reshape(16) + b(16)),
    ("t50", 1, _expand_and_permute),
    ("t58", 2, _t58),
    ("t60", 1, lambda: x(1, 3, 4, 5).permute(0, 2, 3, 1).contiguous()),
    ("t66", 1, lambda: x(8, 8).sum(1).relu().elu() + b(8, 8).sum(1).relu().elu()),
    ("t68", 1, lambda: x(32, 32, 32).sum(2).relu().sum(1)),
    ("t70", 2, lambda: (x(8) + b(8)).contiguous() + x(8, name="c")),
    ("t72", 1, lambda: x(32, 32).sum(1)[:16] + b(16)),
    ("t88", 4, _attention),
    ("t90", 4, lambda: _attention(x(16, 16, name="mask"))),
    ("t92", 2, lambda: (x(8, 8) + x(8, 8).sum(-1, keepdim=True)).sum(-1)),
    ("t96", 1, lambda: x(8, 8).sum(-1) + b(8, 8).sum(-1)),
    ("t98", 2, lambda: (x(8, 8) - x(8, 8).max(-1, keepdim=True)).sum(-1)),
    ("t102", 3, lambda: x(2, 3, 16, 16).softmax()),
    ("t114", 1, lambda: x(8, 8).sum().half().float()),
    ("t122", 1, lambda: (x(16, 16).sum(1) + b(16))[:4] * x(4, name="c")),
    ("t124", 1, lambda: (x(8, 8).sum(0) + x(8, 8).max(1)) + 2.0),
    ("t130", 1, lambda: (x(4, 4) + b(4, 4)).pad([(1, 1), (1, 1)], 1.0).sum()),
    ("t132", 1, lambda: x(4, 4).log2().pad([(1, 1), (1, 1)], 1.0).sum()),
    ("t134", 1, lambda: (x(2) + b(2)).shrink([(0, 1)]).pad([(0, 1)]).contiguous()),
    ("t136", 1, lambda: x(4, 4).exp2()[:-1, :-1].pad([(0, 1), (0, 1)]) * 2.0),
    ("t138", 1, lambda: x(4, 4).half().broadcast_to((2, 4, 4)).int().broadcast_to((2, 2, 4, 4))),
    ("t142", 2, lambda: x(10, 20).argmax(1)),
    ("t146", 1, lambda: x(4, 4).sum(1, keepdim=True) + b(4, 1)),
    ("t148", 1, lambda: x(4, 6, 4).sum(1, keepdim=True).permute(2, 0, 1) + b(4, 4, 1)),
    ("t150", 2, lambda: x(32, 32) - x(32, 32).sum(1)),
    ("t152", 1, lambda: x(10, 10).gather(Tensor.input("i", (2,), dt.int32))),
    ("t158", 1, (x(10) + Tensor.arange(10)[2]).sum),
    ("t180", 1, lambda: ((1.0 / x(4)) * b(4)).pad([(0, 1)]).sum()),
    ("t182", 1, lambda: x(1, 1, 5, 5).avg_pool2d(2, 1, 1)),
    ("t204", 1, lambda: (x(16) + b(16)).reshape(8, 2)),
]
PEER_SEVERAL: list[tuple[str, int, Callable[[], list[Tensor]]]] = [
    ("t84", 3, lambda: [x(4).sum(keepdim=True), x(4).sum().exp2(), x(4).sum().exp2() + b(4)]),
    ("t86", 2, lambda: [x(4, 32).argmin(), x(4, 32).argmax()]),
    ("t94", 3, lambda: _with_its_sum(x(8, 8) + x(8, 8).sum(-1, keepdim=True))),
    ("t118", 3, _sums_of_sums),
    ("t120", 3, _transposed_product),
]


def _mean_twice(t: Tensor) -> Tensor:
    mean = t.mean(0, keepdim=True)
    return mean + (t - mean).sum(0) / 2.0


@pytest.mark.parametrize(("most", "build"), [p[1:] for p in PEER], ids=[p[0] for p in PEER])
def test_programs_of_the_peers_take_no_more_kernels_than(most: int, build: Build) -> None:
    assert count(*_same_inputs([build()])) <= most


@pytest.mark.parametrize(
    ("most", "build"), [p[1:] for p in PEER_SEVERAL], ids=[p[0] for p in PEER_SEVERAL]
)
def test_programs_of_several_outputs_take_no_more_kernels_than(
    most: int, build: Callable[[], list[Tensor]]
) -> None:
    assert count(*_same_inputs(build())) <= most


def _same_inputs(tensors: list[Tensor]) -> list[Tensor]:
    """Read one buffer where a program names the same input twice."""
    first: dict[str, Node] = {}
    new: dict[Node, Node] = {}
    for node in toposort([t.node for t in tensors]):
        if node.op is Op.BUFFER and node.arg.kind == "input":
            new[node] = first.setdefault(node.arg.name, node)
        else:
            new[node] = remake(node, tuple(new[s] for s in node.src))
    return [Tensor.of(new[t.node]) for t in tensors]


def test_a_weight_that_is_an_output_is_copied_and_nothing_else() -> None:
    assert count(w(4)) == 1


def test_outputs_of_one_value_have_storage_each() -> None:
    value = x(4) + 1.0
    named, kernels = kernelize({"p": value.node, "q": value.node})
    assert named["p"] is not named["q"]
    (kernel,) = kernels  # one loop nest stores the value twice
    assert kernel.targets == (named["p"], named["q"])


def queue_program() -> tuple[Tensor, Tensor, Tensor]:
    """Return (y of the old queue, y of the new queue, the push)."""
    queue = Tensor.state("q", (4, 3))
    after = queue.assign(Tensor.cat([queue[1:], x(1, 3)]))
    return queue.sum(), after.max(), after


def positions(kernels: Sequence[Kernel], state: Node) -> tuple[list[int], int]:
    """Return where the old state is read and where it is written."""
    reads = [i for i, k in enumerate(kernels) if state in k.reads]
    writes = [
        i
        for i, k in enumerate(kernels)
        if any(states_in_place(kernels).get(t, t) is state for t in k.targets)
    ]
    assert len(writes) == 1
    return reads, writes[0]


def test_a_shifted_queue_is_committed_after_every_read_of_its_old_value() -> None:
    before, after, push = queue_program()
    _, kernels = kernelize({"old": before.node, "new": after.node}, [push.node])
    state = push.node.src[0]
    assert state in kernels[-1].targets, "the commit comes last"
    reads, write = positions(kernels, state)
    assert reads
    assert max(reads) < write


def test_an_overwritten_state_needs_no_commit_but_waits_for_its_readers() -> None:
    state = Tensor.state("q", (4,))
    push = state.assign(x(4) * 2.0)
    # The new value is made first in the graph; the old one is read by something that comes later.
    later = (push + 1.0) * state.sum().contiguous()
    _, kernels = kernelize({"y": later.node}, [push.node])
    reads, write = positions(kernels, state.node)
    assert all(state.node not in k.targets for k in kernels)
    assert reads
    assert max(reads) < write


def test_reading_the_old_state_after_the_new_one_is_assigned_gives_the_old_one() -> None:
    state = Tensor.state("q", (3,))
    push = state.assign(state + 1.0)
    both = push * 10.0 + state
    with load({"y": both}, [push]) as program:
        assert program.run({})["y"].tolist() == [10, 10, 10]
        assert program.run({})["y"].tolist() == [21, 21, 21]
        assert program.state("q").tolist() == [2, 2, 2]


def test_two_states_that_exchange_their_values() -> None:
    p, q = Tensor.state("p", (2,)), Tensor.state("q", (2,))
    first, second = p.assign(q + 1.0), q.assign(p - 1.0)
    with load({}, [first, second]) as program:
        program.run({})
        program.run({})
        assert program.state("p").tolist() == [0, 0]
        assert program.state("q").tolist() == [0, 0]
        program.run({})
        assert program.state("p").tolist() == [1, 1]
        assert program.state("q").tolist() == [-1, -1]


def test_assigning_one_state_twice_is_refused() -> None:
    state = Tensor.state("q", (2,))
    writes = [state.assign(x(2)), state.assign(x(2) * 2.0)]
    with pytest.raises(SchedulerError, match=r"q.*assigned"):
        kernelize({}, [t.node for t in writes])
    with pytest.raises(SchedulerError, match="two values are assigned"):
        make_kernels([t.node for t in writes])


def test_kernels_name_every_onnx_node_they_cover() -> None:
    y, origins = x(1, 3, 8, 8).conv2d(w(4, 3, 3, 3)), Origins()
    origins.name([y.node], ("conv",))
    origins.name([y.elu().node], ("act",))
    assert schedule({"y": y.elu().node}, origins=origins).launches[0].origin == ("conv", "act")


def test_a_constant_that_two_layers_share_does_not_lend_its_name() -> None:
    first, second = x(300_000), b(300_000)  # small ones would share a launch
    y, z, origins = first * 0.3, second * 0.3, Origins()
    origins.name([y.node], ("one",))
    origins.name([z.node], ("two",))
    kernels = schedule({"y": y.node, "z": z.node}, origins=origins).launches
    assert sorted(k.origin for k in kernels) == [("one",), ("two",)]


def test_a_chain_of_twenty_thousand_nodes_does_not_recurse() -> None:
    y = x(4)
    for i in range(20_000):
        y = (y + float(i % 7)).abs() if i % 2 else y.flip(0)
    assert len(toposort([y.node])) > 20_000
    named, kernels = kernelize({"y": y.node})
    # Long expressions are cut, or their compilation would take more than linear time.
    assert len(named) == 1
    assert len(kernels) <= 100


def test_an_elementwise_chain_of_three_thousand_nodes_is_lowered() -> None:
    y = x(64)
    for i in range(1500):
        y = (y * 0.5 + float(i)).maximum(0.25)
    started = time.perf_counter()
    plan = schedule({"y": y.node})
    assert len(plan.kernels) <= 20
    assert time.perf_counter() - started < 20
