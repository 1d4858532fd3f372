"""Convolutions by Winograd's F(2x2, 3x3): which are taken, the same values, on the device too."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.context import CompileContext
from scheduler.device.spec import DEFAULT, SPECS, DeviceSpec
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.passes.split import split_concat_sums
from scheduler.passes.winograd import winograd
from scheduler.passes.winograd_kernel import Shape, choose_blocks, fits, pays
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import EXAMPLES, check, for_all, ops, weight
from tests.scheduler.support.programs import compute


def always(roots: Sequence[Node], spec: DeviceSpec = DEFAULT) -> dict[Node, Node]:
    return winograd(roots, spec, fits)


def inside(*shape: int, name: str = "x") -> Tensor:
    """Return what is computed: an input as it is would need a copy."""
    return Tensor.input(name, shape) * 0.5


def ended(y: Tensor) -> Node:
    """Return what reads a result: an output itself would need a copy."""
    return y.sum(1).node


def taken(node: Node, spec: DeviceSpec = DEFAULT) -> int:
    """Return how many convolutions become custom kernels."""
    return ops(always([node], spec)[node]).count(Op.CUSTOM)


@st.composite
def chains(draw: st.DrawFn) -> tuple[Node, int]:
    """Draw a few convolutions, one after the other, and how many of them can be taken."""
    batch, height, width = draw(st.integers(1, 2)), draw(st.integers(2, 7)), draw(st.integers(2, 7))
    y = inside(batch, 8, height, width)
    count = draw(st.integers(1, 2))
    for i in range(count):
        pads = [draw(st.integers(0, 2)), 2, draw(st.integers(0, 2)), 2]
        if draw(st.booleans()):
            y = Tensor.cat(y, inside(*y.shape, name=f"c{i}").exp(), axis=1)
        outputs = draw(st.sampled_from([8, 16]))
        z = y.conv2d(
            weight(outputs, y.shape[1], 3, 3, seed=i),
            weight(outputs, seed=7) if draw(st.booleans()) else None,
            padding=((pads[0], pads[1]), (pads[2], pads[3])),
        )
        then = draw(st.sampled_from(["", "relu", "silu", "crop", "residual"]))
        if then == "residual":
            z = (z + inside(*z.shape, name=f"r{i}")).relu()
        elif then == "crop":
            z = z[:, :, :-1, 1:].relu() if min(z.shape[2:]) > 3 else z
        elif then:
            z = getattr(z, then)()
        y = z
    return ended(y), count


@EXAMPLES
def test_convolutions_keep_their_values(examples: int) -> None:
    def keeps(drawn: tuple[Node, int]) -> None:
        node, count = drawn
        (found,) = check(partial(always, spec=SPECS["cpu-avx2"]), [node])
        assert ops(found).count(Op.CUSTOM) <= count

    for_all(min(examples, 60), chains(), keeps)


def test_a_block_is_two_kernels_that_share_what_they_read() -> None:
    x = inside(1, 16, 6, 5).exp()
    y = x.conv2d(weight(16, 16, 3, 3), weight(16), padding=1).relu()
    y = y.conv2d(weight(16, 16, 3, 3, seed=1), weight(16), padding=1)
    (found,) = check(always, [ended((y + x).relu())])
    # x, the result between, and the end of the block: nothing is stored in two orders.
    assert (ops(found).count(Op.CUSTOM), ops(found).count(Op.CONTIGUOUS)) == (2, 3)
    plan = schedule({"y": found})
    assert [k.custom is not None for k in plan.launches] == [False, True, True, False]
    assert all(k.custom.epilogue is not None for k in plan.launches if k.custom)


def test_a_convolution_of_concat_channels_is_one_kernel() -> None:
    x = inside(1, 16, 6, 5).conv2d(weight(16, 16, 1, 1))
    y = inside(1, 32, 6, 5, name="y").conv2d(weight(32, 32, 1, 1))
    node = ended(Tensor.cat(x, y, axis=1).conv2d(weight(16, 48, 3, 3), padding=1).relu())
    plan = schedule({"y": check(always, [split_concat_sums([node])[node]])[0]})
    (launch,) = [k.custom for k in plan.launches if k.custom]
    assert len(launch.inputs) == 3


def convolved(*kernel: int, image: tuple[int, ...] = (1, 16, 9, 9), **how: Any) -> Tensor:
    return inside(*image).conv2d(weight(*kernel), **how)


def padded(x: Tensor) -> Tensor:
    return x.pad([(0, 0), (0, 0), (1, 1), (1, 1)], 1.0)


REFUSED: dict[str, Callable[[], Node]] = {
    "strided": lambda: ended(convolved(16, 16, 3, 3, stride=2)),
    "dilated": lambda: ended(convolved(16, 16, 3, 3, dilation=2)),
    "grouped": lambda: ended(convolved(32, 16, 3, 3, image=(1, 32, 9, 9), groups=2)),
    "larger": lambda: ended(convolved(16, 16, 5, 3)),
    "pointwise": lambda: ended(convolved(16, 16, 1, 1)),
    "narrow channels": lambda: ended(convolved(16, 12, 3, 3, image=(1, 12, 9, 9))),
    "one dimension": lambda: ended(convolved(16, 16, 3, image=(1, 16, 9))),
    "weights known at run time": lambda: ended(
        inside(1, 16, 9, 9).conv2d(Tensor.input("w", (16, 16, 3, 3)))
    ),
    "ones around": lambda: ended(
        padded(inside(1, 16, 9, 9)).windows((3, 3), (1, 1), (1, 1)).sum((-1, -2))
    ),
    "of an input": lambda: ended(Tensor.input("x", (1, 16, 9, 9)).conv2d(weight(16, 16, 3, 3))),
    "to an output": lambda: convolved(16, 16, 3, 3).relu().node,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays(name: str) -> None:
    assert taken(REFUSED[name]()) == 0


def test_what_is_around_an_image_may_be_part_of_it() -> None:
    image = padded(inside(1, 16, 9, 9).exp())
    node = ended(image.conv2d(weight(16, 16, 3, 3), padding=1))
    assert taken(node) == 1
    check(always, [node])


def test_it_is_for_floats_on_processors() -> None:
    node = ended(convolved(32, 32, 3, 3, image=(1, 32, 32, 32), padding=1).relu())
    for target in ("gpu", "adreno"):
        assert taken(node, SPECS[target]) == 0
    assert any(k.custom for k in schedule({"y": node}).launches)
    halves = CompileContext(precision="fp16")
    assert not any(k.custom for k in schedule({"y": node}, context=halves).launches)


@pytest.mark.parametrize(
    ("height", "width", "channels", "outputs", "expected"),
    [
        (32, 64, 64, 64, True),  # the first layers of a ResNet
        (8, 16, 256, 256, True),
        (4, 8, 512, 512, False),  # its last: 16 weights for 9, and few pixels to share them
        (360, 640, 16, 16, True),
        (8, 8, 32, 32, False),  # too small to matter
    ],
)
def test_where_it_pays(
    height: int, width: int, channels: int, outputs: int, expected: bool
) -> None:
    shape = Shape(1, height, width, (channels,), outputs, 1, 1, height, width)
    assert pays(shape, SPECS["cpu"]) is expected


@settings(max_examples=60)
@given(
    st.tuples(st.integers(1, 2), st.integers(2, 70), st.integers(2, 70)),
    st.lists(st.integers(1, 6), min_size=1, max_size=2),
    st.integers(1, 12),
    st.sampled_from(["cpu", "cpu-avx2", "cpu-sse", "cpu-neon"]),
)
def test_a_cut_covers_everything(
    image: tuple[int, int, int], depth: list[int], outputs: int, target: str
) -> None:
    spec = SPECS[target]
    channels = tuple(spec.lanes * d for d in depth)
    shape = Shape(*image, channels, spec.lanes * outputs, 1, 1, *image[1:])
    cut = choose_blocks(shape, spec)
    panels = outputs // cut.vectors
    assert panels * cut.vectors == outputs
    assert panels % cut.groups == 0
    assert cut.tiles % cut.rows == 0
    assert cut.items(shape) // cut.groups * cut.tiles >= shape.tiles
    assert cut.vectors * cut.rows < spec.vector_registers


@pytest.mark.opencl
def test_on_the_device_errors_stay_small() -> None:
    """Odd sizes, two images, a concat, a residual, one-sided padding."""
    w0, w1, w2 = weight(64, 32, 3, 3), weight(64, 64, 3, 3, seed=1), weight(32, 128, 3, 3, seed=2)
    bias = weight(64, seed=3)
    x = Tensor.input("x", (2, 32, 15, 17)).exp()
    a = x.conv2d(w0, bias, padding=1).relu()
    b = (a.conv2d(w1 * 0.05, None, padding=1) + a).silu()
    c = Tensor.cat(a, b, axis=1).conv2d(w2 * 0.05, None, padding=((2, 0), (0, 1)))
    end = c.relu().permute((0, 2, 3, 1)).contiguous()
    plan = schedule({"y": end.node})
    assert [len(k.custom.inputs) for k in plan.launches if k.custom] == [2, 2, 3]
    drawn = np.random.default_rng(5).standard_normal(x.shape).astype(np.float32)
    want = end.interp({"x": drawn})
    assert np.abs(compute(end, x=drawn) - want).max() <= 1e-5 * np.abs(want).max()
