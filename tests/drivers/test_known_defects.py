"""Smallest kernels that show what is wrong with a driver, and that the checker checks.

A test fails under a driver that is not known to be wrong there, and is an expected failure under
one that is; where a later version is right, it passes. docs/drivers.md names them.
"""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runtime.opencl.binding import cl
from runtime.opencl.device import choose_device
from tests.drivers.conftest import Reports

pytestmark = pytest.mark.opencl
Array = NDArray[Any]


def computed(source: str, given: Array, *more: Any) -> Array:
    """Run kernel `f(out, in, ...)`, one work-item for each element of `in`."""
    device = choose_device(None)
    queue = cl.CommandQueue(device.context)
    program = cl.Program(device.context, source).build()
    flags = cl.mem_flags
    result = np.zeros_like(given)
    out = cl.Buffer(device.context, flags.COPY_HOST_PTR, hostbuf=result)
    source_buffer = cl.Buffer(device.context, flags.COPY_HOST_PTR, hostbuf=given)
    kernel = cl.Kernel(program, "f")
    kernel.set_args(out, source_buffer, *more)
    cl.enqueue_nd_range_kernel(queue, kernel, (given.size,), (1,))
    cl.enqueue_copy(queue, result, out)
    return result


def known(driver: str, wrong: str, right: bool) -> None:
    if not right and driver == wrong:
        pytest.xfail("a known defect of this driver, see docs/drivers.md")
    assert right


def test_a_loop_may_turn_more_than_65535_times(driver: str) -> None:
    """llvmpipe counts all turns of a work-item's loops and leaves them then, without a word."""
    source = """__kernel void f(__global int* out, const __global int* in, int n) {
      int sum = 0;
      for (int i = 0; i < n; i++) sum += in[0];
      out[0] = sum;
    }"""
    found = computed(source, np.ones(1, np.int32), np.int32(70_000))
    known(driver, "rusticl", found[0] == 70_000)


def test_nan_times_zero_is_nan(driver: str) -> None:
    """llvmpipe's compiler takes x * 0 for 0, and x + 0 for x."""
    source = """__kernel void f(__global float* out, const __global float* in) {
      out[get_global_id(0)] = in[get_global_id(0)] * 0.0f;
    }"""
    found = computed(source, np.array([np.nan, np.inf, 1.0], np.float32))
    known(driver, "rusticl", bool(np.isnan(found[:2]).all()) and found[2] == 0)


QUOTIENT = """__kernel void f(__global int* out, const __global int* in, int n) {
  const int i = get_global_id(0);
  out[i] = in[i] % n + in[i] / n;
}"""


def test_a_remainder_beside_its_quotient_is_known_to_the_checker(driver: str) -> None:
    """oclgrind's check for values that nobody wrote does not know the instruction `freeze`.

    The optimiser puts it before a division it shares; what comes of it counts as unwritten.
    """
    if driver != "oclgrind":
        given = np.arange(12, dtype=np.int32)
        np.testing.assert_array_equal(
            computed(QUOTIENT, given, np.int32(5)), given % 5 + given // 5
        )
        return
    text = (
        "import numpy as np; from tests.drivers.test_known_defects import *; "
        "computed(QUOTIENT, np.arange(12, dtype=np.int32), np.int32(5))"
    )
    environment = {**os.environ, "OCLGRIND_BUILD_OPTIONS": "", "OCLGRIND_LOG": "/dev/stdout"}
    result = subprocess.run(
        [sys.executable, "-c", text], env=environment, capture_output=True, text=True, check=False
    )
    known(driver, "oclgrind", "Unsupported instruction: freeze" not in result.stdout)


@pytest.mark.parametrize(
    ("body", "report"),
    [
        ("out[0] = get_global_id(0);", "data race"),
        ("out[get_global_id(0) + 1] = 0;", "Invalid write"),
        ("int never[2]; out[get_global_id(0)] = never[in[0]];", "Uninitialized value"),
    ],
)
def test_the_checker_reports(body: str, report: str, driver: str, reports: Reports) -> None:
    """What 0 reports are worth: a race, an access beyond the end, a value that nobody wrote."""
    if driver != "oclgrind":
        pytest.skip("only oclgrind checks")
    source = f"__kernel void f(__global int* out, const __global int* in) {{ {body} }}"
    computed(source, np.zeros(4, np.int32))
    assert report in reports.take()
