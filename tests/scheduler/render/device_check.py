"""Programs on the device against the interpreter: their inputs, and how results are compared."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor, evaluate
from tests.scheduler.support.programs import Array, load
from tests.scheduler.support.values import rng

Outputs = dict[str, Tensor]


class Given:
    """Inputs of a program, each made of the values that it is run with."""

    def __init__(self) -> None:
        self.values: dict[str, Array] = {}

    def __call__(self, value: Array) -> Tensor:
        name = f"in{len(self.values)}"
        self.values[name] = value
        return Tensor.input(name, value.shape, dt.from_numpy(value.dtype))

    def floats(self, *shape: int) -> Tensor:
        return self(floats(*shape))

    def whole(self, *shape: int) -> Tensor:
        return self(whole(*shape))


Case = Callable[[Given], Sequence[Tensor]]


def floats(*shape: int) -> Array:
    return rng().standard_normal(shape).astype(np.float32)


def whole(*shape: int) -> Array:
    """Return small whole numbers, of which sums are exact in any order."""
    return rng().integers(-4, 5, shape).astype(np.float32)


def exactly(got: Array, want: Array, name: str) -> None:
    """Compare every value; signs of zeros and the payload of NaN are free."""
    np.testing.assert_array_equal(got, want, err_msg=name, strict=True)


def bits(got: Array, want: Array, name: str) -> None:
    """Compare every byte: a true bool is stored as 1."""
    exactly(got, want, name)
    assert got.tobytes() == want.tobytes(), name


def closely(got: Array, want: Array, name: str) -> None:
    """Compare floats to 1e-5, everything else exactly."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    limit = 1e-5 if want.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit, err_msg=name)


def run(outputs: Mapping[str, Tensor], given: Given) -> dict[str, Array]:
    with load(outputs) as program:
        return {name: value.copy() for name, value in program.run(given.values).items()}


def check(
    outputs: Mapping[str, Tensor],
    given: Given,
    compare: Callable[[Array, Array, str], None] = exactly,
) -> None:
    expected = evaluate(list(outputs.values()), given.values)
    found = run(outputs, given)
    for name, want in zip(outputs, expected, strict=True):
        compare(found[name], want, name)


def all_of(cases: Mapping[str, Case], given: Given) -> Outputs:
    """Return the outputs of many small programs as those of one: compiling is what takes time."""
    return {f"{n}, {i}": t for n, case in cases.items() for i, t in enumerate(case(given))}
