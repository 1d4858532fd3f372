"""The register tile, and the steps of work-items: each result is computed, and by one of them."""

import re
from collections.abc import Callable, Iterator
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.device.spec import DEFAULT, SPECS
from scheduler.device.tuned_table import Choice
from scheduler.ir import index as ixs
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.loops.place import Place, PlacedBody
from scheduler.loops.tile import Operands, contraction_tile, operands_of, ranked_tiles, window_rows
from scheduler.loops.vector import LoadInfo
from scheduler.passes.winograd_kernel import STACK_BYTES, Shape, choose_blocks, fits, kernel_source
from scheduler.render.kernel_code import KernelCode
from scheduler.tensor.tensor import Tensor
from scheduler.tuning.variants import Job
from tests.scheduler.loops.jobs import CPUS, choices, job_of, weight

# Products of vectors that one core computes at a time.
IN_FLIGHT = DEFAULT.loops.issue * DEFAULT.loops.latency
extents = st.tuples(st.integers(1, 64), st.integers(1, 300), st.integers(1, 600))


@given(extents, st.sampled_from(CPUS))
def test_a_tile_fits_the_registers_and_hides_the_latency(
    extent: tuple[int, int, int], row: str
) -> None:
    vectors, rows, steps = extent
    v, r = contraction_tile(vectors, rows, steps, SPECS[row].lanes, SPECS[row])
    assert 1 <= v <= vectors
    assert 1 <= r <= rows
    # Beside the accumulators: one for each row or each vector, whichever are fewer, and one more.
    assert v * r + min(v, r) + 1 <= SPECS[row].vector_registers
    if rows >= 2 * IN_FLIGHT and steps >= IN_FLIGHT:  # there are enough results
        assert v * r >= IN_FLIGHT


@pytest.mark.parametrize(
    ("extent", "vectors", "rows", "results"),
    [
        ((48, 128, 256), (2, 3), (7, 10), (1, 99)),  # a product of 128 rows by 768 columns
        ((4, 90 * 160, 9 * 64), (2, 3), (1, 99), (16, 24)),  # a convolution
        ((8, 1, 512), (4, 4), (1, 1), (4, 4)),  # a row alone
        ((1, 64, 64), (1, 1), (12, 99), (12, 99)),  # few columns
    ],
)
def test_tiles_are_what_was_measured_to_be_fast(
    extent: tuple[int, int, int],
    vectors: tuple[int, int],
    rows: tuple[int, int],
    results: tuple[int, int],
) -> None:
    v, r = contraction_tile(*extent, 16, DEFAULT)
    for found, (least, most) in ((v, vectors), (r, rows), (v * r, results)):
        assert least <= found <= most


def test_rows_that_share_a_set_of_the_cache_are_not_too_many() -> None:
    """Rows whole pages apart all lie in one set: more than its ways would push each other out."""
    ways = SPECS["cpu"].l1_bytes // 4096
    _, free = contraction_tile(1, 300, 256, 16, DEFAULT)
    _, apart = contraction_tile(1, 300, 256, 16, DEFAULT, Operands(4096 + 64))
    _, half = contraction_tile(1, 300, 256, 16, DEFAULT, Operands(3 * 2048))
    _, shared = contraction_tile(1, 300, 256, 16, DEFAULT, Operands(2 * 4096))
    assert free == apart > half > shared
    assert shared <= ways + 2


def test_scalars_that_wait_for_a_later_tap_take_registers() -> None:
    """Unless multiply-adds read scalars from memory, as on the row `cpu`."""
    avx2 = SPECS["cpu-avx2"]
    v, alone = contraction_tile(8, 128, 216, 8, avx2)
    w, shared = contraction_tile(8, 128, 216, 8, avx2, Operands(8, shared=True))
    assert v == w == 2
    assert shared < alone
    assert 2 * shared + 2 + shared + shared - 1 <= avx2.vector_registers + 2
    free = contraction_tile(8, 128, 216, 16, SPECS["cpu"])
    assert contraction_tile(8, 128, 216, 16, SPECS["cpu"], Operands(8, shared=True)) == free


@pytest.mark.parametrize("operands", [Operands(48, shared=True), Operands(48, work=5)])
def test_scalars_of_one_vector_take_registers_where_they_are_no_operands(
    operands: Operands,
) -> None:
    """They are computed, or several taps use them: 20 and 27 rows took twice as long."""
    assert contraction_tile(1, 160, 108, 16, SPECS["cpu"], Operands(48)) == (1, 27)
    assert contraction_tile(1, 160, 108, 16, SPECS["cpu"], operands) == (1, 16)


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "shared"),
    [
        (3, 1, 1, True),  # x[p + t]: row 1's first tap is row 0's second
        (3, 2, 1, True),  # x[2p + t]: row 1's first is row 0's third
        (3, 3, 1, False),
        (2, 2, 1, False),
        (3, 1, 2, True),  # x[p + 2t]: row 2's first is row 0's second
        (3, 3, 2, False),  # x[3p + 2t]: rows 2 apart differ by 6, taps by 4 at most
        (1, 1, 1, False),
    ],
)
def test_rows_that_read_one_element_share_it(
    kernel: int, stride: int, dilation: int, shared: bool
) -> None:
    row, tap = ixs.new_range(16, "p"), ixs.new_range(kernel, "t")
    offset = ixs.add(ixs.mul(ixs.of(row), stride), ixs.mul(ixs.of(tap), dilation))
    source = Tensor.input("x", (64,)).node
    load = make(Op.LOAD, source.dtype, (source,), Place((offset,), (), 0.0, offset))
    body = PlacedBody((row,), make(Op.ACCUMULATE, source.dtype, (load,), (Op.ADD, (tap,))), ())
    info = LoadInfo(load, False, kernel, frozenset())
    found = operands_of(body, (ixs.new_range(8, "c"), row), [info], [tap])
    assert found == Operands(4 * stride, shared=shared)


@given(st.integers(1, 16), st.integers(1, 40), st.integers(1, 64))
def test_more_work_never_costs_less(vectors: int, rows: int, steps: int) -> None:
    def cost(vectors: int, rows: int, steps: int) -> float:
        return ranked_tiles(vectors, rows, steps, 16, DEFAULT)[0][0]

    least = cost(vectors, rows, steps)
    assert cost(vectors, rows, steps + 1) > least
    assert cost(vectors + 1, rows, steps) >= least
    assert cost(vectors, rows + 1, steps) >= least


@given(extents)
def test_ranked_tiles_are_different_and_in_order_and_fewer_with_fewer_registers(
    extent: tuple[int, int, int],
) -> None:
    found = {}
    for row in CPUS:
        ranked = ranked_tiles(*extent, 16, SPECS[row])
        assert ranked == sorted(ranked)
        found[row] = {(v, r) for _, v, r in ranked}
        assert len(found[row]) == len(ranked)
    assert found["cpu-avx2"] <= found["cpu"]


@given(st.integers(1, 400), st.integers(1, 16))
def test_the_rows_of_a_window_divide_the_range_where_they_can(rows: int, most: int) -> None:
    r = window_rows(rows, most)
    assert 1 <= r <= min(rows, most)
    if rows > most and any(rows % d == 0 for d in range(-(-most // 2), most + 1)):
        assert rows % r == 0
        assert all(rows % d for d in range(r + 1, most + 1))


def product(rows: int, inner: int, columns: int) -> Tensor:
    return Tensor.input("x", (rows, inner)) @ weight(inner, columns)


def window(rows: int, inner: int, columns: int) -> Tensor:
    image = Tensor.input("x", (1, 3, rows, columns)).permute((0, 2, 3, 1))
    turned = image.permute((0, 1, 3, 2))
    return turned.conv2d(weight(rows, 1, 3, 3), padding=inner % 3 + 1, groups=rows)


KINDS: dict[str, Callable[[int, int, int], Tensor]] = {
    "product": product,
    "rolled": lambda m, k, n: product(m, k, n).gelu(),
    "joined rows": lambda m, k, n: Tensor.input("x", (m, 2, k)) @ weight(k, n),
    "stream": lambda m, k, n: Tensor.input("x", (m, n)) * float(k),
    "hoisted": lambda m, k, n: (product(m, k, n) * 0.5).softmax(-1),
    "window": window,
}


@pytest.mark.parametrize("row", CPUS)
def test_rows_of_a_hoisted_sum_share_what_is_read_below_it(row: str) -> None:
    """softmax(x) @ v: 512 rows are enough to share v's vectors, 16 are left to the cores."""
    v = weight(2048, 64)
    many = job_of(Tensor.input("x", (512, 2048)).softmax(-1) @ v, row).nest.schedule
    few = job_of(Tensor.input("x", (16, 2048)).softmax(-1) @ v, row).nest.schedule
    assert many.tiles[0].unroll > 1
    assert few.tiles[0].unroll == 1
    assert few.items == 16


def test_scalars_that_are_computed_make_more_vectors_pay() -> None:
    """Each is computed again for the next vectors of the same row."""
    avx2 = SPECS["cpu-avx2"]
    v, _ = contraction_tile(8, 128, 256, 8, avx2)
    computed, _ = contraction_tile(8, 128, 256, 8, avx2, Operands(work=4))
    assert computed > v


def stores(rendered: KernelCode, item: int) -> Iterator[tuple[int, int]]:
    """Yield (first element, elements) of each store of a work-item: its text, run as Python.

    Loops and ints stay, stores are noted, all else is left out.
    """
    lines = ["out = 0"]
    depth = 0
    for text in rendered.text.splitlines()[2:-1]:
        line = text.strip()
        loop = re.search(r"for \(int (\w+) = (.+?); \1 < (.+?); \1\+\+\) \{$", line)
        number = re.fullmatch(r"const int (\w+) = (.+);", line)
        pointer = re.fullmatch(r"__global float\* const (\w+) = (.+);", line)
        vector = re.fullmatch(r"M_STORE\(float, (\d+), .+?, (p\d+|out) \+ \((.+?)\)\);", line)
        single = re.match(r"(p\d+|out)\[(.+?)\] = ", line)
        made = "pass"
        if line == "}":
            depth -= 1
            continue
        if loop:
            made = f"for {loop[1]} in range({_python(loop[2])}, {_python(loop[3])}):"
        elif number or pointer:
            found = number or pointer
            assert found is not None
            made = f"{found[1]} = {_python(found[2])}"
        elif vector:
            made = f"noted.append(({vector[2]} + {_python(vector[3])}, {vector[1]}))"
        elif single:
            made = f"noted.append(({single[1]} + {_python(single[2])}, 1))"
        lines.append("  " * depth + made)
        if loop:
            depth += 1
            lines.append("  " * depth + "pass")
    noted: list[tuple[int, int]] = []
    source = "\n".join(lines)
    exec(source, {"get_global_id": lambda _: item, "noted": noted})  # noqa: S102  # of our compiler
    yield from noted


def _python(expression: str) -> str:
    """Return an index of C, without negative operands of divisions, as Python has it."""
    bare = expression[1:-1] if expression.startswith("(") and expression[-1] == ")" else expression
    choice = re.fullmatch(r"(.+?) ([<>]) (.+?) \? (.+?) : (.+)", bare)
    if choice:
        a, sign, b, yes, no = choice.groups()
        expression = f"({yes} if {a} {sign} {b} else {no})"
    return expression.replace("/", "//")


def check_steps(job: Job, choice: Choice) -> None:
    loops = job.loops(choice)
    rendered = job.render(choice)
    size = prod(tile.atom.size for tile in loops.tiles)
    written = np.zeros(size, int)
    by_item = []
    for item in range(rendered.items):
        mine = list(stores(rendered, item))
        assert mine, f"item {item} of {rendered.items} does nothing"
        by_item.append(mine)
        for first, count in mine:
            assert 0 <= first <= first + count <= size
            written[first : first + count] += 1
    assert written.min() == 1, written
    blocks = prod(t.outer * t.unroll * min(t.lanes, t.atom.size) for t in loops.tiles)
    assert written.sum() == blocks  # a step done twice would be more
    if blocks == size:
        assert written.max() == 1


@settings(max_examples=40)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 40),
    st.integers(1, 8),
    st.integers(2, 70),
    choices(),
)
def test_every_step_is_done_by_one_item(
    kind: str, rows: int, inner: int, columns: int, choice: Choice
) -> None:
    check_steps(job_of(KINDS[kind](rows, inner, columns)), choice)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_parts_of_a_long_row_are_done_once_each(rows: int) -> None:
    x = Tensor.input("x", (rows, 64))
    job = job_of(x.layernorm() @ weight(64, 4096 // rows))
    assert 1 < job.nest.schedule.items <= DEFAULT.loops.wanted_parts
    assert job.nest.schedule.parts > 1
    check_steps(job, Choice())


@pytest.mark.parametrize("row", CPUS)
@pytest.mark.parametrize("channels", [(512,), (2048,), (2048,) * 4, (2048,) * 20])
def test_arrays_of_a_fast_convolution_fit_the_stack(channels: tuple[int, ...], row: str) -> None:
    """Of many joined inputs one register tile fills more than the cache."""
    spec = SPECS[row]
    shape = Shape(1, 28, 28, channels, 32, 1, 1, 28, 28)
    assert fits(shape, spec) is (sum(channels) < 2048 * 20)
    if fits(shape, spec):
        blocks = choose_blocks(shape, spec)
        text = kernel_source(shape, blocks)
        found = [int(n) for n in re.findall(r" [vm]\[(\d+)\]", text.split(";")[0])]
        assert len(found) == 2
        assert sum(found) * blocks.lanes * 4 <= STACK_BYTES * 1.05
