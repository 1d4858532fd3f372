"""What is written for clang on the host is for PoCL only; other drivers get plain OpenCL C."""

import re
from dataclasses import replace

import numpy as np
import pytest

from runtime.format.artifact import from_memory
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from scheduler.compile import compile_plain
from scheduler.context import CompileContext
from scheduler.device.spec import SPECS, DeviceSpec
from scheduler.device.targets import spec_of_device
from scheduler.emit.artifact import Emitted
from scheduler.errors import DeviceLimitError
from scheduler.onnx_import import from_proto
from scheduler.tensor.tensor import Tensor
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.scheduler.support.programs import emitted

pytestmark = pytest.mark.opencl
INPUT = (np.arange(240) % 17 / 8 - 1).astype(np.float32).reshape(6, 40)
WEIGHT = (np.arange(960) % 13 / 16 - 0.4).astype(np.float32).reshape(40, 24)


def network() -> Tensor:
    """A product, a function of the prelude, a reduction of rows: three kernels."""
    return (Tensor.input("x", INPUT.shape) @ Tensor.weight(WEIGHT)).gelu().softmax(-1)


def compiled(spec: DeviceSpec, output: Tensor) -> Emitted:
    return emitted({"y": output}, context=CompileContext(spec))


def other_driver(device: Device) -> Device:
    """Return a CPU device as another driver than PoCL would describe it."""
    return replace(device, info=replace(device.info, platform="Other", kind="cpu"))


def test_only_pocl_gets_code_for_clang_on_the_host() -> None:
    device = choose_device("cpu")
    assert spec_of_device(device).host_clang is device.info.is_pocl
    assert not spec_of_device(other_driver(device)).host_clang
    assert all(row.host_clang is not row.is_simt for row in SPECS.values())


def test_a_device_that_says_so_has_no_float64() -> None:
    device = choose_device("cpu")
    without = tuple(e for e in device.info.extensions if e != "cl_khr_fp64")
    assert spec_of_device(device).float64
    poor = replace(device, info=replace(device.info, extensions=without))
    assert not spec_of_device(poor).float64
    model = parsed("(double[4] x) => (double[4] y) { y = Exp(x) }")
    with pytest.raises(DeviceLimitError, match="computes in float64"):
        compile_plain(from_proto(model), target=spec_of_device(poor))


@pytest.mark.parametrize("target", ["cpu", "gpu", "adreno"])
def test_other_drivers_get_plain_programs_of_single_kernels(target: str) -> None:
    made = compiled(replace(SPECS[target], host_clang=False), network())
    assert made.manifest["replay"] == {}
    for program in made.manifest["programs"]:
        assert not re.findall(r"__builtin\w*|__asm__|ext_vector_type|M_HOST", program["source"])


def test_code_for_pocl_is_plain_on_another_driver() -> None:
    """All of it is behind the name that PoCL alone defines; without it the numbers are the same."""
    output = network()
    made = compiled(SPECS["cpu-avx2"], output)
    for program in made.manifest["programs"]:
        assert "__builtin_convertvector" in program["source"]
        program["source"] = "#undef POCL_DEVICE_ADDRESS_BITS\n" + program["source"]
    device = other_driver(choose_device("cpu"))
    artifact = from_memory(made.manifest, made.data)
    with Program(artifact, device, shared_cache(choose_device("cpu"))) as program:
        assert program.stats.launches["run"] == len(program._entries["run"].steps)  # no replay
        got = program.run({"x": INPUT})["y"].copy()
    np.testing.assert_allclose(got, output.interp({"x": INPUT}), rtol=1e-5)
