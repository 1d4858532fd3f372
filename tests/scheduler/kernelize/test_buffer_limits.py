"""No kernel takes more buffers than its device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduler.context import CompileContext
from scheduler.device.limits import TABLE
from scheduler.device.spec import DEFAULT
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, program_of, same, values_of, x


@pytest.mark.opencl
@pytest.mark.parametrize("target", sorted(TABLE))
def test_no_kernel_exceeds_what_its_device_takes(target: str) -> None:
    names = [f"a{i}" for i in range(80)]
    total = Tensor.input(names[0], (8,))
    for name in names[1:]:
        total = total.maximum(Tensor.input(name, (8,)) * 0.5)
    wide = Tensor.cat([Tensor.input(f"b{i}", (3,)).exp() for i in range(40)])
    context = CompileContext(replace(DEFAULT, limits=TABLE[target]))
    made = program_of(total, wide, *(wide[i : i + 8] + total for i in range(9)), context=context)
    limits = TABLE[target]
    for kernel in made.manifest["kernels"]:
        assert len(set(kernel["args"])) <= limits.max_buffers
        assert len(kernel["args"]) * limits.pointer_bytes <= limits.parameter_bytes
    given = {n: floats(8, seed=i) for i, n in enumerate(names)}
    given |= {f"b{i}": floats(3, seed=100 + i) for i in range(40)}
    found = values_of(made, **given)
    want = given["a0"]
    for name in names[1:]:
        want = np.maximum(want, given[name] * np.float32(0.5))
    same(found[0], want)
    both = np.exp(np.concatenate([given[f"b{i}"] for i in range(40)]))
    same(found[1], both)
    for i in range(9):
        same(found[2 + i], both[i : i + 8] + want)


@pytest.mark.opencl
def test_a_sum_of_hundreds_is_split_and_the_result_counts_as_an_argument() -> None:
    names = [f"a{i}" for i in range(200)]
    total = Tensor.input(names[0], (24,))
    for name in names[1:]:
        total = total + Tensor.input(name, (24,))
    made = program_of(total)
    most = max(len(k["args"]) for k in made.manifest["kernels"])
    assert most <= 64
    assert made.launches <= 200 // (most - 2) + 1
    given = {n: floats(24, seed=i) for i, n in enumerate(names)}
    same(values_of(made, **given)[0], np.sum(list(given.values()), 0), 1e-4)


@pytest.mark.opencl
def test_a_matrix_product_of_a_wide_concat_is_split() -> None:
    names = [f"a{i}" for i in range(130)]
    wide = Tensor.cat([Tensor.input(n, (2, 4)).exp() for n in names], 0)
    made = program_of(wide @ x(4, 3, name="w"))
    assert max(len(k["args"]) for k in made.manifest["kernels"]) <= 64
    given = {n: floats(2, 4, seed=i) for i, n in enumerate(names)}
    want = np.exp(np.concatenate(list(given.values()))) @ floats(4, 3)
    same(values_of(made, **given, w=floats(4, 3))[0], want, 1e-4)
