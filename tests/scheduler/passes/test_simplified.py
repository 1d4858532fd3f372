"""What passes leave of a program: folded values, one index for movements, masks for padding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, floats, make_program, program_of, same, x

pytestmark = pytest.mark.opencl


def check(*rows: tuple[Tensor, Array], **given: Array) -> str:
    """Run tensors as one program, compare each with numpy, and return the source."""
    made = make_program({f"y{i}": tensor for i, (tensor, _) in enumerate(rows)})
    with made.load() as program:
        found = program.run(given)
        for i, (_, want) in enumerate(rows):
            same(found[f"y{i}"], want)
    return made.source


def test_what_depends_on_weights_only_is_computed_on_the_host() -> None:
    w, scale, bias = floats(16, 16), floats(16, seed=1), floats(16, seed=2)
    folded = (Tensor.weight(w) * Tensor.weight(scale)).softmax() @ Tensor.weight(w)
    y = x(4, 16) @ folded + (Tensor.weight(bias) * 2.0).exp()
    assert program_of(y).launches == 1
    e = np.exp(w * scale - (w * scale).max(-1, keepdims=True))
    want = floats(4, 16) @ ((e / e.sum(-1, keepdims=True)) @ w) + np.exp(bias * 2)
    assert "exp(" not in check((y, want), x=floats(4, 16))


def test_neutral_elements_leave_no_operation() -> None:
    a = x(8, 8)
    much = ((a * 1.0 - 0.0) / 1.0).flip(0).reshape(64).reshape(8, 8)
    assert program_of(much).source == program_of(a.flip(0)).source


def test_movements_that_undo_each_other_leave_the_plain_index() -> None:
    a = x(4, 6, 8)
    turned = a.permute(2, 0, 1).flip((0, 2)).reshape(4 * 8, 6)
    back = turned.reshape(8, 4, 6).flip((0, 2)).permute(1, 2, 0)
    assert program_of(back * 2.0).source == program_of(a * 2.0).source


def test_reductions_of_nothing_are_the_neutral_element() -> None:
    nothing, other, b = x(3, 4)[:, :0], x(3, name="b"), floats(3)
    rows = (nothing.sum(1) + other, b), (nothing.prod(1) + other, b + 1)
    check(*rows, (nothing.max(1).maximum(other), b), x=floats(3, 4), b=b)


def test_an_output_without_elements_takes_no_kernel() -> None:
    empty = x(3, 4)[:, :0] + 1.0
    assert not program_of(empty).manifest["kernels"]
    check((empty, np.zeros((3, 0), np.float32)), x=floats(3, 4))


def test_a_repeated_axis_is_no_loop() -> None:
    """All repeated axes and only those are left out: the collapse may be partial."""
    wide, a = x(4, 1, 8).broadcast_to((4, 5, 8)), np.broadcast_to(floats(4, 1, 8), (4, 5, 8))
    rows: list[tuple[Tensor, Array]] = []
    for axes in ((1,), (1, 2), (0, 1), (0, 1, 2)):
        kept = sorted(a.shape[axis] for axis in axes if axis != 1)
        for name in ("sum", "max", "min"):
            reduced = getattr(wide, name)(axes)
            made = program_of(reduced)
            assert made.launches == 1
            assert sorted(n for loop in made.loops for n in loop) == kept
            rows.append((reduced, getattr(a, name)(axes)))
    check(*rows, x=floats(4, 1, 8))


def test_a_product_over_a_repeated_axis_is_a_power() -> None:
    given = floats(4, 1)
    check((x(4, 1).broadcast_to((4, 3)).prod(1), given[:, 0] ** 3), x=given)


def test_padding_is_read_under_a_mask() -> None:
    v, w = floats(5, 7), floats(8, 9, seed=1)
    a, b = x(5, 7), x(8, 9, name="b")
    around, rows = [(1, 2), (2, 0)], list[tuple[Tensor, Array]]()
    for fill in (0.0, 1.0, -2.5):
        padded = a.pad(around, fill) * b
        made = program_of(padded)
        assert (made.launches, made.stored) == (1, [])
        rows.append((padded, np.pad(v, around, constant_values=fill) * w))
    check(*rows, x=v, b=w)


UNSAFE: list[tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = [
    (lambda t: t.log(), np.log),
    (lambda t: t.reciprocal(), np.reciprocal),
    (lambda t: t.exp(), np.exp),
    (lambda t: (t < 0.5).float(), lambda a: (a < 0.5).astype(np.float32)),
]


def test_what_does_not_map_zero_to_zero_is_padded_in_one_kernel() -> None:
    """The padding is the fill, not the function of a padded zero: no infinity is summed up."""
    a, given, around = floats(4, 4) + 1.5, x(4, 4), [(1, 1), (0, 2)]
    rows: list[tuple[Tensor, Array]] = []
    for ours, theirs in UNSAFE:
        y = ours(given).pad(around, 1.0).sum(1)
        assert program_of(y).launches == 1
        rows.append((y, np.pad(theirs(a), around, constant_values=1).sum(1)))
    check(*rows, x=a)
