"""What the code generator for CPUs makes of loops: text where it matters, and the same numbers."""

import functools
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from scheduler.context import CompileContext, context_for
from scheduler.device.tuned_table import Choice
from scheduler.flags import Flags
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.pack import PackedWeight
from scheduler.lower import LoweredKernel
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import check_numbers, job_of, normal, weight
from tests.scheduler.support.programs import floats, program_of, same, values_of, x

# Vectors and rows of a register tile, so that tests do not depend on which one is the fastest.
TILE = Choice(2, 8)
# A loop whose bounds are computed: from which step, to which.
BOUNDED = re.compile(r"for \(int (\w+) = (v\d+); \1 < (v\d+); \1\+\+\)")


@functools.cache  # one input for all who ask
def image(name: str = "image", channels: int = 16) -> Tensor:
    """Channels last in memory, as convolutions store them."""
    return Tensor.input(name, (1, 9, 11, channels)).permute((0, 3, 1, 2))


@functools.cache
def rows(count: int, inner: int) -> Tensor:
    return Tensor.input(f"rows{count}x{inner}", (count, inner))


def lowered(tensor: Tensor) -> LoweredKernel:
    (kernel,) = schedule({"y": tensor.node}).lowered
    return kernel


def loops_of(tensor: Tensor) -> LoopSchedule:
    """Return the loops around a tile of 2 vectors and 8 rows, where the kernel has one."""
    return job_of(tensor).loops(TILE)


def innermost(text: str) -> list[str]:
    """Return the bodies of the loops that hold no other loop."""
    lines, found = text.splitlines(), []
    for start, line in enumerate(lines):
        if "for (" not in line:
            continue
        end = lines.index(line[: len(line) - len(line.lstrip())] + "}", start)
        body = lines[start + 1 : end]
        if not any("for (" in inner for inner in body):
            found.append("\n".join(body))
    return found


def convolved(**how: Any) -> Tensor:
    return image().conv2d(weight(16, 16, 3, 3), **how)


def test_the_padding_of_a_convolution_is_in_the_bounds_of_its_loops() -> None:
    text = lowered(convolved(padding=1)).text
    assert len(BOUNDED.findall(text)) == 1  # rows; columns are a register tile
    (body,) = innermost(text)
    assert "m_fma" in body
    assert "?" not in body
    assert "if" not in body


def test_without_padding_there_is_nothing_to_choose() -> None:
    text = lowered(convolved()).text
    assert not BOUNDED.search(text)
    assert "?" not in text


def test_columns_outside_are_read_through_a_pointer_chosen_before_the_loop_over_channels() -> None:
    kernel = lowered(convolved(padding=1))
    chosen = re.findall(r"float\* (\w+) = \w+ \? in\d \+ \(.+\) : (in\d);", kernel.text)
    assert len(chosen) == 2  # the first column of a row, and the last
    assert len({fill for _, fill in chosen}) == 1
    (body,) = innermost(kernel.text)
    assert all(re.search(rf"= {name}\b", body) for name, _ in chosen)
    (fill,) = [a for a in kernel.arguments if isinstance(a, PackedWeight) and not a.strides]
    assert not fill.data.any()


def without_buffers_to_spare() -> CompileContext:
    return context_for(flags=Flags(max_kernel_buffers=4, tuned=False))


def biased() -> Tensor:
    return image().conv2d(weight(16, 16, 3, 3), weight(16), padding=1)


def test_without_a_buffer_to_spare_the_choice_is_at_the_load() -> None:
    (kernel,) = schedule({"y": biased().node}, context=without_buffers_to_spare()).lowered
    assert len(kernel.arguments) == 3  # and the result
    (body,) = innermost(kernel.text)
    assert re.search(r"\? p\d+\[-?\d+\] : 0x0.0p\+0f;", body)


def test_steps_of_a_window_that_is_unrolled_are_left_out() -> None:
    """Columns: 12 results of 3 products each, but for the first and the last column."""
    row = Tensor.input("image", (1, 9, 12, 16)).permute((0, 3, 1, 2))
    job = job_of(row.conv2d(weight(16, 1, 3, 3), padding=1, groups=16))
    (body,) = innermost(job.render(Choice(1, 12)).text)
    assert body.count("m_fma") == 3 * 12 - 2
    assert "?" not in body


def test_the_padding_of_a_maximum_is_left_out_too() -> None:
    text = job_of(image().max_pool2d(3, 2, 1)).render(Choice(1, 6)).text
    assert BOUNDED.search(text)
    (body,) = innermost(text)
    assert "INFINITY" not in body
    # Each takes the new value if that is larger, or NaN.
    assert len(re.findall(r", M_CHOOSE\(\(acc\w* < ", body)) == 3 * 6 - 2


def test_zero_times_infinity_is_not_left_out() -> None:
    """A product with a padded zero is no zero if the weight is infinite."""
    values = normal(16, 16, 3, 3)
    values[3, 4, 0, 0] = np.inf
    assert not BOUNDED.search(lowered(image().conv2d(Tensor.weight(values), padding=1)).text)


@pytest.mark.parametrize("columns", [1, 16, 17])
def test_what_fills_a_vector_or_is_one_number_is_not_narrow(columns: int) -> None:
    assert lowered(rows(64, 16) @ weight(16, columns)).lanes == (16,)


def test_factors_that_all_rows_share_are_multiplied_once_for_a_vector() -> None:
    gate = Tensor.input("gate", (48,))
    job = job_of((rows(32, 48) * gate) @ weight(48, 32))
    (body,), loops = innermost(job.render(TILE).text), job.loops(TILE)
    (unroll,) = loops.reduce_unroll.values()
    vectors, row = (t.unroll for t in loops.tiles)
    assert row > 1
    assert body.count("m_fma") == unroll * vectors * row
    assert len(re.findall(r" = \(.+ \* .+\);", body)) == unroll * vectors


def test_a_factor_of_a_whole_sum_is_multiplied_after_it() -> None:
    """The sum of a row's exponentials divides what is summed with them, not each of them."""
    scale = Tensor.input("scale", (32, 1))
    job = job_of((rows(32, 48) * scale) @ Tensor.input("values", (48, 64)))
    (body,) = innermost(job.render(TILE).text)
    assert "m_fma" in body
    assert re.findall(r" = \(.+ \* .+\);", body) == []
    assert re.search(r" = \(.*acc.* \* .+\);", job.render(TILE).text)


def test_a_product_of_two_values_has_a_register_tile() -> None:
    """Vectors of one serve rows of the other; heads are no rows, as both move along them."""
    left, right = Tensor.input("left", (4, 64, 48)), Tensor.input("right", (4, 48, 64))
    loops = job_of(left @ right).loops(Choice())
    assert loops.contracts
    assert loops.row is not None
    assert loops.row.size == 64
    tile = [t.unroll for t in loops.tiles]
    assert np.prod(tile) >= 12


def test_a_dot_product_of_few_vectors_is_written_out() -> None:
    """Lanes run across the sum: 64 products are four vectors, with no loop around them."""
    scores = Tensor.input("q", (4, 64)) @ Tensor.input("k", (7, 64)).transpose(0, 1)
    loops = loops_of(scores)
    assert loops.across
    assert list(loops.reduce_unroll.values()) == [64 // loops.lanes]
    long = Tensor.input("q", (4, 1024)) @ Tensor.input("k", (7, 1024)).transpose(0, 1)
    assert list(loops_of(long).reduce_unroll.values()) == [1]


def normed(tensor: Tensor, columns: int) -> Tensor:
    return tensor.layernorm() @ weight(tensor.shape[1], columns)


def test_nothing_is_shared_in_parts_where_a_result_of_the_row_is_stored() -> None:
    """Each part would store it."""
    row = rows(1, 1024)
    mean = row.mean(1, keepdim=True)
    y = ((row - mean).exp().tanh() + 1.0).exp().tanh().exp().tanh()
    assert lowered(y).items > 1
    (both,) = schedule({"mean": mean.node, "y": y.node}).lowered
    assert both.items == 1
    assert len(both.storage) == 2


def test_work_items_are_blocks_of_rows_where_activations_are_larger_than_weights() -> None:
    loops = loops_of(rows(2048, 32) @ weight(32, 128))
    assert loops.blocked is not None
    atom, steps = loops.blocked
    assert atom is loops.row
    (panel, block) = (
        next(t for t in loops.tiles if t.atom is a).outer for a in (loops.vector, atom)
    )
    assert block % steps == 0
    share = panel * steps  # steps of a block; an item does whole blocks, or equal parts of one
    assert share % loops.chunk == 0 or loops.chunk % share == 0
    assert loops_of(rows(32, 64) @ weight(64, 2048)).blocked is None


def test_weights_that_are_soon_done_with_are_prefetched() -> None:
    job = job_of(rows(32, 512) @ weight(512, 256))
    assert job.loops(TILE).prefetch is job.nest.schedule.vector
    assert job.loops(replace(TILE, rows=2)).prefetch is None  # few results to pay for asking
    text = job.render(TILE).text
    loads = re.findall(r"M_LOAD\(float, 16, (p\d+) \+ \((\d+)\)\)", text)
    prefetched = re.findall(r"M_AHEAD\((p\d+) \+ \((\d+)\)\)", text)
    assert [p for p, _ in prefetched] == [p for p, _ in loads]
    apart = {int(b) - int(a) for (_, a), (_, b) in zip(loads, prefetched, strict=True)}
    assert apart == {512 * 32}  # the same step of the next two vectors
    assert loops_of(rows(2048, 512) @ weight(512, 256)).prefetch is None  # read for many rows
    small = job_of(rows(32, 64) @ weight(64, 64)).render(TILE)
    assert "M_AHEAD" not in small.text  # they stay in the innermost cache


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


def networks() -> dict[str, Tensor]:
    """Everything above, mostly at sizes that no block divides; inputs are below 0."""
    gate, deep = Tensor.input("gate", (48,)), image("deep", 24)
    line = Tensor.input("line", (1, 13, 16)).permute((0, 2, 1))
    return {
        "padded": convolved(padding=1),
        "strided": convolved(padding=2, stride=(2, 3)),
        "dilated": convolved(padding=(2, 3), dilation=(2, 3)).relu(),
        "asymmetric": convolved(padding=((0, 2), (3, 1)), stride=(1, 2)),
        "far outside": convolved(padding=5),
        "groups": deep.conv2d(weight(32, 12, 3, 3), padding=1, groups=2),
        "depthwise": deep.conv2d(weight(24, 1, 5, 5), padding=2, stride=2, groups=24),
        "line": line.conv2d(weight(19, 16, 5), padding=2),
        "maximum": image().max_pool2d(3, 2, 1),
        "ends": image().max_pool2d(2, 1, ((0, 1), (1, 0))),
        "mean": image().avg_pool2d(3, 1, 1, count_include_pad=False),
        "narrow": rows(19, 16) @ weight(16, 5),
        "rolled": (rows(24, 45) @ weight(45, 64)).gelu(),
        "epilogue": (rows(19, 45) @ weight(45, 37)).gelu(),
        "gated": (rows(9, 48) * gate) @ weight(48, 40),
        "parts": normed(rows(1, 128), 768),
        "product": rows(17, 70) @ weight(70, 100),
        "blocks": rows(515, 8) @ weight(8, 70),
    }


@pytest.mark.opencl
def test_numbers_are_the_interpreters() -> None:
    check_numbers(networks(), mean=-1.0)


@pytest.mark.opencl
def test_numbers_are_the_same_without_buffers_to_spare() -> None:
    check_numbers({"y": biased()}, without_buffers_to_spare(), mean=-1.0)
