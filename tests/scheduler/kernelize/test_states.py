"""States: which version is read, when it is written, and where."""

import numpy as np
import pytest

from scheduler.device.spec import DEFAULT
from scheduler.errors import SchedulerError
from scheduler.kernelize.kernel import Kernel, states_in_place
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.kernelize.order import Step, best_order
from scheduler.kernelize.store_plan import store_plan
from scheduler.pipeline import kernelize
from scheduler.tensor.tensor import Tensor
from tests.scheduler.fusion.test_hazards import ITSELF
from tests.scheduler.support.programs import make_program, program_of, x


def kernels_of(made: dict[str, Tensor], *writes: Tensor) -> list[Kernel]:
    return list(kernelize({n: t.node for n, t in made.items()}, [w.node for w in writes])[1])


def check_readers_run_first(kernels: list[Kernel], state: Tensor) -> None:
    """The state is written once, directly, behind every kernel that reads its old value."""
    in_place = states_in_place(kernels)
    (write,) = [
        i for i, k in enumerate(kernels) if any(in_place.get(t) is state.node for t in k.targets)
    ]
    reads = [i for i, k in enumerate(kernels) if state.node in k.reads]
    assert reads
    assert max(reads) < write


@pytest.mark.parametrize("first", ["old", "new"])
def test_the_order_of_the_outputs_changes_nothing(first: str) -> None:
    """Whoever needs the old version runs before the update, wherever it stands."""
    state = Tensor.state("s", (4, 4))
    push = state.assign((x(4, 4) * 2.0).contiguous())
    outputs = {"old": state.sum(0) + 0.5, "new": push.max(1)}
    named = {n: outputs[n] for n in sorted(outputs, key=lambda n: n != first)}
    kernels = kernels_of(named, push)
    assert len(kernels) <= 3, "no commit is needed"
    check_readers_run_first(kernels, state)


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
        lambda: kernels_of({}, *writes),
    ):
        with pytest.raises(SchedulerError, match=r"features.*assigned") as error:
            refuse()
        assert "\n" not in str(error.value)
    with pytest.raises(SchedulerError, match="two values are assigned"):
        make_kernels(store_plan([t.node for t in writes], DEFAULT))


def test_an_overwritten_state_needs_no_commit_but_waits_for_its_readers() -> None:
    state = Tensor.state("q", (4,))
    push = state.assign(x(4) * 2.0)
    # The new value is made first in the graph; the old one is read by something that comes later.
    later = (push + 1.0) * state.sum().contiguous()
    kernels = kernels_of({"y": later}, push)
    assert all(state.node not in k.targets for k in kernels)
    check_readers_run_first(kernels, state)


def test_a_commit_runs_as_soon_as_everyone_has_read_the_old_value() -> None:
    """The temporary of a queue need not live until the end of the frame."""
    queue, weight = Tensor.state("q", (4, 64)), Tensor.input("w", (64, 64))
    push = queue.assign(Tensor.cat([queue[1:], Tensor.input("x", (1, 64))]))
    y = push @ weight
    for _ in range(3):
        y = (y.contiguous().flip(0).contiguous() @ weight).contiguous()
    kernels = kernels_of({"y": y, "old": queue.sum()}, push)
    at = next(i for i, k in enumerate(kernels) if queue.node in k.targets)
    assert at < len(kernels) - 1
    assert any(queue.node in k.reads for k in kernels[:at])
    assert not any(queue.node in k.reads for k in kernels[at:])


@pytest.mark.parametrize("how", [how for how in ITSELF if how != "not moved"])
def test_a_state_that_reads_other_elements_of_itself_gets_a_temporary(how: str) -> None:
    state = Tensor.state("s", (6, 6))
    push = state.assign(ITSELF[how](state, Tensor.cat) + x(6, 6))
    assert make_program({}, [push]).stored == [("float32", (6, 6))]
    assert len(kernels_of({}, push)) == 2


@pytest.mark.opencl
@pytest.mark.parametrize("size", [4, 32, 33])
def test_a_state_that_reads_the_same_element_is_updated_in_place(size: int) -> None:
    """33 elements: lanes of 16 would compute some of them twice."""
    state = Tensor.state("s", (size,))
    push = state.assign(state * 2.0 + x(size))
    made = make_program({}, [push])
    assert (made.launches, made.stored) == (1, [])
    assert list(states_in_place(kernels_of({}, push)).values()) == [state.node]
    with made.load() as program:
        for expected in (1.0, 3.0, 7.0):
            program.run({"x": np.ones(size, np.float32)})
            assert program.state("s").tolist() == [expected] * size


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
