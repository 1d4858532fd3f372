"""What passes leave of a program: folded values, one index for movements, masks for padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, floats, program_of, same, values_of, x


@pytest.mark.opencl
def test_what_depends_on_weights_only_is_computed_on_the_host() -> None:
    w, scale, bias = floats(16, 16), floats(16, seed=1), floats(16, seed=2)
    folded = (Tensor.weight(w) * Tensor.weight(scale)).softmax() @ Tensor.weight(w)
    made = program_of(x(4, 16) @ folded + (Tensor.weight(bias) * 2.0).exp())
    assert made.launches == 1
    assert "exp(" not in made.source
    e = np.exp(w * scale - (w * scale).max(-1, keepdims=True))
    want = floats(4, 16) @ ((e / e.sum(-1, keepdims=True)) @ w) + np.exp(bias * 2)
    same(values_of(made, x=floats(4, 16))[0], want)


def test_neutral_elements_leave_no_operation() -> None:
    a = x(8, 8)
    plain = program_of(a.flip(0))
    assert program_of(((a * 1.0 - 0.0) / 1.0).flip(0).reshape(64).reshape(8, 8)).source == (
        plain.source
    )


@pytest.mark.opencl
def test_reductions_of_nothing_are_the_neutral_element() -> None:
    nothing = x(3, 4)[:, :0]
    other, b = x(3, name="b"), floats(3)
    made = program_of(
        nothing.sum(1) + other, nothing.prod(1) + other, nothing.max(1).maximum(other)
    )
    for got, want in zip(values_of(made, x=floats(3, 4), b=b), (b, b + 1, b), strict=True):
        same(got, want)


@pytest.mark.opencl
def test_an_output_without_elements_takes_no_kernel() -> None:
    made = program_of(x(3, 4)[:, :0] + 1.0)
    assert not made.manifest["kernels"]
    same(values_of(made, x=floats(3, 4))[0], np.zeros((3, 0), np.float32))


@pytest.mark.opencl
@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_a_repeated_axis_is_no_loop(name: str, axes: tuple[int, ...]) -> None:
    """All repeated axes and only those are left out: the collapse may be partial."""
    wide = x(4, 1, 8).broadcast_to((4, 5, 8))
    made = program_of(getattr(wide, name)(axes))
    assert made.launches == 1
    kept = tuple(s for a, s in enumerate((4, 5, 8)) if a in axes and a != 1)
    assert sorted(n for loop in made.loops for n in loop) == sorted(kept)
    a = np.broadcast_to(floats(4, 1, 8), (4, 5, 8))
    same(values_of(made, x=floats(4, 1, 8))[0], getattr(a, name)(axes), 1e-4)


@pytest.mark.opencl
def test_a_product_over_a_repeated_axis_is_a_power() -> None:
    made = program_of(x(4, 1).broadcast_to((4, 3)).prod(1))
    same(values_of(made, x=floats(4, 1))[0], floats(4, 1)[:, 0] ** 3)


def test_movements_that_undo_each_other_leave_the_plain_index() -> None:
    a = x(4, 6, 8)
    turned = a.permute(2, 0, 1).flip((0, 2)).reshape(4 * 8, 6)
    back = turned.reshape(8, 4, 6).flip((0, 2)).permute(1, 2, 0)
    assert program_of(back * 2.0).source == program_of(a * 2.0).source


@pytest.mark.opencl
@pytest.mark.parametrize("fill", [0.0, 1.0, -2.5])
def test_padding_is_read_under_a_mask(fill: float) -> None:
    a, b = x(5, 7), x(8, 9, name="b")
    made = program_of(a.pad([(1, 2), (2, 0)], fill) * b)
    assert made.launches == 1
    assert made.stored == []
    v, w = floats(5, 7), floats(8, 9, seed=1)
    want = np.pad(v, ((1, 2), (2, 0)), constant_values=fill) * w
    same(values_of(made, x=v, b=w)[0], want)


UNSAFE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "log": (lambda t: t.log(), np.log),
    "reciprocal": (lambda t: t.reciprocal(), np.reciprocal),
    "exp": (lambda t: t.exp(), np.exp),
    "below": (lambda t: (t < 0.5).float(), lambda a: (a < 0.5).astype(np.float32)),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", UNSAFE)
def test_what_does_not_map_zero_to_zero_is_padded_in_one_kernel(name: str) -> None:
    """The padding is the fill, not the function of a padded zero: no infinity is summed up."""
    ours, theirs = UNSAFE[name]
    made = program_of(ours(x(4, 4)).pad([(1, 1), (0, 2)], 1.0).sum(1))
    assert made.launches == 1
    a = floats(4, 4) + 1.5
    want = np.pad(theirs(a), ((1, 1), (0, 2)), constant_values=1).sum(1)
    same(values_of(made, x=a)[0], want)
