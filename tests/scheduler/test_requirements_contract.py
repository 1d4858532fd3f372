"""Requirements R03, R16, R19, R29, R34, R36, R40 to R42, R45, R46: handles, multi-output, cache."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scheduler.cache.schedules import EntryGraph, clear_memory, emitted_for, schedule_for
from scheduler.device.limits import TABLE
from scheduler.device.spec import using_limits
from scheduler.errors import ModelError, SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import Array, floats, program_of, same, values_of, x

ROOT = Path(__file__).parents[2]


# --- R03, R46: handles and kernelize ----------------------------------------------------------


@pytest.mark.opencl
def test_r03_every_handle_follows_what_became_of_its_value() -> None:
    a, b = Tensor(floats(4, 4)), Tensor(floats(4, 4, seed=1))
    product = a @ b
    view, child, other = product.T, product * 2.0, a + b
    product.realize()
    (buffer,) = [n for n in toposort([product.node]) if n.op is Op.BUFFER]
    assert buffer.arg.is_realized
    for handle, follows in ((product, True), (view, True), (child, True), (other, False)):
        assert (buffer in toposort([handle.node])) is follows
    assert not any(n.op is Op.REDUCE for n in toposort([child.node, view.node]))
    assert product.schedule().launches == []
    want = floats(4, 4) @ floats(4, 4, seed=1)
    for got, expected in ((view, want.T), (child, want * 2), (product, want)):
        same(got.numpy(), expected)


@pytest.mark.opencl
def test_r46_kernelize_pins_a_boundary_and_runs_nothing() -> None:
    a, b, c = (Tensor([n]) for n in (1, 2, 3))
    product = a * b
    total = product + c
    later = total * 10
    total.kernelize()
    assert product.node.op is Op.MUL  # it was fused, so nothing became of it
    assert total.node.op is Op.ASSIGN
    assert total.node.src[0].arg.data is None
    assert total.node in later.node.src
    pinned = total.node
    total.kernelize()
    assert total.node is pinned
    child = (total + 2).kernelize()
    assert child.node.op is Op.ASSIGN
    assert Op.MUL not in {n.op for n in (child.node.src[1], *child.node.src[1].src)}
    assert len(child.schedule().kernels) == 2  # the pinned one, and one that loads it
    assert (total.item(), child.item(), later.item()) == (5, 7, 50)


@pytest.mark.opencl
def test_r46_chained_reductions_are_pinned_where_the_compiler_would_cut() -> None:
    a = Tensor(floats(8, 8, 8))
    inner = a.sum(2)
    first, second = inner.reshape(64), inner.T
    inner.kernelize()
    assert inner.node.op is Op.ASSIGN or inner.node.src[0].op is Op.ASSIGN
    assert any(n.op is Op.ASSIGN for n in toposort([first.node]))
    assert any(n.op is Op.ASSIGN for n in toposort([second.node]))
    same(first.numpy().reshape(8, 8), floats(8, 8, 8).sum(2), 1e-4)
    same(second.numpy(), floats(8, 8, 8).sum(2).T, 1e-4)


# --- R16, R34, R36: several results in one launch ---------------------------------------------

TOGETHER: dict[str, tuple[Callable[[Tensor], list[Tensor]], Callable[[Array], list[Array]]]] = {
    "one reduction, two epilogues": (
        lambda a: [a.sum() + 2.0, a.sum() * 4.0],
        lambda a: [a.sum() + 2, a.sum() * 4],
    ),
    "a reduction, and a map of what it reads": (
        lambda a: [a.sum(1), a.cos()],
        lambda a: [a.sum(1), np.cos(a)],
    ),
    "two reductions of one input": (
        lambda a: [a.sum(1), a.max(1) - a.min(1)],
        lambda a: [a.sum(1), a.max(1) - a.min(1)],
    ),
    "a value, and what is made of it": (
        lambda a: [a * 2.0, (a * 2.0).exp()],
        lambda a: [a * 2, np.exp(a * 2)],
    ),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", TOGETHER)
def test_r16_results_that_share_an_input_share_a_launch(name: str) -> None:
    ours, theirs = TOGETHER[name]
    made = program_of(*ours(x(12, 12)))
    assert made.launches == 1
    assert made.plan.bytes_moved == 4 * (144 + sum(v.size for v in theirs(floats(12, 12))))
    found = values_of(made, x=floats(12, 12))
    for got, want in zip(found, theirs(floats(12, 12)), strict=True):
        same(got, np.asarray(want), 1e-4)


@pytest.mark.opencl
def test_r16_results_that_need_each_other_through_a_third_stay_apart() -> None:
    """a feeds the product, the product feeds c: a and c share a's input and cannot be one."""
    a = (x(8, 8) * 2.0).contiguous()
    b = (a @ x(8, 8, name="w")).contiguous()
    made = program_of(a, b, b.T + a)
    assert made.launches >= 2
    v, w = floats(8, 8), floats(8, 8, seed=1)
    got = values_of(made, x=v, w=w)
    for found, want in zip(got, (v * 2, v * 2 @ w, (v * 2 @ w).T + v * 2), strict=True):
        same(found, want)


@pytest.mark.opencl
def test_r34_small_independent_kernels_are_one_launch() -> None:
    """Of different shapes, types and kinds: nothing is shared but the launch."""
    parts = [Tensor.input(f"a{i}", (i + 3, 5)) for i in range(6)]
    outputs = [p.exp() if i % 2 else p.sum(0) * 2.0 for i, p in enumerate(parts)]
    outputs.append(Tensor.input("k", (7,), dt.int32) + 1)
    made = program_of(*outputs)
    assert made.launches == 1
    given = {f"a{i}": floats(i + 3, 5, seed=i) for i in range(6)}
    found = values_of(made, **given, k=np.arange(7, dtype=np.int32))
    for i in range(6):
        v = given[f"a{i}"]
        same(found[i], np.exp(v) if i % 2 else v.sum(0) * 2)
    same(found[6], np.arange(7, dtype=np.int32) + 1)


def test_r34_large_kernels_run_one_after_the_other() -> None:
    parts = [Tensor.input(f"a{i}", (512, 512)) for i in range(3)]
    assert program_of(*(p.exp().tanh() for p in parts)).launches == 3


def test_r36_fusion_does_not_raise_the_peak() -> None:
    """All six wide values read one input: in one kernel they would all be alive at once."""
    source = x(64, 64)
    wide = [(source * float(i + 2)).contiguous() for i in range(6)]
    made = program_of(*(w.flip(0).contiguous().sum(1) for w in wide))
    assert made.table.totals.arena_peak <= 2 * 64 * 64 * 4


# --- R19: the table of devices ----------------------------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("target", sorted(TABLE))
def test_r19_no_kernel_exceeds_what_its_device_takes(target: str) -> None:
    names = [f"a{i}" for i in range(80)]
    total = Tensor.input(names[0], (8,))
    for name in names[1:]:
        total = total.maximum(Tensor.input(name, (8,)) * 0.5)
    joined = Tensor.cat([Tensor.input(f"b{i}", (3,)).exp() for i in range(40)])
    with using_limits(TABLE[target]):
        made = program_of(total, joined, *(joined[i : i + 8] + total for i in range(9)))
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


# --- R29: views need no kernel ----------------------------------------------------------------

VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Array], Array]]] = {
    "itself": (lambda t: t, lambda a: a),
    "a reshape": (lambda t: t.reshape(24), lambda a: a.reshape(24)),
    "a range of rows": (lambda t: t[1:3], lambda a: a[1:3]),
    "one row of a range": (lambda t: t[1:3][1].reshape(2, 3), lambda a: a[2].reshape(2, 3)),
}


@pytest.mark.opencl
@pytest.mark.parametrize("name", VIEWS)
def test_r29_a_view_of_a_realized_buffer_needs_no_kernel(name: str) -> None:
    ours, theirs = VIEWS[name]
    view = ours(Tensor(floats(4, 6)))
    assert view.schedule().launches == []
    same(view.numpy(), theirs(floats(4, 6)))


def test_r29_an_input_that_is_an_output_is_copied_and_not_computed() -> None:
    made = program_of(x(4, 6))
    assert (len(made.plan.kernels), len(made.plan.copies)) == (0, 1)


# --- R40, R41, R42 ----------------------------------------------------------------------------


@pytest.mark.opencl
def test_r40_a_bound_variable_is_a_scalar_argument_and_never_a_size() -> None:
    v = Tensor.variable("n", 0, 10, 3)
    assert (v + 2).item() == 5
    uses: list[Callable[[Any], Tensor]] = [
        Tensor.zeros,
        lambda n: x(4)[:n],
        lambda n: x(12).reshape(n, 4),
    ]
    for use in uses:
        with pytest.raises(ModelError, match="used as a size") as error:
            use(v)
        assert "\n" not in str(error.value)
    with pytest.raises(ModelError, match=r'variable "n": 11 is outside \[0, 10\]'):
        Tensor.variable("n", 0, 10, 11)


@pytest.mark.opencl
def test_r40_a_variable_bound_anew_needs_no_other_kernels() -> None:
    texts = {program_of(x(4) * Tensor.variable("n", 0, 10, n).float()).source for n in (2, 5)}
    assert len(texts) == 1


@pytest.mark.opencl
def test_r41_a_graph_over_two_devices_is_refused() -> None:
    here, there = Tensor([1.0, 2.0]), Tensor([1.0, 2.0]).to("first")
    other = Tensor([3.0, 4.0], device="second")
    assert here.to(here.device) is here
    assert there.schedule().kernels == []
    with pytest.raises(ModelError, match=r'one device.*"first".*"second"') as error:
        (there + other).numpy()
    assert "\n" not in str(error.value)


def test_r42_backward_markers_are_erased() -> None:
    a = x(8)
    marked = (a * 2.0).detach().contiguous_backward().exp().detach()
    assert marked.node is (a * 2.0).exp().node
    with pytest.raises(ModelError, match="gradients are not supported"):
        marked.backward()
    with pytest.raises(ModelError, match="gradients are not supported"):
        Tensor([1.0], requires_grad=True)


# --- R45: schedule cache ----------------------------------------------------------------------


def _entry(weight: Array, scale: float = 2.0) -> EntryGraph:
    y = (x(4, 8) @ Tensor.weight(weight)).relu() * scale
    return EntryGraph({"y": y.node})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    clear_memory()
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_r45_the_same_nodes_are_scheduled_once() -> None:
    entry = _entry(floats(8, 8))
    first = schedule_for(entry)
    assert schedule_for(entry) is first
    with using_limits(TABLE["webgpu"]):
        assert schedule_for(entry) is not first
    clear_memory()
    assert schedule_for(entry) is not first


@pytest.mark.usefixtures("cache")
def test_r45_an_equal_graph_is_compiled_once_and_another_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "scheduler.cache.schedules")
    said = []
    for scale in (2.0, 2.0, 3.0):
        emitted_for({"run": _entry(floats(8, 8), scale)}, name="m", kind="plain")
        said.append([r.getMessage() for r in caplog.records if "m: compiled" in r.getMessage()])
        caplog.clear()
    assert [len(s) for s in said] == [1, 0, 1]


def test_r45_another_process_takes_the_artifact_from_disk(cache: Path) -> None:
    script = (
        "import logging, numpy as np\n"
        "logging.basicConfig(level=logging.DEBUG)\n"
        "from scheduler.tensor.tensor import Tensor\n"
        "from scheduler.cache.schedules import EntryGraph, emitted_for\n"
        "y = Tensor.input('x', (4, 8)) @ Tensor.weight(np.ones((8, 8), np.float32))\n"
        "made = emitted_for({'run': EntryGraph({'y': y.node})}, name='m', kind='plain')\n"
        "print(repr(made.manifest), made.data.hex())\n"
    )
    found = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script]
        found.append(
            subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        )
    assert found[0].stdout == found[1].stdout
    assert found[0].stderr != found[1].stderr  # the second says where it took it from
    assert any(p.is_file() for p in cache.rglob("*"))


@pytest.mark.usefixtures("cache")
def test_r45_a_cached_artifact_is_the_compiled_one() -> None:
    entries = {"run": _entry(floats(8, 8))}
    first = emitted_for(entries, name="m", kind="plain")
    clear_memory()
    again = emitted_for(entries, name="m", kind="plain")
    assert (again.manifest, again.data) == (first.manifest, first.data)
    again.manifest["name"] = "changed"
    assert emitted_for(entries, name="m", kind="plain").manifest["name"] == "m"


def test_r45_limits_that_cannot_be_met_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_KERNEL_BUFFERS", "many")
    with pytest.raises(SchedulerError, match="MAX_KERNEL_BUFFERS='many': expected a number"):
        program_of(x(4) + 1.0)
