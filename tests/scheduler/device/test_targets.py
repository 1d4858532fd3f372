"""Kernels for GPUs and for images: the same numbers as everywhere, on whatever device is here."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.errors import ArtifactError
from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.run.memory import check_image_arguments
from scheduler import CustomKernel, custom_kernel
from scheduler.context import CompileContext
from scheduler.debug.kernel_table import source_of
from scheduler.device.spec import SPECS, DeviceSpec, Images
from scheduler.emit.artifact import Emitted
from scheduler.emit.limit_checks import check_limits
from scheduler.emit.schedule import share_images
from scheduler.errors import DeviceLimitError
from scheduler.ir import dtype as dt
from scheduler.kernelize.memory_plan import Lifetime
from scheduler.loops.images import Image
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.loops.jobs import close
from tests.scheduler.support.programs import emitted, loaded
from tests.scheduler.support.values import rng
from tests.support.built import example_models
from tests.support.selection import quick_cases
from tools import cli
from tools.describe.compilation import target_report

pytestmark = pytest.mark.opencl
Array = NDArray[Any]


def floats(*shape: int) -> Array:
    return (rng().standard_normal(shape) * 0.3).astype(np.float32)


def compiled(
    target: str | DeviceSpec,
    outputs: Mapping[str, Tensor],
    *writes: Tensor,
    precision: str = "fp32",
) -> Emitted:
    spec = SPECS[target] if isinstance(target, str) else target
    return emitted(outputs, writes, CompileContext(spec, precision=precision))


def sources(made: Emitted) -> list[str]:
    """Return the text of each kernel function."""
    names = dict.fromkeys(kernel["name"] for kernel in made.manifest["kernels"])
    return [source_of(made.manifest, name) for name in names]


def reads(made: Emitted) -> tuple[int, int]:
    """Return how many texels the kernels read, and how many of them behind a condition."""
    cost = target_report(made.manifest, "run", replace(SPECS["adreno"], target="test"))
    return cost.image_reads, cost.gated_reads


def network() -> dict[str, Tensor]:
    """What driving models are made of, small: convolutions of all kinds, gates, rows, attention."""
    y = X.conv2d(Tensor.weight(floats(24, 8, 3, 3)), Tensor.weight(floats(24)), padding=1).gelu()
    z = y.conv2d(Tensor.weight(floats(24, 1, 3, 3)), None, padding=1, groups=24) + y
    z = z * z.mean((2, 3), keepdim=True).conv2d(Tensor.weight(floats(24, 24, 1, 1))).sigmoid()
    u = z.conv2d(Tensor.weight(floats(32, 24, 3, 3)), None, stride=2, padding=1).relu()
    pooled = u.max_pool2d((3, 3), stride=2, padding=1)
    rows = pooled.reshape(32, 9).transpose(0, 1).layernorm()
    scores = (rows @ rows.transpose(0, 1)).softmax(-1)
    return {"rows": scores @ rows, "picture": u}


X = Tensor.input("x", (1, 8, 10, 12))


def checked(
    target: str | DeviceSpec,
    outputs: Mapping[str, Tensor],
    precision: str = "fp32",
    tolerance: float = 1e-5,
) -> Emitted:
    """Compile a program, run it on random inputs, and compare with the interpreter."""
    made = compiled(target, outputs, precision=precision)
    with loaded(made.manifest, made.data) as program:
        inputs = {t.name: floats(*t.shape) for t in program.inputs}
        got = program.run(inputs)
        for name, value in zip(outputs, evaluate(list(outputs.values()), inputs), strict=True):
            close(got[name], value, name, tolerance)
    return made


def images_of(made: Emitted) -> list[list[int]]:
    return [b["image"] for b in made.manifest["buffers"] if b["kind"] == "image"]


KINDS = [*((name, "fp32") for name in SPECS if name != "cpu"), ("adreno", "fp16")]
QUICK = [("adreno", "fp32"), ("gpu", "fp32")]


@pytest.mark.parametrize(
    "kind", quick_cases(KINDS, ("adreno", "fp32"), ("gpu", "fp32")), ids="-".join
)
def test_every_target_computes_the_same(
    kind: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")  # intermediates start as NaN, images too
    target, precision = kind
    made = checked(target, network(), precision, 1e-5 if precision == "fp32" else 2e-3)
    assert made.manifest["target"]["name"] == target
    assert ("read_imagef" in str(made.manifest["programs"])) is (SPECS[target].images is not None)
    images = {b["dtype"] for b in made.manifest["buffers"] if "image" in b}
    assert ("float16" in images) is (precision == "fp16")
    for kernel in made.manifest["kernels"]:
        code, text = kernel["code"], source_of(made.manifest, kernel["name"])
        assert code["image_reads"] == text.count("read_imagef(") >= code["gated_reads"]
        assert code["image_writes"] == text.count("write_imagef(")
        assert "? read_imagef(" not in text  # a branch, for most compilers


def test_work_items_beyond_the_last_do_nothing() -> None:
    state = Tensor.state("n", (300,))
    made = compiled("gpu", {}, state.assign(state + 1.0))
    (kernel,) = made.manifest["kernels"]
    assert kernel["local"] == [64, 1, 1]
    assert kernel["global"] == [128, 1, 1]  # 75 vectors of four
    with loaded(made.manifest, made.data) as program:
        for _ in range(3):
            program.run({})
        assert np.array_equal(program.state("n"), np.full(300, 3, np.float32))
    # A small launch has a small work-group.
    (kernel,) = compiled("gpu", {"y": Tensor.input("x", (24,)) * 2.0}).manifest["kernels"]
    assert (kernel["global"], kernel["local"]) == ([8, 1, 1], [8, 1, 1])


def test_vectors_at_multiples_of_their_size_are_whole() -> None:
    x = Tensor.input("x", (6, 8))
    shifted, halves = x[:, 3:7] + 1.0, Tensor.weight(floats(6, 8).astype(np.float16))
    cases = {  # (loads, stores) as vectors at a multiple of 16 bytes; not at one
        "whole": ({"y": x * 2.0}, (1, 1), (0, 0)),
        "shifted": ({"y": shifted}, (0, 1), (1, 0)),
        "rows of 6": ({"y": Tensor.input("x", (5, 6))[:, :4] * 2.0}, (0, 1), (1, 0)),
        "halves": ({"y": (x * halves.float()).cast(dt.float16)}, (2, 1), (0, 0)),
        "eight bytes an element": ({"y": (x * 99.0).cast(dt.int64)}, (1, 0), (0, 1)),
    }
    for name, (outputs, whole, other) in cases.items():
        (text,) = sources(checked("gpu", outputs))
        accesses = [re.findall(rf"M_{kind}\w*\(", text) for kind in ("LOAD", "STORE")]
        assert tuple(sum("WHOLE" in a for a in each) for each in accesses) == whole, name
        assert tuple(sum("WHOLE" not in a for a in each) for each in accesses) == other, name
        assert "_WHOLE" not in sources(compiled("cpu", outputs))[0]


def convolved(x: Tensor, channels: int, size: int = 3) -> Tensor:
    weight = Tensor.weight(floats(channels, x.shape[1], size, size))
    return x.conv2d(weight, padding=size // 2).contiguous()


def test_zero_padding_needs_no_condition_and_other_padding_does() -> None:
    inside = convolved(X, 8)
    plain = reads(compiled("adreno", {"y": convolved(inside, 8)}))
    assert plain[0] > 0 == plain[1]
    gated = checked("adreno", {"y": inside.max_pool2d((3, 3), stride=1, padding=1)})
    assert reads(gated)[1] > 0


def test_reads_that_may_be_outside_keep_their_sampler() -> None:
    bare = SPECS["adreno"]
    assert bare.images is not None
    assert bare.images.sampler_less
    row = replace(bare, images=replace(bare.images, sampler_less=False))
    inside = convolved(X, 16)
    two = inside.reshape(2, 8, 10, 12).contiguous()
    weights = [Tensor.weight(floats(8, channels, 3, 3)) for channels in (16, 8)]
    cases = {  # and whether some read of the picture may be outside
        "border": (inside.conv2d(weights[0], padding=1), True),
        "condition": (two.conv2d(weights[1], padding=1), True),
        "inside": (inside.conv2d(weights[0]), False),
    }
    for name, (y, outside) in cases.items():
        text = sources(checked(bare, {"y": y}))[-1]
        sampled, every = (text.count(word) for word in ("m_nearest", "read_imagef("))
        assert (sampled > 0) is outside, name
        assert sampled < every == sources(compiled(row, {"y": y}))[-1].count("m_nearest"), name


def test_a_batch_is_not_padded_by_its_neighbour() -> None:
    """Rows of a batch lie on each other: one above the first is the last of the picture before."""
    two = convolved(X, 16).reshape(2, 8, 10, 12).contiguous()
    made = checked("adreno", {"y": two.conv2d(Tensor.weight(floats(8, 8, 3, 3)), padding=1)})
    # The row is chosen where it is known: outside of the loop over columns.
    text = sources(made)[-1]
    (row,) = re.findall(r"\n    const int (\w+) = \w+ \? .* : -1;\n    for", text)
    assert text.count(f", {row}))") == reads(made)[1] > 0


def chain(*channels: int) -> Tensor:
    """Return a picture that is convolved to these numbers of channels, one after the other."""
    y = X
    for count in channels:
        y = convolved(y, count)
    return y


# Outputs, and the images between their kernels.
IMAGES: dict[str, tuple[Callable[[], dict[str, Tensor]], list[list[int]]]] = {
    "fills no texels, 6": (lambda: {"y": chain(6, 8)}, []),
    "fills no texels, 10": (lambda: {"y": chain(10, 8)}, []),
    "read across": (lambda: {"y": (x := chain(8))[:, 1:8] * 2.0, "z": x.sum(1)}, []),
    "used again": (lambda: {"y": chain(8, 8, 8, 8)}, [[24, 10], [24, 10]]),
}


@pytest.mark.parametrize("case", quick_cases(IMAGES, "read across", "used again"))
def test_what_is_an_image(case: str) -> None:
    outputs, images = IMAGES[case]
    made = checked("adreno", outputs())
    assert images_of(made) == images
    assert (made.manifest["arena_size"] == 0) is bool(images)


def test_images_alive_together_are_not_shared() -> None:
    rng = np.random.default_rng(2)
    nodes = [Tensor.input(f"x{i}", (4, 4)).node for i in range(40)]
    sizes = {n: Image(int(rng.integers(1, 3)), 4) for n in nodes}
    lives = {n: Lifetime(0, i, i + int(rng.integers(1, 6))) for i, n in enumerate(nodes)}
    owner = share_images(sizes, lives)
    shared = [(a, b) for a, b in combinations(nodes, 2) if owner[a] is owner[b]]
    assert all(sizes[a] == sizes[b] and lives[a].last < lives[b].first for a, b in shared)
    assert len(shared) > 20


def test_an_image_too_wide_is_split_elsewhere_or_a_buffer() -> None:
    spec = replace(SPECS["adreno"], images=Images(16, 16, 128, 64))
    made = checked(spec, {"y": chain(8, 8)})
    assert max([0, *(side for image in images_of(made) for side in image)]) <= 16


def test_float64_is_refused_where_the_target_has_none() -> None:
    x = Tensor.input("x", (4, 8), dt.float64)
    with pytest.raises(DeviceLimitError, match="float64, which target adreno") as caught:
        check_limits(compiled("adreno", {"y": x * 2}).manifest, SPECS["adreno"])
    assert caught.value.limit == "float64"
    check_limits(compiled("cpu", {"y": x * 2}).manifest, SPECS["cpu"])


def test_a_schedule_stays_with_its_device() -> None:
    context = CompileContext(SPECS["gpu"])
    plan = schedule({"y": (Tensor.input("x", (64,)) + 1.0).node}, context=context)
    assert plan.spec is SPECS["gpu"]
    assert [k.code.group for k in plan.lowered] == [16]


def test_every_limit_of_a_target_is_checked_by_name() -> None:
    adreno = SPECS["adreno"]
    manifest = compiled("adreno", network()).manifest
    check_limits(manifest, adreno)
    images = adreno.images
    assert images is not None
    broken: dict[str, dict[str, Any]] = {
        "allocation bytes": {"max_alloc_bytes": 64},
        "images": {"images": None},
        "image width": {"images": replace(images, max_width=2)},
        "image height": {"images": replace(images, max_height=2)},
        "images read": {"images": replace(images, max_reads=1)},
        "images written": {"images": replace(images, max_writes=0)},
        "work-group items": {"group": 2, "max_group": 2},
        "argument bytes": {"limits": replace(adreno.limits, pointer_bytes=256)},
    }
    for name, changes in broken.items():
        with pytest.raises(DeviceLimitError, match=f"{name}: expected at most") as caught:
            check_limits(manifest, replace(adreno, **changes))
        assert caught.value.limit == name
    source = "__local float t[9000]; /* __local float u[9000]; */ out0[0] = in0[0];"
    greedy = CustomKernel("greedy", source, [((1,), dt.float32)], 1)
    made = compiled("adreno", {"y": custom_kernel(greedy, Tensor.input("x", (1,)))[0]})
    problem = "local memory bytes: expected at most 32768 on target adreno, found 36000"
    with pytest.raises(DeviceLimitError, match=problem):
        check_limits(made.manifest, adreno)


def test_an_artifact_with_more_images_than_the_device_takes_is_refused() -> None:
    made, device = compiled("adreno", network()), choose_device(None)
    manifest = from_memory(made.manifest, made.data).manifest
    images = [b.image is not None for b in manifest.buffers]
    most = max(sum(images[a] for a in k.args[k.writes :]) for k in manifest.kernels)
    cases = {(most, 1): "", (most - 1, 1): f"reads {most}", (most, 0): "writes 1"}
    for takes, problem in cases.items():
        small = replace(device, info=replace(device.info, max_image_args=takes))
        message = f"kernel '.*' {problem} images, .* takes"
        with pytest.raises(ArtifactError, match=message) if problem else nullcontext():
            check_image_arguments(manifest, small)


@pytest.mark.slow
def test_a_command_prints_what_the_target_costs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = example_models("policy")["policy"]
    arguments = ["compile", str(model), "-o", str(tmp_path / "p.pkl"), "--target", "adreno"]
    assert cli.main([*arguments, "--no-binary", "--json"]) == 0
    (cost,) = json.loads(capsys.readouterr().out)["target"]
    assert cost["entry"] == "run"
    assert cost["kernels"] > 0
    assert cost["image_reads"] > cost["gated_reads"]
    assert cost["estimate_ms"] >= max(cost["arithmetic_ms"], cost["memory_ms"])
    assert cli.main([*arguments, "--no-binary"]) == 0
    assert f"image reads {cost['image_reads']} (1361)" in capsys.readouterr().out


def product_of(rows: int, depth: int, columns: int, dtype: str) -> tuple[Tensor, Tensor]:
    """Return a product with a bias, an activation and a residual, and one of two activations."""
    x = Tensor.input("x", (2, rows, depth))
    weight = Tensor.weight(floats(depth, columns).astype(dtype)).float()
    bias, residual = Tensor.weight(floats(columns)), Tensor.input("r", (2, rows, columns))
    first = (x @ weight + bias).relu() + residual
    other = Tensor.input("z", (2, columns, depth))
    return first, x @ other.transpose(1, 2)


PRODUCTS = [(37, 50, 68, "float32"), (90, 48, 132, "float16")]


@pytest.mark.parametrize("product", quick_cases(PRODUCTS, PRODUCTS[1]))
def test_products_in_local_memory(product: tuple[int, int, int, str]) -> None:
    spec = replace(SPECS["gpu"], cores=1)
    outputs = dict(zip("ab", product_of(*product), strict=True))
    made = checked(spec, outputs)
    texts, local = sources(made), re.compile(r"__local float \w+\[(\d+)\]\[(\d+)\]\[(\d+)\]")
    assert len(texts) == 2
    for text, kernel in zip(texts, made.manifest["kernels"], strict=True):
        assert text.count("barrier(") == 2
        declared = [map(int, shape) for shape in local.findall(text)]
        assert len(declared) == 2
        assert kernel["code"]["local_bytes"] == sum(4 * prod(shape) for shape in declared)
    check_limits(made.manifest, spec)


@pytest.mark.parametrize(("group", "tiled"), [(16, False), (36, False), (256, True)])
def test_tiles_fit_the_work_group(group: int, tiled: bool) -> None:
    y = Tensor.input("x", (72, 64)) @ Tensor.weight(floats(64, 128))
    made = checked(replace(SPECS["gpu"], cores=1, group=group), {"y": y}, tolerance=3e-6)
    assert ("barrier(" in str(made.manifest["programs"])) is tiled


def test_work_items_that_do_not_meet_have_no_barrier() -> None:
    """Two products side by side in one launch, and a kernel that is no product."""
    spec = replace(SPECS["gpu"], cores=1)
    x, w = Tensor.input("x", (64, 64)), Tensor.weight(floats(64, 64))
    made = compiled(spec, {"y": (x @ w).softmax(-1), "z": x.sum(0), "v": x.sum(1)})
    for text in sources(made):
        assert text.count("barrier(") in (0, 2)
        assert "launched" not in text or "barrier(" not in text
