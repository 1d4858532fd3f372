"""Every name that Tensor promises, against numpy: by the interpreter, and run on the device."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from tests.scheduler.support.programs import program_of

Array = NDArray[Any]

F = np.random.default_rng(3).uniform(0.2, 2.0, (3, 4)).astype(np.float32)
G = np.random.default_rng(4).uniform(-2.0, 2.0, (3, 4)).astype(np.float32)
I = np.array([[7, -7, 5, 3], [0, 2, -1, 9], [4, -4, 8, 1]], np.int32)  # noqa: E741  # the ints
D = np.array([[2, 3, -2, -3], [5, -4, 3, 2], [3, 3, -5, 1]], np.int32)
IMAGE = np.random.default_rng(5).standard_normal((2, 4, 6, 5)).astype(np.float32)
KERNEL = np.random.default_rng(6).standard_normal((6, 2, 3, 3)).astype(np.float32)
WIDE = np.random.default_rng(8).uniform(-1.0, 1.0, (5, 3)).astype(np.float32)
BIAS = np.random.default_rng(7).standard_normal(6).astype(np.float32)


def np_conv(x: Array, w: Array, stride: int = 1, dilation: int = 1, groups: int = 1) -> Array:
    """Convolve by the definition: windows times weights, group by group."""
    spans = [dilation * (k - 1) + 1 for k in w.shape[2:]]
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), spans, (2, 3))
    seen = seen[:, :, ::stride, ::stride, ::dilation, ::dilation]
    parts = zip(np.split(seen, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", s, k) for s, k in parts], 1)


def np_conv_transpose(x: Array, w: Array, stride: int) -> Array:
    n, _, height, width = x.shape
    _, out, kh, kw = w.shape
    result = np.zeros((n, out, (height - 1) * stride + kh, (width - 1) * stride + kw))
    for i in range(height):
        for j in range(width):
            part = np.einsum("nc,cohw->nohw", x[:, :, i, j], w)
            result[:, :, i * stride : i * stride + kh, j * stride : j * stride + kw] += part
    return result


def np_pool(x: Array, size: int, reduce: Callable[..., Array]) -> Array:
    seen = np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::size, ::size]
    return np.asarray(reduce(seen, axis=(4, 5)))


def np_softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def np_erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf)(x.astype(np.float64)))


def t(x: Array) -> Tensor:
    return Tensor(x)


def np_layernorm(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


# Any: numpy's stubs take an array on the left to give an array, whatever is on the right.
Case = tuple[Callable[[], Any], Callable[[], Any]]
ROWS = np.array([2, 0, -1])
CASES: dict[str, Case] = {
    "add": (lambda: t(F) + t(G), lambda: F + G),
    "radd": (lambda: 1 + t(F), lambda: 1 + F),
    "array-left": (lambda: G + t(F), lambda: F + G),
    "sub": (lambda: t(F) - t(G), lambda: F - G),
    "rsub": (lambda: 2 - t(F), lambda: 2 - F),
    "mul": (lambda: t(F) * 3, lambda: F * 3),
    "div": (lambda: t(G) / t(F), lambda: G / F),
    "rdiv": (lambda: 1 / t(F), lambda: 1 / F),
    "div-ints": (lambda: t(I) / t(D), lambda: I / D),
    "floordiv": (lambda: t(I) // t(D), lambda: I // D),
    "rfloordiv": (lambda: 17 // t(D), lambda: 17 // D),
    "floordiv-floats": (lambda: t(G) // t(F), lambda: G // F),
    "mod": (lambda: t(I) % t(D), lambda: I % D),
    "rmod": (lambda: 17 % t(D), lambda: 17 % D),
    "pow": (lambda: t(F) ** t(G), lambda: F**G),
    "pow-3": (lambda: t(G) ** 3, lambda: G**3),
    "pow-half": (lambda: t(F) ** 0.5, lambda: np.sqrt(F)),
    "pow-tensor-0": (lambda: t(G) ** Tensor(0), lambda: np.ones_like(G)),
    "rpow": (lambda: 2 ** t(G), lambda: 2**G),
    "pow-ints": (lambda: t(I) ** t(np.abs(D)), lambda: I ** np.abs(D)),
    "matmul": (lambda: t(F) @ t(G.T.copy()), lambda: F @ G.T),
    "rmatmul": (lambda: F @ t(G.T.copy()), lambda: F @ G.T),
    "matmul-vector": (lambda: t(F).matmul(t(G[0])), lambda: F @ G[0]),
    "matmul-batch": (lambda: t(IMAGE) @ t(WIDE), lambda: IMAGE @ WIDE),
    "lt": (lambda: t(I) < t(D), lambda: I < D),
    "le": (lambda: t(I) <= 3, lambda: I <= 3),
    "gt": (lambda: t(I) > t(D), lambda: I > D),
    "ge": (lambda: t(I) >= 3, lambda: I >= 3),
    "eq": (lambda: t(I) == 3, lambda: I == 3),
    "ne": (lambda: t(I) != t(D), lambda: I != D),
    "and": (lambda: t(I) & 3, lambda: I & 3),
    "or": (lambda: 8 | t(I), lambda: 8 | I),
    "xor": (lambda: t(I) ^ t(D), lambda: I ^ D),
    "where": (lambda: (t(I) > 0).where(t(F), 0.0), lambda: np.where(I > 0, F, 0)),
    "clip": (lambda: t(G).clip(-1, 1), lambda: G.clip(-1, 1)),
    "sum": (lambda: t(G).sum(), G.sum),
    "sum-axis": (lambda: t(G).sum(1), lambda: G.sum(1)),
    "sum-axes-keep": (lambda: t(G).sum((0, 1), keepdim=True), lambda: G.sum((0, 1), keepdims=True)),
    "sum-bools": (lambda: (t(I) > 0).sum(0), lambda: (I > 0).sum(0)),
    "max": (lambda: t(G).max(0), lambda: G.max(0)),
    "min": (lambda: t(G).min(-1, True), lambda: G.min(-1, keepdims=True)),
    "prod": (lambda: t(F).prod(1), lambda: F.prod(1)),
    "mean": (lambda: t(G).mean((0, 1)), G.mean),
    "mean-ints": (lambda: t(I).mean(0), lambda: I.mean(0)),
    "var": (lambda: t(G).var(1), lambda: G.var(1, ddof=1)),
    "std": (lambda: t(G).std(0, keepdim=True), lambda: G.std(0, ddof=1, keepdims=True)),
    "argmax": (lambda: t(G).argmax(1), lambda: G.argmax(1)),
    "argmax-all": (lambda: t(G).argmax(), G.argmax),
    "argmax-axes": (
        lambda: t(IMAGE).argmax((1, 3)),
        lambda: np.moveaxis(IMAGE, 2, 1).reshape(2, 6, 20).argmax(2),
    ),
    "argmin": (lambda: t(G).argmin(0, keepdim=True), lambda: G.argmin(0)[None]),
    "softmax": (lambda: t(G).softmax(), lambda: np_softmax(G)),
    "softmax-0": (lambda: t(G).softmax(0), lambda: np_softmax(G, 0)),
    "log_softmax": (lambda: t(G).log_softmax(), lambda: np.log(np_softmax(G))),
    "layernorm": (lambda: t(G).layernorm(), lambda: np_layernorm(G)),
    "conv2d": (
        lambda: t(IMAGE).conv2d(t(KERNEL), t(BIAS), stride=2, padding=1, groups=2),
        lambda: (
            np_conv(np.pad(IMAGE, ((0, 0), (0, 0), (1, 1), (1, 1))), KERNEL, 2, groups=2)
            + BIAS[:, None, None]
        ),
    ),
    "conv2d-dilation": (
        lambda: t(IMAGE).conv2d(t(KERNEL), None, 1, 0, 2, 2),
        lambda: np_conv(IMAGE, KERNEL, dilation=2, groups=2),
    ),
    "conv_transpose2d": (
        lambda: t(IMAGE).conv_transpose2d(t(KERNEL[:4]), stride=2),
        lambda: np_conv_transpose(IMAGE, KERNEL[:4], 2),
    ),
    "avg_pool2d": (lambda: t(IMAGE).avg_pool2d(2), lambda: np_pool(IMAGE, 2, np.mean)),
    "max_pool2d": (lambda: t(IMAGE).max_pool2d(2), lambda: np_pool(IMAGE, 2, np.max)),
    "batchnorm": (
        lambda: t(IMAGE).batchnorm(t(F[0]), t(G[0]), t(G[1]), t(F[1])),
        lambda: (
            (IMAGE - G[1][:, None, None])
            / np.sqrt(F[1] + 1e-5)[:, None, None]
            * F[0][:, None, None]
            + G[0][:, None, None]
        ),
    ),
    "einsum": (lambda: Tensor.einsum("ij,kj->ki", t(F), t(G)), lambda: G @ F.T),
    "einsum-implicit": (lambda: Tensor.einsum("ij,kj", t(F), t(G)), lambda: F @ G.T),
    "reshape": (lambda: t(G).reshape(2, -1), lambda: G.reshape(2, -1)),
    "permute": (lambda: t(IMAGE).permute(2, 0, 3, 1), lambda: IMAGE.transpose(2, 0, 3, 1)),
    "transpose": (lambda: t(IMAGE).transpose(0, 2), lambda: IMAGE.swapaxes(0, 2)),
    "T": (lambda: t(G).T, lambda: G.T),
    "expand": (lambda: t(G[:, :1].copy()).expand(-1, 5), lambda: np.repeat(G[:, :1], 5, 1)),
    "pad": (
        lambda: t(G).pad(((1, 0), (0, 2)), 3),
        lambda: np.pad(G, ((1, 0), (0, 2)), constant_values=3),
    ),
    "shrink": (lambda: t(G).shrink(((1, 3), (0, 2))), lambda: G[1:3, 0:2]),
    "flip": (lambda: t(G).flip((0, 1)), lambda: G[::-1, ::-1]),
    "repeat": (lambda: t(G).repeat(2, 3), lambda: np.tile(G, (2, 3))),
    "cat": (lambda: Tensor.cat([t(F), t(G)], 1), lambda: np.concatenate([F, G], 1)),
    "cat-method": (lambda: t(F).cat(t(G), axis=1), lambda: np.concatenate([F, G], 1)),
    "stack": (lambda: Tensor.stack([t(F), t(G)], axis=-1), lambda: np.stack([F, G], -1)),
    "index-int": (lambda: t(G)[-1], lambda: G[-1]),
    "index-slices": (lambda: t(IMAGE)[1, ::2, -2:, ::-2], lambda: IMAGE[1, ::2, -2:, ::-2]),
    "index-none": (lambda: t(G)[..., None, 1], lambda: G[..., None, 1]),
    "index-tensor": (lambda: t(G)[:, t(ROWS)], lambda: G[:, ROWS]),
    "index-list": (lambda: t(G)[1:2, [1, 2]], lambda: G[1:2, [1, 2]]),
    "index-two": (lambda: t(G)[ROWS, [0, 1, 3]], lambda: G[ROWS, [0, 1, 3]]),
    "index-two-apart": (lambda: t(IMAGE)[[0, 1], :, [5, -6]], lambda: IMAGE[[0, 1], :, [5, -6]]),
    "index-two-inside": (lambda: t(IMAGE)[:, [0, 3], [5, -6]], lambda: IMAGE[:, [0, 3], [5, -6]]),
    "exp": (lambda: t(G).exp(), lambda: np.exp(G)),
    "exp2": (lambda: t(G).exp2(), lambda: np.exp2(G)),
    "log": (lambda: t(F).log(), lambda: np.log(F)),
    "log2": (lambda: t(F).log2(), lambda: np.log2(F)),
    "sqrt": (lambda: t(F).sqrt(), lambda: np.sqrt(F)),
    "rsqrt": (lambda: t(F).rsqrt(), lambda: 1 / np.sqrt(F)),
    "reciprocal": (lambda: t(F).reciprocal(), lambda: 1 / F),
    "sin": (lambda: t(G).sin(), lambda: np.sin(G)),
    "cos": (lambda: t(G).cos(), lambda: np.cos(G)),
    "tanh": (lambda: t(G).tanh(), lambda: np.tanh(G)),
    "sigmoid": (lambda: t(G).sigmoid(), lambda: 1 / (1 + np.exp(-G))),
    "relu": (lambda: t(G).relu(), lambda: G.clip(0)),
    "elu": (lambda: t(G).elu(), lambda: np.where(G > 0, G, np.exp(G) - 1)),
    "gelu": (lambda: t(G).gelu(), lambda: G * 0.5 * (1 + np_erf(G / np.sqrt(2)))),
    "silu": (lambda: t(G).silu(), lambda: G / (1 + np.exp(-G))),
    "erf": (lambda: t(G).erf(), lambda: np_erf(G)),
    "abs": (lambda: t(G).abs(), lambda: np.abs(G)),
    "neg": (lambda: t(I).neg(), lambda: -I),
    "square": (lambda: t(G).square(), lambda: G * G),
    "cast": (lambda: t(I).cast(dt.uint8), lambda: I.astype(np.uint8)),
    "cast-numpy": (lambda: t(I).cast(np.int64), lambda: I.astype(np.int64)),
    "half": (lambda: t(G).half(), lambda: G.astype(np.float16)),
    "float": (lambda: t(I).float(), lambda: I.astype(np.float32)),
    "int": (lambda: t(G).int(), lambda: G.astype(np.int32)),
    "bool": (lambda: t(I).bool(), lambda: I.astype(bool)),
    "bitcast": (lambda: t(G).bitcast(dt.int32), lambda: G.view(np.int32)),
    "contiguous": (t(G).T.contiguous, lambda: G.T),
    "clone": (t(G).clone, lambda: G),
    "assign": (lambda: t(G).assign(t(F) + 1), lambda: F + 1),
    "zeros": (lambda: Tensor.zeros(2, 3), lambda: np.zeros((2, 3), np.float32)),
    "ones": (lambda: Tensor.ones((2,), dtype=dt.int32), lambda: np.ones(2, np.int32)),
    "full": (lambda: Tensor.full((2, 2), 7), lambda: np.full((2, 2), 7, np.int32)),
    "full-dtype": (lambda: Tensor.full(3, 1, np.float16), lambda: np.full(3, 1, np.float16)),
    "arange": (lambda: Tensor.arange(2, 11, 3), lambda: np.arange(2, 11, 3, dtype=np.int32)),
    "arange-float": (
        lambda: Tensor.arange(0, 1, 0.25),
        lambda: np.arange(0, 1, 0.25, dtype=np.float32),
    ),
    "eye": (lambda: Tensor.eye(3, dtype=dt.int32), lambda: np.eye(3, dtype=np.int32)),
    "empty": (lambda: Tensor.empty(2, 2) * 0, lambda: np.zeros((2, 2), np.float32)),
    "list": (lambda: Tensor([[1, 2], [3, 4]]) * 2, lambda: np.array([[2, 4], [6, 8]], np.int32)),
}


@cache
def results() -> dict[str, tuple[Array, Array]]:
    """Return what the interpreter and the device give for each name; all are one program."""
    made = {name: ours() for name, (ours, _) in CASES.items()}
    interpreted = {name: tensor.interp() for name, tensor in made.items()}
    first, *others = made.values()
    first.realize(*others)
    return {name: (interpreted[name], t.numpy()) for name, t in made.items()}


@pytest.mark.opencl
@pytest.mark.parametrize("name", CASES)
def test_a_name_of_the_contract_gives_what_numpy_gives(name: str) -> None:
    want = np.asarray(CASES[name][1]())
    limit = 0.0 if want.dtype.kind in "biu" else 2e-5
    for got in results()[name]:
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        np.testing.assert_allclose(got, want, rtol=limit, atol=limit / 2)
    assert results()[name][1].flags.writeable, "the array is the caller's"


def test_every_name_of_the_contract_exists() -> None:
    text = """empty zeros ones full arange eye rand where clip sum max min prod mean var std argmax
        argmin softmax log_softmax layernorm matmul conv2d conv_transpose2d avg_pool2d max_pool2d
        batchnorm einsum reshape permute transpose T expand pad shrink flip repeat cat stack exp
        exp2 log log2 sqrt rsqrt reciprocal sin cos tanh sigmoid relu elu gelu silu erf abs neg
        square cast half float int bool bitcast contiguous clone assign item schedule kernelize
        realize numpy"""
    assert [n for n in text.split() if not hasattr(Tensor, n)] == []


def test_rand_differs_between_calls() -> None:
    first, second = Tensor.rand(4), Tensor.rand(4)
    assert not np.array_equal(first.numpy(), second.numpy())
    assert np.array_equal(Tensor.rand(4, seed=1).numpy(), Tensor.rand(4, seed=1).numpy())


@pytest.mark.slow
def test_rand_does_not_differ_between_processes() -> None:
    program = "from scheduler import Tensor; print(Tensor.rand(2).tolist())"
    runs = {subprocess.check_output([sys.executable, "-c", program]) for _ in range(2)}
    assert len(runs) == 1


def test_the_array_given_may_change_afterwards() -> None:
    mine = np.zeros(3, np.float32)
    tensor = Tensor(mine)
    mine[:] = 5
    assert tensor.tolist() == [0, 0, 0]


def test_backward_markers_are_erased() -> None:
    x = t(F)
    assert x.detach() is x
    assert x.contiguous_backward() is x
    marked = (x * 2.0).detach().contiguous_backward().exp().detach()
    assert marked.node is (x * 2.0).exp().node
    assert not Tensor(F, requires_grad=False).requires_grad
    x.requires_grad = False


def test_a_graph_over_two_devices_is_refused() -> None:
    x = t(F)
    assert x.to("auto") is x.to(x.device) is x
    moved = t(G).to("first")
    assert moved.to("first") is moved
    assert moved.device == "first"
    assert moved.schedule().kernels == []
    other = Tensor([3.0], device="second")
    for use in ((x + moved).schedule, (moved + other).numpy):
        with pytest.raises(ModelError, match=r'one graph runs on one device, found .*"first"'):
            use()
    with pytest.raises(ModelError, match=r'one device.*"first".*"second"') as error:
        (moved + other).numpy()
    assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match="is not realized"):
        (x + 1).to("gpu")
    on_cpu = t(F).to("cpu") + t(G).to("cpu")
    np.testing.assert_allclose(on_cpu.numpy(), F + G)


def test_a_bound_variable_is_a_scalar_argument() -> None:
    assert (Tensor.variable("n", 0, 10, 3) + 2).item() == 5
    inputs = (Tensor.input("x", (4,)) * Tensor.variable("n", 0, 10, n).float() for n in (2, 5))
    assert len({program_of(tensor).source for tensor in inputs}) == 1
