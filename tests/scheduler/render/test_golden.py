"""Generated text of each kind of loop nest, and schedules of the example models, as golden text.

After a change that is meant: `pytest tests/scheduler/render --update-golden`, then read
the diff of tests/golden. What is written out many times is shown once, and of kernels that are not
of the kind what they do; a hash is of all text.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest

from scheduler import CustomKernel, custom_kernel
from scheduler.compile import compile_plain
from scheduler.context import FAST, STRICT, CompileContext
from scheduler.debug.kernel_table import kernel_tables
from scheduler.device.spec import SPECS, DeviceSpec
from scheduler.emit.schedule import Schedule
from scheduler.ir import dtype as dt
from scheduler.loops.pack import PackedWeight
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import plan_of, program_of, x
from tests.scheduler.support.values import Weights
from tests.support.built import example_models
from tests.support.selection import quick_cases

Golden = Callable[[str, str], None]
Built = Tensor | list[Tensor] | tuple[list[Tensor], list[Tensor]]
ONE_CORE = replace(SPECS["gpu"], cores=1)  # few work-items: larger tiles pay
SMALL_CACHE = replace(SPECS["cpu"], cores=1, l2_bytes=64 << 10)  # scores do not fit


@dataclass(frozen=True)
class Kind:
    """A kind of loop nest: `shows` matches what makes the text one of it; `name` is of the file."""

    name: str
    build: Callable[[Weights], Built]
    shows: str
    spec: DeviceSpec = SPECS["cpu"]
    precision: str = "fp32"
    numerics: str = FAST

    def plan(self) -> Schedule:
        built = self.build(Weights())
        outputs, writes = built if isinstance(built, tuple) else (built, [])
        named = [outputs] if isinstance(outputs, Tensor) else outputs
        return plan_of(
            {f"y{i}": t for i, t in enumerate(named)},
            writes,
            CompileContext(self.spec, precision=self.precision, numerics=self.numerics),
        )


def queue(_: Weights) -> tuple[list[Tensor], list[Tensor]]:
    state = Tensor.state("queue", (5, 8))
    push = state.assign(Tensor.cat([state[1:], x(1, 8)]))
    return [push[::4].reshape(1, 16)], [push]


def gather(_: Weights) -> Tensor:
    frame = Tensor.input("frame", (600,), dt.uint8)
    at = Tensor.input("at", (4, 32), dt.int32).clip(0, 599)
    return (frame.gather(at).cast(dt.int32) + 1 >> 1).cast(dt.uint8)


def results_of_one_nest(_: Weights) -> list[Tensor]:
    value = x(4, 32) * 2.0
    return [value, value.sum(1)]


def hand_written(_: Weights) -> Tensor:
    kernel = CustomKernel(
        "twice",
        "const int i = get_global_id(0);\nconst float value = 2.0f * in0[i];\nEPILOGUE(value, i);",
        [((4, 16), dt.float32)],
        64,
    )
    (y,) = custom_kernel(kernel, x(4, 16))
    return y.relu() + x(16, name="b")


def bands(_: Weights) -> Tensor:
    a = x(512, 16)
    return (a @ a.T).softmax() @ a.flip(0)


def winograd(w: Weights) -> Tensor:
    image = x(1, 32, 32, 32) * 0.5  # an input as it is would need a copy
    return image.conv2d(w(32, 32, 3, 3), padding=1).relu().sum(1)


def images(w: Weights, count: int = 1) -> Tensor:
    """Zeros around one picture are those outside the image; around several they are a condition."""
    stored = x(count, 4, 4, 4).conv2d(w(4, 4, 1, 1)).relu()
    return stored.conv2d(w(4, 4, 2, 2), padding=1)


AVX2, GPU, ADRENO = (SPECS[name] for name in ("cpu-avx2", "gpu", "adreno"))
KINDS = [
    Kind("map", lambda _: x(4, 64).exp() * 2.0 + x(64, name="b"), "m_exp"),
    Kind("tail", lambda _: x(37).relu() + 1.0, r"M_LOAD\(float, 16"),
    Kind("reduce_lanes", lambda _: x(3, 40).sum(1), "M_"),
    Kind("strict", lambda _: (x(3, 37) * x(37, name="b")).sum(1), "acc2", AVX2, numerics=STRICT),
    Kind("hoisted", lambda _: x(4, 32) - x(4, 32, name="b").max(1, keepdim=True), r"\bh\d+"),
    Kind("softmax", lambda _: x(4, 24).softmax(), "m_exp"),
    Kind("bands", bands, "int band", SMALL_CACHE),
    Kind("layernorm", lambda _: x(4, 64).layernorm(), "sqrt"),
    Kind("matmul", lambda w: x(4, 32) @ w(32, 48) + w(48), "acc12"),
    Kind("matmul_simt", lambda w: x(64, 32) @ w(32, 64), "acc", GPU),
    Kind("matmul_local", lambda w: x(64, 32) @ w(32, 64), "barrier", ONE_CORE),
    Kind("rolled", lambda w: (x(24, 32) @ w(32, 32)).gelu(), "opencl_unroll_hint"),
    Kind("narrow", lambda w: x(2, 8) @ w(8, 5), "float8"),
    Kind("scalar", lambda _: x(5, 3).T @ x(5, 3, name="b"), "1 lanes"),
    Kind("prefetch", lambda w: x(8, 512) @ w(512, 256), "M_AHEAD"),
    Kind("split_work", lambda w: x(1, 128).layernorm() @ w(128, 768), "part = item", AVX2),
    Kind("conv", lambda w: x(1, 2, 4, 16).conv2d(w(4, 2, 3, 3), w(4), padding=1).relu(), "acc"),
    Kind("conv_depthwise", lambda w: x(1, 4, 6, 20).conv2d(w(4, 1, 3, 3), groups=4), "16 lanes"),
    Kind("conv_strided", lambda w: x(1, 4, 9, 9).conv2d(w(8, 4, 3, 3), stride=2), "8 lanes"),
    Kind("winograd", winograd, "custom"),
    Kind("half_storage", lambda w: x(4, 32) @ w(32, 16), "half", precision="fp16"),
    Kind("transposed", lambda _: x(20, 36).T * 2.0, r"\.s0, r\d+\.s0, ", AVX2),
    Kind("images", images, "= read_imagef", ADRENO),
    Kind("images_gated", partial(images, count=2), ": -1;", ADRENO),
    Kind("concat", lambda _: Tensor.cat([x(4, 16).exp(), x(2, 16, name="b")])[1:5], "m_exp"),
    Kind("gather", gather, "in1"),
    Kind("queue", queue, "writes <ASSIGN"),
    Kind("results_of_one_nest", results_of_one_nest, "out1"),
    Kind("side_by_side", lambda _: [x(16).exp(), x(8, name="b") * 2.0], "item"),
    Kind("hand_written", hand_written, "epilogue_at"),
]


def abridged(text: str) -> str:
    """Return text in which blocks of lines that differ in numbers only are shown once.

    Blocks of blocks are, too: loops that are unrolled have others inside.
    """
    lines = text.splitlines()
    shapes = [re.sub(r"\d+", "#", line) for line in lines]
    found: list[str] = []
    at = 0
    while at < len(lines):
        best, times = 1, 1
        for size in range(1, 17):
            block, count = shapes[at : at + size], 1
            while shapes[at + count * size : at + (count + 1) * size] == block:
                count += 1
            if (count - 1) * size > (times - 1) * best:
                best, times = size, count
        if (times - 1) * best < 3:
            best, times = 1, 1
        found += lines[at : at + best]
        if times > 1:
            found.append(f"// the last {best}, {times - 1} times more")
        at += best * times
    return "\n".join(found) + "\n" if found == lines else abridged("\n".join(found))


def argument(given: object) -> str:
    if isinstance(given, PackedWeight):
        return f"packed {given.source.dtype.name}[{given.data.size}]"
    return repr(given)


def describe(plan: Schedule, shows: str) -> str:
    """Return the kernels of a schedule with their work, and all of those that match a pattern."""
    found = []
    for i, kernel in enumerate(plan.lowered):
        found.append(
            f"// kernel {i}: {kernel.kind}, {kernel.items} items of {max(kernel.lanes)} lanes, "
            f"{kernel.flops} flops, {kernel.kernel.bytes_moved} bytes, "
            f"text {hashlib.sha256(kernel.text.encode()).hexdigest()[:8]}\n"
            f"// writes {', '.join(map(repr, kernel.storage))}\n"
            f"// reads {', '.join(map(argument, kernel.arguments))}\n"
        )
        if re.search(shows, found[-1] + kernel.text):
            found[-1] += abridged(kernel.text)
    return "\n".join(found)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_kernel_text(kind: Kind, golden: Golden) -> None:
    text = describe(kind.plan(), kind.shows)
    assert "(__global" in text, "none is of this kind"
    golden(f"kernel_{kind.name}", text)


def test_blocks_are_shown_once() -> None:
    text = "a1;\n" + "".join(f"b{i};\n" * 5 + f"c{i};\n" for i in range(5)) + "d;\nd;\n"
    block = "b0;\n// the last 1, 4 times more\nc0;\n"
    assert abridged(text) == f"a1;\n{block}// the last 6, 4 times more\nd;\nd;\n"


@pytest.mark.parametrize("name", quick_cases(["vision", "policy"], "policy"))
def test_schedules_of_the_example_models(name: str, golden: Golden) -> None:
    """The kernel's name holds the hash of its text: a change of any kernel shows."""
    made = compile_plain(example_models(name)[name], target=SPECS["cpu"])
    (table,) = kernel_tables(made.manifest)
    totals = table.totals
    head = (
        f"{totals.launches} launches of {totals.kernels} kernels, {totals.flops} flops, "
        f"{totals.bytes_moved} bytes moved, arena {totals.arena_peak} of {totals.arena_unplanned}"
    )
    rows = [
        f"{k.number:3} {k.kernel:24} items {k.items:4} flops {k.flops:9} "
        f"bytes {k.bytes_moved:8}  {' '.join(k.origin) or '-'}"
        for k in table.launches
    ]
    golden(f"schedule_{name}", "\n".join([head, *rows]) + "\n")


def test_a_changed_kernel_changes_its_line() -> None:
    (first,) = program_of(x(8) * 2.0).table.launches
    (second,) = program_of(x(8) * 3.0).table.launches
    assert first.kernel != second.kernel
    assert first.flops == second.flops


def test_a_difference_says_how_to_update(golden: Golden, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        pytest.skip("golden files are being written")
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        golden("kernel_matmul", "something else\n")
