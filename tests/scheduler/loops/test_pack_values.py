"""Operands of contractions of two values are packed where lanes would run across the sums."""

import functools
from collections.abc import Callable

import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.ir.ops import Op
from scheduler.lower import LoweredKernel
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import check_apart, check_numbers, weight
from tests.scheduler.support.programs import plan_of, x
from tests.support.selection import quick_cases

TOKENS, HEADS, WIDTH = 99, 3, 36


@functools.cache
def heads() -> list[Tensor]:
    """Queries, keys and values as a projection leaves them: all features of a token in a row."""
    rows = x(1, TOKENS, 3 * HEADS * WIDTH, name="rows")
    split = rows.reshape(1, TOKENS, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
    return [split[i] for i in range(3)]


def scores() -> Tensor:
    q, k, _ = heads()
    return (q * 0.125) @ k.permute(0, 1, 3, 2)


def attention() -> Tensor:
    return scores().softmax() @ heads()[2]


def masked() -> Tensor:
    """The operand is computed while it is packed, its padding too."""
    q, k, _ = heads()
    return q @ (k.exp()[:, :, 3:].pad(((0, 0), (0, 0), (1, 2), (0, 0)))).permute(0, 1, 3, 2)


def batched() -> Tensor:
    """Both factors move along two batch axes; the copy does, too."""
    a, b = x(2, 5, 64, 32, name="a"), x(2, 5, 64, 32, name="b")
    return (a @ b.permute(0, 1, 3, 2)).relu()


def squared() -> Tensor:
    """Both factors are one value."""
    a = x(192, 40, name="c")
    return a @ a.T


PACKED = (scores, attention, masked, batched, squared)


def lowered(tensor: Tensor, row: str = "cpu") -> tuple[LoweredKernel, ...]:
    return plan_of({"y": tensor}, context=CompileContext(SPECS[row])).lowered


def copies(tensor: Tensor, row: str = "cpu") -> list[LoweredKernel]:
    return [k for k in lowered(tensor, row) if k.kernel.targets[0].op is Op.PACK]


@pytest.mark.parametrize("tensor", PACKED, ids=lambda t: t.__name__)
def test_the_reader_loads_vectors_of_the_copy(tensor: Callable[[], Tensor]) -> None:
    kernels = lowered(tensor())
    (copy,) = [k for k in kernels if k.kernel.targets[0].op is Op.PACK]
    (reader,) = [k for k in kernels if copy.kernel.targets[0] in k.kernel.reads]
    loops = reader.nests[0].schedule
    assert not loops.across
    assert loops.contracts


def test_what_scales_the_other_operand_is_multiplied_into_the_copy() -> None:
    kernels = lowered(scores())
    assert ["0x1.0000000000000p-3f" in k.text for k in kernels] == [True, False]


APART = {
    "lanes run over b as it is": lambda: x(64, 96, name="a") @ x(96, 64, name="b"),
    "less work than a launch": lambda: x(16, 16, name="a") @ x(24, 16, name="b").T,
    "few uses of each element": lambda: x(8, 512, name="a") @ x(512, 512, name="b").T,
    "the sum is long": lambda: x(64, 512, name="a") @ x(64, 512, name="b").T,
    "weights are packed already": lambda: x(64, 96) @ weight(64, 96).T,
}


@pytest.mark.parametrize("reason", APART)
def test_nothing_is_packed_where(reason: str) -> None:
    assert copies(APART[reason]()) == []


def test_neighbours_on_gpus_share_loads_in_other_ways() -> None:
    assert [len(copies(scores(), row)) for row in ("gpu", "adreno", "cpu-avx2")] == [0, 0, 1]


@pytest.mark.opencl
@pytest.mark.parametrize(
    "target", quick_cases([r for r in sorted(SPECS) if r.startswith("cpu")], "cpu")
)
def test_numbers_are_those_of_the_interpreter(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")  # what is not written is NaN
    check_numbers({t.__name__: t() for t in PACKED[:3]}, CompileContext(SPECS[target]))
    check_numbers({t.__name__: t() for t in PACKED[3:]}, CompileContext(SPECS[target]))


@pytest.mark.opencl
@pytest.mark.parametrize(
    "shape", quick_cases([(16, 16), (17, 16), (197, 36), (3, 40, 21), (64, 20)], (17, 16))
)
def test_transposed_tiles_move_each_element(shape: tuple[int, ...]) -> None:
    """Ends of both ranges overlap the block before; other rows of the table have other lanes."""
    turned = x(*shape).permute(*range(len(shape) - 2), -1, -2) * 2.0 + 1.0
    check_apart((turned, CompileContext(SPECS[row])) for row in ("cpu", "cpu-avx2", "cpu-neon"))
