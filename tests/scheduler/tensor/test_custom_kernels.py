"""Kernels written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from scheduler import CustomKernel, custom_kernel
from scheduler.cache.schedules import EntryGraph, ScheduleCache
from scheduler.compile import compile_plain
from scheduler.context import CompileContext, Stages, context_for
from scheduler.debug.kernel_text import table_text
from scheduler.debug.pretty import pretty
from scheduler.debug.viz import write_page
from scheduler.device.limits import TABLE
from scheduler.device.spec import DEFAULT
from scheduler.errors import ModelError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.digest import graph_digest
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, make_program, program_of, same, x
from tests.scheduler.tensor.custom_programs import F32, check, kinds, scale, scaled

SUMS = CustomKernel(
    "sums",
    "float s = 0; for (int i = 0; i < 4; i++) s += in0[i];\nout0[0] = s + 1; out1[0] = s * 2;",
    [((), F32), ((), F32)],
    1,
    lambda v: (v.sum() + 1, v.sum() * 2),
    flops=6,
)


# --- programs of several kernels ------------------------------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("lazy", [True, False])
def test_an_explicit_kernel_with_two_outputs(*, lazy: bool) -> None:
    ramp = Tensor.arange(4).cast(F32) if lazy else Tensor(np.arange(4, dtype=np.float32))
    first, second = custom_kernel(SUMS, ramp)
    assert len(schedule({"a": first.node, "b": second.node}).kernels) == 1
    assert (first.item(), second.item()) == (7.0, 12.0)


@pytest.mark.opencl
def test_a_computed_input_is_stored_first() -> None:
    y = scaled(x(8, 4) + 1.0)
    made = program_of(y)
    assert kinds(made) == ["map", "custom"]
    check(made, [y], x=floats(8, 4))


@pytest.mark.opencl
def test_two_kernels_write_halves_and_the_consumer_is_last() -> None:
    a, b = x(4, 8, name="a"), x(4, 8, name="b")
    joined = Tensor.cat([scaled(a), scaled(b)], 0)
    total = joined.sum(0)
    made = program_of(total)
    assert kinds(made) == ["custom", "custom", "reduce"]
    check(made, [total], a=floats(4, 8), b=floats(4, 8, seed=1))


# --- what is launched -------------------------------------------------------------------------


@pytest.mark.opencl
def test_inputs_and_outputs_are_row_major() -> None:
    """The producer and the consumer would both like another order of axes."""
    a = x(16, 48)
    transposed = (a * 2.0).T.contiguous()
    copy = CustomKernel(
        "transpose",
        "int i = get_global_id(0); int r = i / 48, c = i % 48; out0[r * 48 + c] = in0[c * 16 + r];",
        [((16, 48), F32)],
        16 * 48,
        lambda v: v.T,
    )
    (y,) = custom_kernel(copy, transposed)
    z = y.T + 1.0
    made = program_of(z)
    check(made, [z], x=floats(16, 48))


@pytest.mark.opencl
def test_an_unread_output_is_written_nowhere_else() -> None:
    given = x(4)
    _, second = custom_kernel(SUMS, given)
    y = second.reshape(1) + given
    made = program_of(y)
    assert kinds(made) == ["custom", "map"]
    assert len(made.stored) == 2
    check(made, [y], x=floats(4))


@pytest.mark.opencl
def test_known_inputs_are_made_on_the_host() -> None:
    weight = Tensor.weight(floats(4, 8))
    both = CustomKernel(
        "both",
        "int i = get_global_id(0); out0[i] = in0[i] + in1[i] * in2[0] + in3[i];",
        [((8, 4), F32)],
        32,
        lambda a, b, c, d: a + b * c + d,
    )
    given = (x(8, 4), weight.T, Tensor(3.0), Tensor.full((8, 4), 1.0))
    (y,) = custom_kernel(both, *given)
    made = program_of(y)
    assert kinds(made) == ["custom"]
    check(made, [y], x=floats(8, 4, seed=1))


@pytest.mark.opencl
def test_one_buffer_may_be_two_inputs() -> None:
    twice = CustomKernel(
        "twice",
        "int i = get_global_id(0); EPILOGUE(in0[i] - 3 * in1[i], i);",
        [((8,), F32)],
        8,
        lambda a, b: a - 3 * b.reshape(8),
    )
    given = x(8)
    (y,) = custom_kernel(twice, given, given.reshape(2, 4))
    z = y * given + x(8, name="b")
    made = program_of(z)
    assert kinds(made) == ["custom"]
    check(made, [z], x=floats(8), b=floats(8, seed=1))


@pytest.mark.opencl
def test_only_a_part_of_a_result_may_be_read() -> None:
    y = scaled(x(64, 8))[2:40].exp()[1:3].sum(1)
    made = program_of(y)
    assert kinds(made) == ["custom", "reduce"]
    check(made, [y], x=floats(64, 8))


@pytest.mark.opencl
def test_a_state_is_read_before_it_is_written() -> None:
    state = Tensor.state("s", (8,))
    y = scaled(state)
    made = make_program({"y": y}, [state.assign(scaled(state + x(8), slot=False))])
    with made.load() as program:
        found = [program.run({"x": np.ones(8, np.float32)})["y"][0].item() for _ in range(4)]
    assert found == [0.0, 4.0, 12.0, 28.0]


@pytest.mark.opencl
def test_halves_and_bools() -> None:
    kernel = CustomKernel(
        "narrow",
        "int i = get_global_id(0); vstore_half(in0[i], i, out0); out1[i] = in0[i] > 0;",
        [((16,), dt.float16), ((16,), dt.bool_)],
        16,
        lambda v: (v.astype(np.float16), v > 0),
    )
    given = x(16)
    half, positive = custom_kernel(kernel, given)
    y, z = half.cast(F32) * 2.0, positive.where(given, 0.0)
    made = program_of(y, z)
    check(made, [y, z], x=floats(16) - 0.5)


@pytest.mark.opencl
def test_eager_values_are_computed_once() -> None:
    given = Tensor(floats(4, 4))
    y = scaled(given + 1.0)
    z = (y * 3.0).kernelize()
    same(y.numpy(), (floats(4, 4) + 1) * 2)
    same(z.numpy(), (floats(4, 4) + 1) * 6)
    assert scaled(given + 1.0).schedule().launches == []


@pytest.mark.opencl
def test_small_kernels_beside_it_still_share_a_launch() -> None:
    outputs = [x(8, name="a").exp(), scaled(x(8, name="b")), x(8, name="c").cos()]
    made = program_of(*outputs)
    assert sorted(kinds(made)) == ["custom", "map"]
    check(made, outputs, a=floats(8), b=floats(8, seed=1), c=floats(8, seed=2))


# --- the rest of the compiler -----------------------------------------------------------------


@pytest.mark.opencl
def test_names_are_by_content() -> None:
    made = program_of(scaled(x(8, name="a")), scaled(x(8, name="b")))
    assert kinds(made) == ["custom", "custom"]
    assert len({launch.kernel for launch in made.table.launches}) == 1
    assert "/* scale */" in made.source


@pytest.mark.opencl
def test_tables_listings_and_pages_show_it(tmp_path: Path) -> None:
    stages = Stages()
    context = CompileContext(stages=stages)
    made = program_of((scaled(x(8, 4)) + 1.0).sum(1), context=context)
    listing = pretty(stages.graphs[0][1])
    assert "custom scale" in listing
    assert "result 0" in listing
    assert "custom_" in table_text(made.table)
    write_page(tmp_path / "page.html", made.manifest, {"run": made.plan})
    assert "EPILOGUE" not in (page := (tmp_path / "page.html").read_text(encoding="utf-8"))
    assert "custom kernel scale" in page


def test_the_text_is_part_of_the_key_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(kernel: CustomKernel) -> str:
        return graph_digest([custom_kernel(kernel, Tensor.input("x", (8,)))[0].node])

    assert digest(scale(8)) == digest(scale(8))
    assert digest(scale(8)) != digest(scale(8, factor=3.0))
    assert digest(scale(8)) != digest(scale(8, slot=False))
    monkeypatch.setenv("SCHEDULE_CACHE", "1")
    cache = ScheduleCache()
    for factor in (2.0, 3.0):
        given = Tensor.input("x", (8,))
        (y,) = custom_kernel(scale(8, factor=factor), given)
        graph = {"run": EntryGraph({"y": y.node})}
        made = cache.emitted(graph, context_for(), name="t", kind="plain")
        assert f"{factor}f" in made.manifest["programs"][0]["source"]


def test_buffers_are_limited_like_those_of_other_kernels() -> None:
    context = CompileContext(replace(DEFAULT, limits=TABLE["webgpu"]))
    names = " + ".join(f"in{i}[0]" for i in range(8))
    wide = CustomKernel("wide", f"out0[0] = {names};", [((1,), F32)], 1)
    (y,) = custom_kernel(wide, *(Tensor.input(f"x{i}", (1,)) for i in range(8)))
    with pytest.raises(ModelError, match="wide: expected at most 8 buffers, found 9"):
        schedule({"y": y.node}, context=context)
    # Seven buffers fit, an operand of the epilogue would be the ninth.
    names = " + ".join(f"in{i}[0]" for i in range(7))
    wide = CustomKernel("wide", f"EPILOGUE({names}, 0);", [((1,), F32)], 1)
    (y,) = custom_kernel(wide, *(Tensor.input(f"x{i}", (1,)) for i in range(7)))
    assert len(schedule({"y": y.relu().node}, context=context).kernels) == 1
    assert len(schedule({"y": (y + Tensor.input("b", (1,))).node}, context=context).kernels) == 2


def test_a_launch_is_read_by_its_results_only() -> None:
    launch = scaled(Tensor.input("x", (8,))).node.src[0]
    with pytest.raises(VerifyError, match="no output 1"):
        make(Op.RESULT, F32, (launch,), 1)
    with pytest.raises(VerifyError, match="RESULT picks one"):
        verify([make(Op.NEG, F32, (launch,))])
    with pytest.raises(VerifyError, match="is not int32"):
        verify([make(Op.RESULT, dt.int32, (launch,), 0)])


def test_nothing_but_the_program_makes_one(tmp_path: Path) -> None:
    """A model names operators, and what it calls CustomKernel is not one of them."""
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        "CustomKernel", ["x"], ["y"], name="n", domain="modeld", source="out0[0] = 1;", items=1
    )
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("y", onnx.TensorProto.FLOAT, [1])],
    )
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("modeld", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=domains), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="CustomKernel"):
        compile_plain(tmp_path / "m.onnx")
