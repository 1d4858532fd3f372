"""What is refused of a kernel written by hand, and what a wrong one leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from runtime import BuildError
from scheduler import CustomKernel, custom_kernel
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats

F32 = dt.float32


@pytest.mark.opencl
def test_a_build_error_names_the_kernel_and_the_line() -> None:
    broken = CustomKernel(
        "broken", "int i = 0;\nEPILOGUE(in0[i], i);\nnonsense(i);", [((4,), F32)], 4
    )
    (y,) = custom_kernel(broken, Tensor(floats(4)))
    with pytest.raises(BuildError, match=r"custom kernel broken:3:3: .*nonsense") as error:
        y.numpy()
    assert len(str(error.value).splitlines()) == 1


def test_the_interpreter_needs_a_reference() -> None:
    silent = CustomKernel("silent", "out0[0] = 1;", [((1,), F32)], 1)
    (y,) = custom_kernel(silent, Tensor(floats(4)))
    with pytest.raises(ModelError, match=r"custom kernel silent: the interpreter .* reference"):
        y.interp()
    wrong = CustomKernel("wrong", "out0[0] = 1;", [((1,), F32)], 1, lambda v: v)
    (y,) = custom_kernel(wrong, Tensor(floats(4)))
    with pytest.raises(ModelError, match=r"wrong: its reference returned shapes \[\(4,\)\]"):
        y.interp()


BAD_SOURCES = {
    "empty": ("  ", "1 to 65536 characters"),
    "too long": ("int i;" * 20_000, "1 to 65536 characters"),
    "not closed": ("if (in0[0] > 0) { out0[0] = 1;", 'line 1: "{" is not closed'),
    "closes the function": ("out0[0] = 1;\n} __kernel void evil() {", 'line 2: "}" closes nothing'),
    "crossed": ("out0[(0]) = 1;", '"]" closes nothing'),
    "open comment": ("out0[0] = 1; /* to the end", "does not end"),
    "open literal": ("out0[0] = 'a;", "does not end"),
    "directive": ("out0[0] = 1;\n  #define in0 out0", "preprocessor directive"),
    "continued line": ("// out \\\n}", "continued lines"),
    "not ASCII": ("out0[0] = 1; // \u00e9", "plain ASCII"),
    "unknown input": ("out0[0] = in2[0];", "names in2, but is given 1 input"),
    "unknown output": ("out1[0] = in0[0];", "names out1; it has 1 output"),
    "reserved": ("float m_exp = 1; out0[0] = m_exp;", "m_exp is a name of the compiler's"),
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
        custom_kernel(CustomKernel("bad", source, [((1,), F32)], 1), Tensor.input("x", (1,)))
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
    ],
)
def test_fields_that_make_no_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "name": "k",
        "source": "int i = 0;",
        "outputs": [((4,), F32)],
        "items": 4,
    }
    assert str(CustomKernel(**good)) == "k"
    with pytest.raises(ModelError, match=message):
        CustomKernel(**{**good, **fields})


def test_an_empty_input_is_refused() -> None:
    kernel = CustomKernel("k", "out0[0] = in0[0];", [((1,), F32)], 1)
    with pytest.raises(ModelError, match="in0 has no elements"):
        custom_kernel(kernel, Tensor(np.zeros((0, 4), np.float32)))


def test_equal_kernels_are_one_node() -> None:
    kernel = CustomKernel("k", "out0[0] = in0[0];", [((1,), F32)], 1)
    given = Tensor.input("x", (4,))
    nodes = [custom_kernel(k, given)[0].node for k in (kernel, CustomKernel(**vars(kernel)))]
    assert nodes[0] is nodes[1]
