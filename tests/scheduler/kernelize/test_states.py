"""States: which version is read, when it is written, and where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.device.spec import DEFAULT
from scheduler.errors import SchedulerError
from scheduler.kernelize.kernel import states_in_place
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.kernelize.order import Step, best_order
from scheduler.pipeline import kernelize
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import (
    Array,
    Made,
    floats,
    make_program,
    program_of,
    same,
    x,
)


def check_turns(
    made: Made,
    shape: tuple[int, ...],
    *states: str,
    turn: Callable[..., tuple[dict[str, Array], tuple[Array, ...]]],
    tolerance: float = 1e-5,
) -> None:
    """Run a program three times on new values, and compare its outputs and its states.

    `turn` gets the input and the old states; it returns the outputs and the new states.
    """
    now: tuple[Array, ...] = tuple(np.zeros(shape, np.float32) for _ in states)
    with made.load() as program:
        for number in range(3):
            v = floats(*shape, seed=number)
            got = program.run({"x": v} if program.inputs else {})
            outputs, now = turn(v, *now)
            assert sorted(got) == sorted(outputs)
            for name, want in outputs.items():
                same(got[name], np.asarray(want, np.float32), tolerance)
            for state, want in zip(states, now, strict=True):
                same(program.state(state), np.asarray(want, np.float32), tolerance)


@pytest.mark.opencl
def test_a_read_before_the_assignment_gives_the_old_version_and_one_after_it_the_new() -> None:
    state = Tensor.state("s", (8,))
    old = state * 10.0
    new = state.assign(state + x(8))
    after = new * 100.0
    made = make_program({"old": old.flip(0), "new": after, "both": old + after.flip(0)}, [new])

    def turn(v: Array, s: Array) -> tuple[dict[str, Array], tuple[Array, ...]]:
        n = s + v
        return {"old": s[::-1] * 10, "new": n * 100, "both": s * 10 + n[::-1] * 100}, (n,)

    check_turns(made, (8,), "s", turn=turn)


@pytest.mark.opencl
@pytest.mark.parametrize("first", ["old", "new"])
def test_the_order_of_the_outputs_changes_nothing(first: str) -> None:
    """Whoever needs the old version runs before the update, wherever it stands."""
    state = Tensor.state("s", (4, 4))
    push = state.assign((x(4, 4) * 2.0).contiguous())
    outputs = {"old": state.sum(0) + 0.5, "new": push.max(1)}
    named = {n: outputs[n] for n in sorted(outputs, key=lambda n: n != first)}
    assert len(kernelize({n: t.node for n, t in named.items()}, [push.node])[1]) <= 3, "no commit"
    check_turns(
        make_program(named, [push]),
        (4, 4),
        "s",
        turn=lambda v, s: ({"old": s.sum(0) + 0.5, "new": (v * 2).max(1)}, (v * 2,)),
    )


def test_the_edges_are_in_the_kernel_table() -> None:
    state = Tensor.state("s", (64, 64))
    push = state.assign(x(64, 64) @ x(64, 64, name="w"))
    made = make_program({"old": state @ x(64, 64, name="v")}, [push])
    buffer = next(i for i, b in enumerate(made.manifest["buffers"]) if b["kind"] == "state")
    table = made.table

    def touching(kind: str) -> list[int]:
        """Launches that read the state, or write it."""
        return [
            launch.number
            for launch in table.launches
            if any(table.values[i].buffer == buffer for i in getattr(launch, kind))
        ]

    reads, (write,) = touching("reads"), touching("writes")
    assert reads
    assert max(reads) <= write
    for reader in set(reads) - {write}:
        assert (reader, write) in [(a, b) for a, b, _ in table.dependencies()]


def test_two_values_for_one_state_are_refused_by_its_name() -> None:
    state = Tensor.state("features", (4,))
    writes = [state.assign(x(4)), state.assign(x(4, name="b") * 2.0)]
    for refuse in (
        lambda: program_of(writes=writes),
        lambda: kernelize({}, [t.node for t in writes]),
    ):
        with pytest.raises(SchedulerError, match=r"features.*assigned") as error:
            refuse()
        assert "\n" not in str(error.value)
    with pytest.raises(SchedulerError, match="two values are assigned"):
        make_kernels([t.node for t in writes], DEFAULT)


@pytest.mark.opencl
def test_three_states_in_a_ring_change_places() -> None:
    states = [Tensor.state(f"s{i}", (5,)) for i in range(3)]
    writes = [s.assign(states[i - 1] + float(i + 1)) for i, s in enumerate(states)]
    made = make_program({"sum": sum(states[1:], states[0]).flip(0)}, writes)
    check_turns(
        made,
        (5,),
        *("s0", "s1", "s2"),
        turn=lambda _, *now: (
            {"sum": np.sum(now, 0)[::-1]},
            tuple(now[i - 1] + np.float32(i + 1) for i in range(3)),
        ),
    )


def test_an_overwritten_state_needs_no_commit_but_waits_for_its_readers() -> None:
    state = Tensor.state("q", (4,))
    push = state.assign(x(4) * 2.0)
    # The new value is made first in the graph; the old one is read by something that comes later.
    later = (push + 1.0) * state.sum().contiguous()
    _, kernels = kernelize({"y": later.node}, [push.node])
    reads = [i for i, k in enumerate(kernels) if state.node in k.reads]
    in_place = states_in_place(kernels)
    (write,) = [
        i for i, k in enumerate(kernels) if any(in_place.get(t) is state.node for t in k.targets)
    ]
    assert all(state.node not in k.targets for k in kernels)
    assert reads
    assert max(reads) < write


def test_a_commit_runs_as_soon_as_everyone_has_read_the_old_value() -> None:
    """The temporary of a queue need not live until the end of the frame."""
    queue, weight = Tensor.state("q", (4, 64)), Tensor.input("w", (64, 64))
    push = queue.assign(Tensor.cat([queue[1:], Tensor.input("x", (1, 64))]))
    y = push @ weight
    for _ in range(3):
        y = (y.contiguous().flip(0).contiguous() @ weight).contiguous()
    _, kernels = kernelize({"y": y.node, "old": queue.sum().node}, [push.node])
    at = next(i for i, k in enumerate(kernels) if queue.node in k.targets)
    assert at < len(kernels) - 1
    assert any(queue.node in k.reads for k in kernels[:at])
    assert not any(queue.node in k.reads for k in kernels[at:])


ITSELF: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "transposed": (lambda s: s + s.T, lambda a: a + a.T),
    "turned": (lambda s: s.flip(0) + 1.0, lambda a: a[::-1] + 1),
    "shifted": (
        lambda s: Tensor.cat([s[1:], s[:1] + 1.0]),
        lambda a: np.concatenate([a[1:], a[:1] + 1]),
    ),
    "summed": (lambda s: s + s.sum(0, keepdim=True) + 1.0, lambda a: a + a.sum(0) + 1),
    "padded": (
        lambda s: (s + 1.0)[:-1].pad([(1, 0), (0, 0)], 5.0),
        lambda a: np.pad(a[:-1] + 1, ((1, 0), (0, 0)), constant_values=5),
    ),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", ITSELF)
def test_a_state_that_reads_other_elements_of_itself_gets_a_temporary(name: str) -> None:
    ours, theirs = ITSELF[name]
    state = Tensor.state("s", (6, 6))
    push = state.assign(ours(state) * 0.5 + x(6, 6))
    made = make_program({}, [push])
    assert made.stored == [("float32", (6, 6))]
    assert len(kernelize({}, [push.node])[1]) == 2
    check_turns(made, (6, 6), "s", turn=lambda v, s: ({}, (theirs(s) * 0.5 + v,)), tolerance=1e-4)


@pytest.mark.opencl
@pytest.mark.parametrize("size", [4, 32, 33])
def test_a_state_that_reads_the_same_element_is_updated_in_place(size: int) -> None:
    """33 elements: lanes of 16 would compute some of them twice. Others read the old value."""
    state = Tensor.state("s", (size,))
    push = state.assign((state * 0.5 + x(size)).tanh())
    made = make_program({}, [push])
    assert (made.launches, made.stored) == (1, [])
    kernels = kernelize({}, [push.node])[1]
    assert list(states_in_place(kernels).values()) == [state.node]
    both = make_program({"old": state.max()}, [push])
    check_turns(
        both,
        (size,),
        "s",
        turn=lambda v, s: ({"old": s.max()}, (np.tanh(s * np.float32(0.5) + v),)),
    )


def test_a_cycle_is_told_with_its_kernels_and_a_way_out() -> None:
    names = ("stem/conv", "block1/relu", "block1/add")
    values = [Tensor.input(n, (1,)).node for n in names]
    steps = [Step(n, (values[i],), (values[i - 1],)) for i, n in enumerate(names)]
    steps.append(Step("head", (Tensor.input("h", (1,)).node,), (values[2],)))
    with pytest.raises(SchedulerError) as error:
        best_order(steps, {})
    text = str(error.value)
    assert "in a cycle: stem/conv -> block1/relu -> block1/add -> stem/conv;" in text
    assert "contiguous()" in text
    assert "head" not in text
    assert "\n" not in text


@pytest.mark.opencl
def test_what_would_be_a_cycle_through_a_state_is_scheduled() -> None:
    """Each result needs the other state's old value and the own new one: commits break the ring."""
    p, q = Tensor.state("p", (16,)), Tensor.state("q", (16,))
    new_p, new_q = p.assign(q.flip(0) + 1.0), q.assign(p.flip(0) + 2.0)
    made = make_program({"a": new_p + q, "b": new_q + p}, [new_p, new_q])
    check_turns(
        made,
        (16,),
        *("p", "q"),
        turn=lambda _, a, b: (
            {"a": b[::-1] + 1 + b, "b": a[::-1] + 2 + a},
            (b[::-1] + 1, a[::-1] + 2),
        ),
    )
