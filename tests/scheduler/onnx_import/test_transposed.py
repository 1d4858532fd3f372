"""Transposed convolution: any geometry against its definition, and no product with zeros."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import load

Array = NDArray[Any]
Geometry = dict[str, Any]


def definition(x: Array, w: Array, how: Geometry) -> Array:
    """Add each input, times the kernel, to the outputs it reaches: loops over taps and inputs."""
    rank, groups = x.ndim - 2, how["groups"]
    per_group = x.shape[1] // groups
    full = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(x.shape[2:], how["stride"], how["dilation"], w.shape[2:], strict=True)
    ]
    y = np.zeros((x.shape[0], groups, w.shape[1], *full))
    for g in range(groups):
        channels = slice(g * per_group, (g + 1) * per_group)
        for taps in product(*(range(k) for k in w.shape[2:])):
            tap: Any = (..., *taps)
            added = np.einsum("nc...,co->no...", x[:, channels], w[channels][tap])
            reached: Any = tuple(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, n, s in zip(
                    taps, how["dilation"], x.shape[2:], how["stride"], strict=True
                )
            )
            y[:, g][(slice(None), slice(None), *reached)] += added
    y = y.reshape(x.shape[0], groups * w.shape[1], *full)
    for axis, ((before, after), extra) in enumerate(
        zip(how["padding"], how["output_padding"], strict=True)
    ):
        y = np.moveaxis(y, 2 + axis, 0)
        y = np.concatenate([y, np.zeros((extra, *y.shape[1:]))])
        y = np.moveaxis(y[before : len(y) - after], 0, 2 + axis)
    assert y.ndim == 2 + rank
    return y


def random_case(seed: int) -> tuple[Array, Array, Geometry]:
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 3))
    stride = rng.integers(1, 5, rank).tolist()
    dilation = rng.integers(1, 4, rank).tolist()
    kernel = rng.integers(1, 6, rank).tolist()
    size = rng.integers(1, 6, rank).tolist()
    padding = []
    for n, s, d, k in zip(size, stride, dilation, kernel, strict=True):
        room = (n - 1) * s + d * (k - 1)  # one output stays
        before = int(rng.integers(0, min(room, 6) + 1))
        padding.append((before, int(rng.integers(0, min(room - before, 6) + 1))))
    groups = int(rng.choice([1, 2]))
    x = rng.standard_normal((2, 2 * groups, *size)).astype(np.float32)
    w = rng.standard_normal((2 * groups, 3, *kernel)).astype(np.float32)
    extra = [int(rng.integers(0, s)) for s in stride]
    return (
        x,
        w,
        {
            "stride": stride,
            "padding": padding,
            "output_padding": extra,
            "dilation": dilation,
            "groups": groups,
        },
    )


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_any_geometry_is_what_the_definition_says(first: int) -> None:
    for seed in range(first, first + 50):
        x, w, how = random_case(seed)
        found = Tensor.input("x", x.shape).conv_transpose2d(Tensor.weight(w), **how)
        expected = definition(x, w, how)
        assert found.shape == expected.shape, (seed, how)
        np.testing.assert_allclose(
            found.interp({"x": x}), expected, rtol=1e-4, atol=1e-4, err_msg=f"{seed}: {how}"
        )


def products(channels: int, kernel: int, stride: int, pad: int) -> tuple[int, int]:
    """Return multiply-adds of the sums in a schedule of (1, channels, 9, 16), and launches."""
    weight = Tensor.weight(np.ones((channels, 16, kernel, kernel), np.float32))
    y = Tensor.input("x", (1, channels, 9, 16)).conv_transpose2d(weight, stride=stride, padding=pad)
    plan = schedule({"y": y.node})
    return sum(k.flops for k in plan.lowered) // 2, len(plan.launches)


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "pad", "launches"),
    [
        (32, 2, 2, 0, 1),
        (32, 4, 2, 1, 5),
        (32, 4, 2, 0, 1),
        (32, 3, 2, 1, 5),
        (32, 8, 4, 0, 1),
    ],
)
def test_no_product_with_inserted_zeros(
    channels: int, kernel: int, stride: int, pad: int, launches: int
) -> None:
    found, launched = products(channels, kernel, stride, pad)
    needed = 16 * channels * kernel**2 * 9 * 16
    # Indices and the parts that padding cuts off: far from the stride^2 of inserted zeros.
    assert 0.5 * needed < found < 1.3 * needed
    assert launched == launches


def test_geometry_that_leaves_nothing_is_refused() -> None:
    x, weight = Tensor.input("x", (1, 2, 1, 1)), Tensor.weight(np.ones((2, 2, 2, 2), np.float32))
    with pytest.raises(ModelError, match="padding 1, 1 leaves nothing"):
        x.conv_transpose2d(weight, stride=2, padding=1)
    with pytest.raises(ModelError, match="do not fit groups=3"):
        x.conv_transpose2d(weight, groups=3)


@pytest.mark.opencl
def test_compiled_phases_give_what_the_interpreter_gives() -> None:
    rng, channels = np.random.default_rng(3), 16
    x = rng.standard_normal((1, channels, 5, 6)).astype(np.float32)
    image = Tensor.input("x", x.shape)
    outputs = {}
    for name, (kernel, stride, pads) in {
        "aligned": (4, 2, ((2, 0), (0, 1))),
        "shifted": (4, 2, ((1, 1), (1, 2))),
        "uneven": (3, 2, ((1, 0), (0, 0))),
        "sparse": (2, 3, ((0, 0), (1, 1))),
    }.items():
        weight = Tensor.weight(
            rng.standard_normal((channels, 3, kernel, kernel)).astype(np.float32)
        )
        outputs[name] = image.conv_transpose2d(weight, stride=stride, padding=pads)
    with load(outputs) as program:
        got = program.run({"x": x})
        for name, tensor in outputs.items():
            want = tensor.interp({"x": x})
            assert np.abs(got[name] - want).max() <= 2e-6 * np.abs(want).max(), name
