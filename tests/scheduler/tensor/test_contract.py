"""Every name that Tensor promises, against numpy: by the interpreter, and run on the device."""

import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from scheduler import Tensor
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from tests.scheduler.fusion.plain import Plain
from tests.scheduler.support.programs import Array, program_of

F = np.random.default_rng(3).uniform(0.2, 2.0, (3, 4)).astype(np.float32)
G = np.random.default_rng(4).uniform(-2.0, 2.0, (3, 4)).astype(np.float32)
I = np.array([[7, -7, 5, 3], [0, 2, -1, 9], [4, -4, 8, 1]], np.int32)  # noqa: E741  # the ints
D = np.array([[2, 3, -2, -3], [5, -4, 3, 2], [3, 3, -5, 1]], np.int32)
ROWS = np.array([2, 0, -1])
IMAGE = np.random.default_rng(5).standard_normal((2, 4, 6, 5)).astype(np.float32)
KERNEL = np.random.default_rng(6).standard_normal((6, 2, 3, 3)).astype(np.float32)
BIAS = np.random.default_rng(7).standard_normal(6).astype(np.float32)
WIDE = np.random.default_rng(8).uniform(-1.0, 1.0, (5, 3)).astype(np.float32)
NAMES = {"f": F, "g": G, "i": I, "d": D, "r": ROWS, "m": IMAGE, "k": KERNEL, "b": BIAS, "w": WIDE}

# Expressions of tensors, and of arrays that have their methods; two blanks are between them.
EXPRESSIONS = """
    f + g  1 + f  G + f  f - g  2 - f  f * 3  g / f  1 / f  i / d  i // d  17 // d  g // f  i % d
    17 % d  f ** g  g ** 3  f ** 0.5  2 ** g  i ** d.abs()  f @ g.T  F @ g.T  m @ w  i < d  i <= 3
    i > d  i >= 3  i == 3  i != d  i & 3  8 | i  i ^ d  (i > 0).where(f, 0.0)  g.clip(-1, 1)
    g.sum()  g.sum(1)  g.sum((0, 1), keepdim=True)  (i > 0).sum(0)  g.max(0)  g.max()
    g.min((0, 1))  g.min(-1, keepdim=True)  f.prod(1)  f.prod(0)  g.mean((0, 1))  i.mean(0)
    g.var(1)  g.std(0, keepdim=True)  g.argmax(1)  g.argmax()  g.argmin(0, keepdim=True)
    g.softmax()  g.softmax(0)  g.log_softmax()  g.layernorm()
    m.conv2d(k, b, stride=2, padding=1, groups=2)  m.avg_pool2d(2)  m.max_pool2d(2)
    m.batchnorm(f[0], g[0], g[1], f[1])  Tensor.einsum("ij,kj->ki", f, g)
    Tensor.einsum("ij,kj", f, g)  g.reshape(2, -1)
    m.permute(2, 0, 3, 1)  m.transpose(0, 2)  g.T  g.pad(((1, 0), (0, 2)), 3)
    g.shrink(((1, 3), (0, 2)))  g.flip((0, 1))  g.repeat(2, 3)  Tensor.cat([f, g], 1)
    Tensor.stack([f, g], axis=-1)  g[-1]  m[1, ::2, -2:, ::-2]  g[..., None, 1]  g[:, r]
    g[1:2, [1, 2]]  g[ROWS, [0, 1, 3]]  m[[0, 1], :, [5, -6]]  m[:, [0, 3], [5, -6]]  g.exp()
    g.exp2()  f.log()  f.log2()  f.sqrt()  f.rsqrt()  f.reciprocal()  g.sin()  g.cos()  g.tanh()
    g.sigmoid()  g.relu()  g.elu()  g.gelu()  g.silu()  g.erf()  g.abs()  g.square()
    i.cast(dt.uint8)  g.half()  i.float()  g.int()  g.T.contiguous()  g.assign(f + 1)
    np.float32(2) * g  np.float64(2) - g  np.int64(2) + g  F[0] @ g[1]  F[0] < g  F[0] == g
    divmod(i, 2)[0]  divmod(9, d)[1]  abs(g)  +g  i == [7, 2, -1, 1]  [1, 2, 3, 4] * g
    g.int() - [0.5, 0.5, 0.5, 0.5]  1 << abs(i)  99 >> abs(i)
"""


def np_conv(x: Array, w: Array, dilation: int = 1, groups: int = 1) -> Array:
    """Convolve by the definition: windows times weights, group by group."""
    spans = [dilation * (k - 1) + 1 for k in w.shape[2:]]
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), spans, (2, 3))
    seen = seen[:, :, :, :, ::dilation, ::dilation]
    parts = zip(np.split(seen, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("nchwij,ocij->nohw", s, k) for s, k in parts], 1)


def np_conv_transpose(x: Array, w: Array, stride: int) -> Array:
    """Convolve what has zeros between its elements and around by the turned kernel."""
    (n, c, height, width), (*_, kh, kw) = x.shape, w.shape
    apart = np.zeros((n, c, (height - 1) * stride + 2 * kh - 1, (width - 1) * stride + 2 * kw - 1))
    apart[:, :, kh - 1 : 1 - kh : stride, kw - 1 : 1 - kw : stride] = x
    return np_conv(apart, w[:, :, ::-1, ::-1].swapaxes(0, 1))


# What numpy writes in another way.
OTHERS: dict[str, Callable[[], Any]] = {
    "g ** Tensor(0)": lambda: np.ones_like(G),
    "f.matmul(g[0])": lambda: F @ G[0],
    "m.argmax((1, 3))": lambda: np.moveaxis(IMAGE, 2, 1).reshape(2, 6, 20).argmax(2),
    "m.conv2d(k, None, 1, 0, 2, 2)": lambda: np_conv(IMAGE, KERNEL, dilation=2, groups=2),
    "m.conv_transpose2d(k[:4], stride=2)": lambda: np_conv_transpose(IMAGE, KERNEL[:4], 2),
    "g[:, :1].expand(-1, 5)": lambda: np.repeat(G[:, :1], 5, 1),
    "f.cat(g, axis=1)": lambda: np.concatenate([F, G], 1),
    "i.neg()": lambda: -I,
    "i.cast(np.int64)": lambda: I.astype(np.int64),
    "i.bool()": lambda: I.astype(bool),
    "g.bitcast(dt.int32)": lambda: G.view(np.int32),
    "g.clone()": lambda: G,
    "Tensor.zeros(2, 3)": lambda: np.zeros((2, 3), np.float32),
    "Tensor.ones((2,), dtype=dt.int32)": lambda: np.ones(2, np.int32),
    "Tensor.full((2, 2), 7)": lambda: np.full((2, 2), 7, np.int32),
    "Tensor.full(3, 1, np.float16)": lambda: np.full(3, 1, np.float16),
    "Tensor.arange(2, 11, 3)": lambda: np.arange(2, 11, 3, dtype=np.int32),
    "Tensor.arange(0, 1, 0.25)": lambda: np.arange(0, 1, 0.25, dtype=np.float32),
    "Tensor.eye(3, dtype=dt.int32)": lambda: np.eye(3, dtype=np.int32),
    "Tensor.empty(2, 2) * 0": lambda: np.zeros((2, 2), np.float32),
    "Tensor([[1, 2], [3, 4]]) * 2": lambda: np.array([[2, 4], [6, 8]], np.int32),
}
SAME = re.split(r"\s\s+", EXPRESSIONS.strip())


def value_of(expression: str, kind: Callable[[Array], Any]) -> Any:
    """Return the value of an expression whose names are tensors, or arrays with their methods."""
    names = {name: kind(value.copy()) for name, value in NAMES.items()}
    known = {"Tensor": kind, "np": np, "dt": dt, "ROWS": ROWS, "F": F, "G": G}
    return eval(expression, known, names)  # noqa: S307  # one of this file


@cache
def results() -> dict[str, tuple[Array, Array]]:
    """Return what the interpreter and the device give for each name; all are one program."""
    made = {expression: value_of(expression, Tensor) for expression in (*SAME, *OTHERS)}
    interpreted = {name: tensor.interp() for name, tensor in made.items()}
    first, *others = made.values()
    first.realize(*others)
    return {name: (interpreted[name], t.numpy()) for name, t in made.items()}


@pytest.mark.opencl
@pytest.mark.parametrize("expression", [*SAME, *OTHERS])
def test_a_name_of_the_contract_gives_what_numpy_gives(expression: str) -> None:
    other = OTHERS.get(expression)
    want = np.asarray(other() if other else value_of(expression, Plain)).view(np.ndarray)
    limit = 0.0 if want.dtype.kind in "biu" else 2e-5
    for got in results()[expression]:
        assert got.shape == want.shape
        assert got.dtype.kind == want.dtype.kind
        np.testing.assert_allclose(got, want, rtol=limit, atol=limit / 2)
    assert results()[expression][1].flags.writeable, "the array is the caller's"


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
    x = Tensor(F)
    assert x.detach() is x
    assert x.contiguous_backward() is x
    marked = (x * 2.0).detach().contiguous_backward().exp().detach()
    assert marked.node is (x * 2.0).exp().node
    assert not Tensor(F, requires_grad=False).requires_grad
    x.requires_grad = False


def test_a_graph_over_two_devices_is_refused() -> None:
    x = Tensor(F)
    assert x.to("auto") is x.to(x.device) is x
    moved = Tensor(G).to("first")
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
    on_cpu = Tensor(F).to("cpu") + Tensor(G).to("cpu")
    np.testing.assert_allclose(on_cpu.numpy(), F + G)


def test_a_bound_variable_is_a_scalar_argument() -> None:
    assert (Tensor.variable("n", 0, 10, 3) + 2).item() == 5
    inputs = (Tensor.input("x", (4,)) * Tensor.variable("n", 0, 10, n).float() for n in (2, 5))
    assert len({program_of(tensor).source for tensor in inputs}) == 1
