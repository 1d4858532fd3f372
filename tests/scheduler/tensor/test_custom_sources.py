"""Kernels written by hand: what is refused of them, and where the compiler shows and keeps them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import BuildError
from scheduler import CustomKernel, custom_kernel
from scheduler.compile import compile_plain
from scheduler.context import CompileContext, Stages
from scheduler.debug.kernel_table import table_text
from scheduler.debug.pretty import pretty
from scheduler.debug.viz import write_page
from scheduler.device.spec import DEFAULT, LIMITS
from scheduler.errors import ModelError, VerifyError
from scheduler.ir import dtype as dt
from scheduler.ir.digest import graph_digest
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.ir.verify import verify
from scheduler.onnx_import import from_proto
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.render.device_check import Given
from tests.scheduler.support.programs import (
    compute,
    floats,
    plan_of,
    program_of,
    same,
    x,
)
from tests.scheduler.tensor.test_custom_kernels import (
    F32,
    SUMS,
    by_hand,
    every_operand,
    kinds,
    matrix_product,
    scale,
    scaled,
)


def single(source: str, name: str = "k", **fields: Any) -> CustomKernel:
    return CustomKernel(name, source, [((1,), F32)], 1, **fields)


@pytest.mark.opencl
def test_a_build_error_names_the_kernel_and_the_line() -> None:
    source = "int i = 0;\nEPILOGUE(in0[i], i);\nnonsense(i);"
    (y,) = custom_kernel(CustomKernel("broken", source, [((4,), F32)], 4), Tensor(floats(4)))
    with pytest.raises(BuildError, match=r"custom kernel broken:3:3: .*nonsense") as error:
        y.numpy()
    assert len(str(error.value).splitlines()) == 1


def test_the_interpreter_needs_a_reference() -> None:
    for kernel, message in (
        (single("out0[0] = 1;"), r"custom kernel k: the interpreter .* reference"),
        (
            single("out0[0] = 1;", reference=lambda v: v),
            r"k: its reference returned shapes \[\(4,\)\]",
        ),
    ):
        with pytest.raises(ModelError, match=message):
            custom_kernel(kernel, Tensor(floats(4)))[0].interp()


BAD_SOURCES = {
    "empty": ("  ", "1 to 65536 characters"),
    "too long": ("int i;" * 20_000, "1 to 65536 characters"),
    "not closed": ("if (in0[0] > 0) { out0[0] = 1;", 'line 1: "{" is not closed'),
    "closes the function": ("out0[0] = 1;\n} __kernel void evil() {", 'line 2: "}" closes nothing'),
    "crossed": ("out0[(0]) = 1;", '"]" closes nothing'),
    "open comment": ("out0[0] = 1; /* to the end", "unterminated comment or literal"),
    "open literal": ("out0[0] = 'a;", "unterminated comment or literal"),
    "directive": ("out0[0] = 1;\n  #define in0 out0", "preprocessor directive"),
    "continued line": ("// out \\\n}", "continued lines"),
    "not ASCII": ("out0[0] = 1; // \u00e9", "plain ASCII"),
    "unknown input": ("out0[0] = in2[0];", "names in2, but is given 1 input"),
    "unknown output": ("out1[0] = in0[0];", "names out1; it has 1 output"),
    "reserved": ("float m_exp = 1; out0[0] = m_exp;", "m_exp is a reserved name"),
    "two slots": ("EPILOGUE(1, 0); EPILOGUE(2, 0);", "found 2"),
    "slot as a value": ("float v = EPILOGUE(1, 0);", "used as something else"),
    "slot in a loop header": ("for (int i = 0; i < 1; EPILOGUE(1, i)) i++;", "something else"),
    "slot without arguments": ("EPILOGUE;", "used as something else"),
    "slot of three": ("EPILOGUE(1, 2, 3);", "found 3 arguments"),
    "slot of one": ("EPILOGUE(max(1, 2));", "found 1 arguments"),
    "slot without semicolon": ("EPILOGUE(1, 0) out0;", "no semicolon"),
    "slot and output": ("EPILOGUE(1, 0); out0[0] = 2;", "uses EPILOGUE and names out0"),
}


@pytest.mark.parametrize("case", BAD_SOURCES)
def test_a_source_that_leaves_its_function_is_refused(case: str) -> None:
    source, message = BAD_SOURCES[case]
    with pytest.raises(ModelError) as error:
        custom_kernel(single(source, "bad"), x(1))
    assert message in str(error.value)
    assert str(error.value).startswith("custom kernel bad: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "no name"}, "expected an identifier"),
        ({"name": ""}, "expected an identifier"),
        ({"outputs": []}, "must have elements"),
        ({"outputs": [((0, 4), F32)]}, "must have elements"),
        ({"outputs": [((-1, -4), F32)]}, "must have elements"),
        ({"outputs": [((1 << 20, 1 << 20), F32)]}, "must have elements"),
        ({"items": 0}, "at least one work-item"),
        ({"items": 1 << 40}, "at least one work-item"),
        ({"flops": -1}, "no negative flops"),
        ({"outputs": [((3, 6), F32)], "lanes": 4}, "lanes out of"),
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    outputs = [((4,), F32)]
    good: dict[str, Any] = {"name": "k", "source": "int i = 0;", "outputs": outputs, "items": 4}
    assert str(CustomKernel(**good)) == "k"
    with pytest.raises(ModelError, match=message):
        CustomKernel(**{**good, **fields})


def test_an_empty_input_is_refused() -> None:
    with pytest.raises(ModelError, match="in0 has no elements"):
        custom_kernel(single("out0[0] = in0[0];"), Tensor(np.zeros((0, 4), np.float32)))


def test_buffers_are_limited_like_those_of_other_kernels() -> None:
    context = CompileContext(replace(DEFAULT, limits=LIMITS["webgpu"]))

    def launches(source: str, count: int, *, added: bool = False) -> int:
        names = " + ".join(f"in{i}[0]" for i in range(count))
        inputs = (x(1, name=f"x{i}") for i in range(count))
        (y,) = custom_kernel(single(source.format(names), "wide"), *inputs)
        y = y + x(1, name="b") if added else y.relu()
        return len(plan_of({"y": y}, context=context).kernels)

    with pytest.raises(ModelError, match="wide: expected at most 8 buffers, found 9"):
        launches("out0[0] = {};", 8)
    # Seven buffers fit, an operand of the epilogue would be the ninth.
    assert launches("EPILOGUE({}, 0);", 7) == 1
    assert launches("EPILOGUE({}, 0);", 7, added=True) == 2


def test_a_launch_is_read_by_its_results_only() -> None:
    launch = scaled(x(8)).node.src[0]
    with pytest.raises(VerifyError, match="no output 1"):
        make(Op.RESULT, F32, (launch,), 1)
    with pytest.raises(VerifyError, match="RESULT picks one"):
        verify([make(Op.NEG, F32, (launch,))])
    with pytest.raises(VerifyError, match="is not int32"):
        verify([make(Op.RESULT, dt.int32, (launch,), 0)])


def test_nothing_but_the_program_makes_one() -> None:
    """A model names operators, and what it calls CustomKernel is not one of them."""
    node = 'y = vendor.CustomKernel<name = "n", source = "out0[0] = 1;", items = 1>(x)'
    with pytest.raises(ModelError, match="CustomKernel"):
        compile_plain(from_proto(parsed(f"(float[1] x) => (float[1] y) {{ {node} }}")))


def test_equal_kernels_are_one_node() -> None:
    kernel, given = single("out0[0] = in0[0];"), x(4)
    nodes = [custom_kernel(k, given)[0].node for k in (kernel, CustomKernel(**vars(kernel)))]
    assert nodes[0] is nodes[1]


def test_the_text_is_part_of_the_digest_of_a_graph() -> None:
    def digest(kernel: CustomKernel) -> str:
        return graph_digest([custom_kernel(kernel, x(8))[0].node])

    assert digest(scale(8)) == digest(scale(8))
    assert digest(scale(8)) != digest(scale(8, factor=3.0))
    assert digest(scale(8)) != digest(scale(8, slot=False))


def test_names_are_by_content() -> None:
    made = program_of(scaled(x(8, name="a")), scaled(x(8, name="b")))
    assert kinds(made) == "custom custom"
    assert len({launch.kernel for launch in made.table.launches}) == 1
    assert "/* scale */" in made.source
    assert "epilogue_value" in made.source


def test_tables_listings_and_pages_show_it(tmp_path: Path) -> None:
    stages = Stages()
    made = program_of((scaled(x(8, 4)) + 1.0).sum(1), context=CompileContext(stages=stages))
    listing = pretty(stages.graphs[0][1])
    assert "custom scale" in listing
    assert "result 0" in listing
    assert "custom_" in table_text(made.table)
    write_page(tmp_path / "page.html", made.manifest, {"run": made.plan})
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "EPILOGUE" not in page
    assert "custom kernel scale" in page


def test_work_and_origin_of_a_launch() -> None:
    (launch,) = program_of(*every_operand(Given())).table.launches
    assert launch.origin[0] == "scale"
    assert launch.bytes_moved == 4 * (32 + 32 + 32 + 4 + 8 + 4)
    assert launch.flops > 0
    (launch,) = program_of(*matrix_product(Given())).table.launches
    assert launch.flops > 2 * 8 * 12 * 16


@pytest.mark.opencl
@pytest.mark.parametrize("lazy", [True, False])
def test_an_explicit_kernel_with_two_outputs(*, lazy: bool) -> None:
    ramp = Tensor.arange(4).cast(F32) if lazy else Tensor(np.arange(4, dtype=np.float32))
    first, second = custom_kernel(SUMS, ramp)
    assert len(plan_of({"a": first, "b": second}).kernels) == 1
    assert (first.item(), second.item()) == (7.0, 12.0)


@pytest.mark.opencl
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_half_in_the_slot_is_what_would_be_stored(lanes: int) -> None:
    read = "vload_half(i, in0)" if lanes == 1 else "vload_half4(i, in0)"
    source, given = f"EPILOGUE({read} * 0.3f, i * {lanes});", Tensor.input("x", (3, 8), dt.float16)
    third = np.float32(0.3)
    y = by_hand(source, (3, 8), lambda v: v * third, given, kind=dt.float16, lanes=lanes)
    z = y.float() * 4096.0
    assert kinds(program_of(z)) == "custom"
    values = floats(3, 8).astype(np.float16)
    want = (values.astype(np.float32) * third).astype(np.float16)
    np.testing.assert_array_equal(compute(z, x=values), want.astype(np.float32) * 4096)


@pytest.mark.opencl
def test_eager_values_are_computed_once() -> None:
    given = Tensor(floats(4, 4))
    y = scaled(given + 1.0)
    z = (y * 3.0).kernelize()
    same(y.numpy(), (floats(4, 4) + 1) * 2)
    same(z.numpy(), (floats(4, 4) + 1) * 6)
    assert scaled(given + 1.0).schedule().launches == []
