"""Values computed from joins are computed slice by slice: nothing is selected, numbers stay."""

import functools
from collections.abc import Callable, Sequence

import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.ir.ops import Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import check_numbers, weight
from tests.scheduler.support.programs import plan_for
from tests.support.selection import quick_cases

# Channels of what is joined: whole vectors, less than one, and one more than some.
WIDTHS = (64, 5, 33)
H, W = 12, 20


@functools.cache
def shared_input(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor.input(name, shape)


def join(name: str, widths: Sequence[int], axis: int = 1) -> Tensor:
    whole = (1, sum(WIDTHS), H, W)
    shapes = [(*whole[:axis], width, *whole[axis + 1 :]) for width in widths]
    return Tensor.cat([shared_input(f"{name}{i}", s) for i, s in enumerate(shapes)], axis)


def joined() -> Tensor:
    return join("x", WIDTHS)


def per_channel() -> Tensor:
    return weight(1, sum(WIDTHS), 1, 1)


def normed_join() -> Tensor:
    """As in front of each layer of a densely connected network."""
    return (joined() * per_channel() + per_channel()).relu()


def activated_join() -> Tensor:
    """PReLU reads what it activates twice."""
    normed = joined() * per_channel() + per_channel()
    return (normed < 0).where(normed * per_channel(), normed)


def two_joins() -> Tensor:
    """Other borders along the same axis."""
    return joined() + join("y", (20, 82))


def crossed_joins() -> Tensor:
    """Joins along different axes: one of them is cut at."""
    return (joined() * join("z", (5, 7), axis=2)).tanh()


def turned_join() -> Tensor:
    """The joined axis comes last in what is stored."""
    return (joined() * 2.0).permute(0, 2, 3, 1).relu()


def gated_join() -> Tensor:
    """Each slice needs its own part of a gate."""
    whole = joined()
    gate = (whole.mean((2, 3), keepdim=True) * per_channel()).sigmoid()
    return whole * gate


def read_by_a_convolution() -> Tensor:
    """What is stored is not an output: its layout is free."""
    return normed_join().conv2d(weight(256, sum(WIDTHS), 1, 1)).relu()


def kernel_of(tensor: Tensor) -> Kernel:
    return max(plan_for(tensor).launches, key=lambda k: len(k.bodies))


def loads(body: Body) -> list[str]:
    nodes = [n for n in scalar_nodes(body.value) if n.op is Op.LOAD]
    return sorted({n.src[0].arg.name for n in nodes if n.src[0].arg.kind == "input"})


READS: dict[Callable[[], Tensor], list[list[str]]] = {
    normed_join: [["x0"], ["x1"], ["x2"]],
    activated_join: [["x0"], ["x1"], ["x2"]],
    two_joins: [["x0", "y0"], ["x0", "y1"], ["x1", "y1"], ["x2", "y1"]],
    crossed_joins: [["x0", "z0", "z1"], ["x1", "z0", "z1"], ["x2", "z0", "z1"]],
    turned_join: [["x0"], ["x1"], ["x2"]],
    read_by_a_convolution: [["x0"], ["x1"], ["x2"]],
    joined: [["x0"], ["x1"], ["x2"]],
}


@pytest.mark.parametrize("tensor", READS)
def test_each_slice_is_a_loop_nest_that_reads_what_it_needs(tensor: Callable[[], Tensor]) -> None:
    assert [loads(body) for body in kernel_of(tensor()).bodies] == READS[tensor]


def test_small_joins_are_selected_from() -> None:
    a, b = Tensor.input("a", (1, 3, 4, 4)), Tensor.input("b", (1, 5, 4, 4))
    assert len(kernel_of(a.cat(b, axis=1).relu()).bodies) == 1


def test_a_value_beside_a_reduction_is_one_loop_nest() -> None:
    """The sum is computed once, in the loop nest that stores what is added to it."""
    picture = Tensor.input("p", (1, 8, H, W))
    convolved = picture.conv2d(weight(sum(WIDTHS), 8, 3, 3), padding=1)
    assert len(kernel_of(convolved + joined()).bodies) == 1


def test_slices_lie_as_what_they_are_computed_from() -> None:
    """Between convolutions all lies channels last: a pixel's 128 channels beside each other."""
    a = Tensor.input("a", (1, 16, H, W))
    parts = [a.conv2d(weight(c, 16, 1, 1)).relu().contiguous() for c in (64, 32, 32)]
    normed = (parts[0].cat(*parts[1:], axis=1) * weight(1, 128, 1, 1)).tanh()
    lowered = plan_for(normed.conv2d(weight(256, 128, 1, 1))).lowered
    (cut,) = [k for k in lowered if len(k.kernel.bodies) == 3]
    (reader,) = [k for k in lowered if cut.storage[0] in k.kernel.reads]
    assert cut.text.count("M_STORE(float, 16") >= 3  # whole vectors into each slice
    assert " * 1280 " in reader.text  # 10 pixels of 128 channels


@pytest.mark.opencl
@pytest.mark.parametrize("target", quick_cases(sorted(SPECS), "cpu", "cpu-neon"))
def test_slices_have_the_values_of_the_whole(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")  # what is not written is NaN
    outputs = {case.__name__: case() for case in (*READS, gated_join)}
    check_numbers(outputs, CompileContext(SPECS[target]))
