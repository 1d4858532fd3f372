"""Order of loops, layout of what is stored, and checks at borders."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scheduler.support.programs import floats, program_of, same, values_of, x


@pytest.mark.opencl
def test_the_axis_along_which_memory_is_contiguous_is_the_vector() -> None:
    """The output of a permutation is read along another axis than it is written."""
    made = program_of(x(6, 4, 64).permute(1, 0, 2) * 2.0 + x(4, 6, 64, name="b"))
    (launch,) = made.table.launches
    assert launch.lanes == 16
    assert "M_LOAD(float, 16," in made.source
    a, b = floats(6, 4, 64), floats(4, 6, 64, seed=1)
    same(values_of(made, x=a, b=b)[0], a.transpose(1, 0, 2) * 2 + b)


@pytest.mark.opencl
@pytest.mark.parametrize("axis", [0, 1])
def test_a_reduction_reads_along_rows_whichever_axis_is_reduced(axis: int) -> None:
    made = program_of(x(64, 64).sum(axis))
    (launch,) = made.table.launches
    assert launch.lanes == 16
    assert "M_LOAD(float, 16," in made.source
    same(values_of(made, x=floats(64, 64))[0], floats(64, 64).sum(axis), 1e-4)


def test_axes_of_size_one_do_not_count() -> None:
    plain = program_of(x(8, 32) * 2.0)
    assert program_of(x(8, 1, 32, 1) * 2.0).source == plain.source


def test_movements_that_undo_each_other_leave_the_plain_index() -> None:
    a = x(4, 6, 8)
    turned = a.permute(2, 0, 1).flip((0, 2)).reshape(4 * 8, 6)
    back = turned.reshape(8, 4, 6).flip((0, 2)).permute(1, 2, 0)
    assert program_of(back * 2.0).source == program_of(a * 2.0).source


@pytest.mark.opencl
def test_how_a_value_is_laid_out_is_decided_once_its_readers_are_known() -> None:
    """Nothing in the graph says how an intermediate lies in memory; here its kernel turns it."""
    wide = (x(24, 40) @ x(40, 32, name="w")).contiguous()
    made = program_of(wide.T @ x(24, 16, name="v"), wide.sum(0))
    assert all(dtype == "float32" for dtype, _ in made.stored)
    a, w, v = floats(24, 40), floats(40, 32, seed=1), floats(24, 16, seed=2)
    got = values_of(made, x=a, w=w, v=v)
    same(got[0], (a @ w).T @ v, 1e-4)
    same(got[1], (a @ w).sum(0), 1e-4)


@pytest.mark.opencl
def test_border_checks_that_cannot_fail_are_dropped() -> None:
    """Reading inside the unpadded part needs no check; reading over the border does."""
    padded = x(8, 64).pad([(1, 1), (0, 0)], 0.0)
    inside = program_of(padded[1:-1] * 2.0)
    assert inside.source == program_of(x(8, 64) * 2.0).source
    across = program_of(padded[:-2] + padded[2:])
    a = np.pad(floats(8, 64), ((1, 1), (0, 0)))
    same(values_of(across, x=floats(8, 64))[0], a[:-2] + a[2:])
