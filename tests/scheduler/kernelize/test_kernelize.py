"""What becomes a kernel, and in which order kernels run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from scheduler.device.spec import DEFAULT
from scheduler.errors import SchedulerError
from scheduler.ir.node import Node, toposort
from scheduler.ir.origin import Origins
from scheduler.kernelize.kernel import Kernel, states_in_place
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.pipeline import kernelize, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load


def x(*shape: int, name: str = "a") -> Tensor:
    return Tensor.input(name, shape)


def b(*shape: int) -> Tensor:
    return x(*shape, name="b")


def w(*shape: int) -> Tensor:
    return Tensor.weight(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def count(*outputs: Tensor) -> int:
    return len(kernelize({f"y{i}": t.node for i, t in enumerate(outputs)})[1])


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
        make_kernels([t.node for t in writes], DEFAULT)


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
    plan = schedule({"y": y.node})
    assert len(plan.lowered) == len(plan.kernels) <= 20
