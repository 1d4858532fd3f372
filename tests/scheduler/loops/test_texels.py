"""Kernels that read texels: their tiles, the layout that readers ask for, and their numbers."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest

from scheduler.context import CompileContext
from scheduler.device.spec import SPECS
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.loops.simt import Window, texel_tile
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import check_numbers
from tests.scheduler.support.programs import plan_of
from tests.scheduler.support.values import Weights

ADRENO = SPECS["adreno"]  # 512 multiply-adds a clock, 32 registers
CONTEXT = CompileContext(ADRENO)
_numbers = count()


@pytest.mark.parametrize(
    ("vectors", "rows", "items", "stride", "tile"),
    [
        # 8 rows: 128 products and 12 reads of 4 slots and 14 for the loop, in 2 turns: 380.
        # 4 rows: 64 + 32 + 14 in 4 turns: 440.
        (64, 128, 8192, 0, (1, 8, 1)),
        # 8 rows leave one turn, which waits for 64: 254. 4 rows in 2 turns: 220.
        (128, 32, 4096, 0, (1, 4, 1)),
        # 12 accumulators are the largest tile of two vectors: 12 + 14 + 4 of 32 registers.
        (2, 6, 1 << 20, 0, (2, 6, 1)),
        # Three taps along 8 rows read 10 texels of values, not 24, and 12 of weights.
        (64, 64, 1 << 16, 1, (1, 8, 3)),
        # Rows two texels apart: 8 of them need 17, and 8 + 17 + 4 + 4 registers; 6 need 13.
        (1, 48, 1 << 16, 2, (1, 6, 3)),
        # Nothing divides a prime number of rows.
        (1, 97, 1 << 16, 0, (1, 1, 1)),
    ],
)
def test_tiles_are_those_of_the_fewest_slots(
    vectors: int, rows: int, items: int, stride: int, tile: tuple[int, int, int]
) -> None:
    window = Window(ixs.new_range(3, "kx"), stride) if stride else None
    assert texel_tile(vectors, rows, items, ADRENO, window) == tile


def x(*shape: int) -> Tensor:
    """Return an input of a name of its own, as all cases are one program."""
    return Tensor.input(f"x{next(_numbers)}", shape, dt.float32)


def window(w: Weights) -> Tensor:
    stored = x(1, 8, 32, 64).conv2d(w(16, 8, 1, 1)).relu()
    return stored.conv2d(w(16, 16, 3, 3), padding=1)


def multiplier(w: Weights) -> Tensor:
    stored = x(1, 16, 8, 16).conv2d(w(16, 16, 1, 1)).relu()
    twice = stored.conv2d(w(32, 1, 3, 3), padding=1, groups=16).relu()
    return twice.conv2d(w(8, 32, 1, 1))


def frames(w: Weights) -> Tensor:
    """Return a convolution of bytes of two histories, each of two frames of 6 planes."""
    histories = [Tensor.input(n, (2, 6, 32, 64), dt.uint8) for n in ("road", "wide")]
    planes = [h.reshape(1, 12, 32, 64).cast(dt.float32) for h in histories]
    return ((Tensor.cat(planes, 1) - 127.5) / 63.75).conv2d(w(32, 24, 3, 3), stride=2, padding=1)


def turned(_: Weights) -> Tensor:
    """Return products over a range of which one operand is a transposition."""
    a = x(24, 8, 17).transpose(1, 2).reshape(24, 136)
    return a[:8] @ a[8:].T


def padded(w: Weights) -> Tensor:
    """Return a window over two pictures whose channels became those of one."""
    stored = x(2, 4, 8, 8).conv2d(w(4, 4, 1, 1)).relu()
    return stored.reshape(1, 8, 8, 8).conv2d(w(8, 8, 3, 3), padding=1)


def copied(_: Weights) -> Tensor:
    new = Tensor.input("new", (1, 96), dt.uint8)
    return Tensor.cat([Tensor.input("old", (4, 96), dt.uint8)[1:], new])


def nested(w: Weights) -> Tensor:
    """Return a sum of a layer's results: each work-item would compute the layer again."""
    value = x(1, 512)
    once = (value @ w(512, 16)).relu() @ w(16, 1)
    return value @ w(512, 64) + once * w(64)


def short_sum(w: Weights) -> Tensor:
    """Return rows with one term for all of them, which takes two steps."""
    return x(24, 256) @ w(256, 512) + x(1, 2) @ w(2, 512)


def rows_of(columns: int) -> Callable[[Weights], Tensor]:
    """Return a product that reads an input, which is a buffer."""
    return lambda w: x(24, columns) @ w(columns, 32)


@dataclass(frozen=True)
class Case:
    """Tensors, how many launches they are, and what their code has and has not."""

    build: Callable[[Weights], Tensor]
    launches: int
    shows: str = ""
    never: str = ""


CASES = {
    "window": Case(window, 2, r"i\d+ \* 4 \+ 3|i\d+ < 3"),
    "multiplier": Case(multiplier, 3, r"\.s0011", r"in\d+\[|\.s\d, \w+\.s"),
    "frames": Case(frames, 2, r"M_LOAD_WHOLE\(uchar, 4(.|\n)*write_imagef(.|\n)*read_imagef"),
    "turned": Case(turned, 1, never=r"% 17|% 8u? \* 17"),
    "padded": Case(padded, 2, never=r"i\d+ [^;]*% "),
    "copied": Case(copied, 1, r"M_STORE_WHOLE\(uchar, 16"),
    "nested": Case(nested, 2),
    "fours": Case(rows_of(64), 1, r"= M_LOAD_WHOLE\(float, 4(.|\n)*\.s3\), "),
    "no_fours": Case(rows_of(66), 1, r"in0(.|\n)*p\d+\[1\]", "M_LOAD_WHOLE"),
    "short_sum": Case(short_sum, 1, r"item\) / "),
}


def plan(case: Case) -> Schedule:
    return plan_of({"y": case.build(Weights())}, (), CONTEXT)


@pytest.mark.parametrize("name", CASES)
def test_what_code_has_and_has_not(name: str) -> None:
    case = CASES[name]
    texts = [k.text for k in plan(case).lowered]
    text = "\n".join(texts)
    assert len(texts) == case.launches
    assert re.search(case.shows, text), text
    assert not case.never or not re.search(case.never, text), text


def test_halves_are_read_as_floats_are() -> None:
    """Texels of halves are converted when they are read, so nothing else differs."""
    found = []
    for precision in ("fp32", "fp16"):
        context = CompileContext(ADRENO, precision=precision)
        lowered = plan_of({"y": frames(Weights())}, (), context).lowered
        found.append([k.text.count("read_imagef(") for k in lowered])
    assert found[0] == found[1]


def test_numbers_are_those_of_the_interpreter() -> None:
    check_numbers({name: case.build(Weights()) for name, case in CASES.items()}, CONTEXT)
