"""The megakernel computes what its kernels compute when they are launched one by one."""

import dataclasses
import re
from collections.abc import Mapping

import numpy as np
import pytest

from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from scheduler import CustomKernel, custom_kernel
from scheduler.emit.artifact import Emitted, emit
from scheduler.ir import dtype as dt
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.loops.jobs import weight
from tests.scheduler.support.programs import Array, emitted, floats


def launched(made: Emitted) -> Emitted:
    """Return the same artifact without its megakernel."""
    kernels = [{**kernel, "function": -1} for kernel in made.manifest["kernels"]]
    replay = made.manifest["replay"].get("program")
    programs = [p for i, p in enumerate(made.manifest["programs"]) if i != replay]
    manifest = {**made.manifest, "kernels": kernels, "programs": programs, "replay": {}}
    return Emitted(manifest, made.data, made.arena_unplanned)


def load(made: Emitted, workers: int | None = None) -> Program:
    opened = device = choose_device("cpu")
    if workers is not None:
        info = dataclasses.replace(device.info, compute_units=workers)
        device = dataclasses.replace(device, info=info)
    return Program(from_memory(made.manifest, made.data), device, shared_cache(opened))


def steps(program: Program) -> list[int]:
    """Return how many launches each entry takes."""
    return [len(program._entries[name].steps) for name in program.entries]


def network() -> Emitted:
    """Two entries over one state: a push, and a small network on the queue."""
    image = Tensor.input("image", (1, 4, 12, 12))
    queue = Tensor.state("queue", (3, 16))
    hidden = image.conv2d(weight(16, 4, 3, 3), weight(16), padding=1).relu()
    hidden = hidden.conv2d(weight(16, 1, 3, 3), groups=16, stride=2, padding=1).gelu()
    row = hidden.sum((2, 3)).layernorm()
    pushed = queue.assign(Tensor.cat([queue[1:], row]))
    out = (pushed.reshape(1, 48) @ weight(48, 32)).softmax(-1) @ weight(32, 8)
    push = schedule({}, [pushed.node])
    run = schedule({"y": out.node}, [pushed.node])
    return emit({"run": run, "prepare": push}, name="t", kind="plain")


@pytest.mark.opencl
@pytest.mark.parametrize("workers", [1, 2, 5, 33])
def test_a_network_with_state_gives_the_same_bits_many_times(workers: int) -> None:
    made = network()
    assert len(made.manifest["kernels"]) > 6
    rng = np.random.default_rng(1)
    with load(made, workers) as replayed, load(launched(made)) as plain:
        assert steps(replayed) == [1, 1]
        assert min(steps(plain)) > 1
        for turn in range(30):
            image = rng.standard_normal((1, 4, 12, 12)).astype(np.float32)
            entry = "prepare" if turn % 4 == 1 else "run"
            got = replayed.run({"image": image}, entry)
            want = plain.run({"image": image}, entry)
            assert all(np.array_equal(got[name], want[name]) for name in want)
            np.testing.assert_array_equal(replayed.state("queue"), plain.state("queue"))


def custom(body: str, x: Tensor) -> Tensor:
    kernel = CustomKernel("twice", body, [(x.shape, dt.float32)], x.size)
    return custom_kernel(kernel, x)[0]


ITEM = "const size_t i = get_global_id(0) + get_group_id(1) * get_local_size(0);\n"
SIZE = "out0[i] = in0[i] + (float)(get_global_size(0) + get_num_groups(0) + get_local_id(0));"
SHARED = """__local float shared[1];
shared[0] = in0[get_global_id(0)];
barrier(CLK_LOCAL_MEM_FENCE);
out0[get_global_id(0)] = 2.0f * shared[0];"""


def around(body: str) -> tuple[Emitted, Mapping[str, Array]]:
    """Return a custom kernel between two sums, and inputs."""
    x = Tensor.input("x", (24, 16))
    y = custom(body, x.sum(1))
    made = emitted({"y": y.reshape(4, 6).sum(1) * 3.0})
    return made, {"x": floats(24, 16)}


@pytest.mark.opencl
@pytest.mark.parametrize(("body", "count"), [(ITEM + SIZE, 1), (SHARED, 3)])
def test_custom_kernels_are_functions_unless_they_need_a_work_group(body: str, count: int) -> None:
    made, inputs = around(body)
    with load(made) as replayed, load(launched(made)) as plain:
        assert steps(replayed) == [count]
        assert steps(plain) == [3]
        np.testing.assert_array_equal(replayed.run(inputs)["y"], plain.run(inputs)["y"])
        assert len(replayed.profile(inputs, iterations=1)) == 3


STORE = "out0[get_global_id(0)] = in0[get_global_id(0)];"


@pytest.mark.parametrize(
    ("line", "functions"),
    [
        ("__local float a[4];", [0, -1, 1]),
        ("local int b;", [0, -1, 1]),
        ("barrier(CLK_LOCAL_MEM_FENCE);", [0, -1, 1]),
        ("__constant float c = 1.0f;", [0, -1, 1]),
        ("int d = work_group_all(1);", [0, -1, 1]),
        ("int e = get_sub_group_size();", [0, -1, 1]),
        ("/* local barrier */", [0, 1, 2]),
    ],
)
def test_what_concerns_a_work_group_is_not_a_function(line: str, functions: list[int]) -> None:
    made, _ = around(f"{line}\n{STORE}")
    assert [k["function"] for k in made.manifest["kernels"]] == functions


def test_one_launch_needs_no_megakernel() -> None:
    made = emitted({"y": Tensor.input("x", (8,)) * 2.0})
    assert made.manifest["replay"] == {}
    assert [k["function"] for k in made.manifest["kernels"]] == [-1]
    assert len(made.manifest["programs"]) == 1


def test_functions_are_the_kernels_in_order_and_texts_are_stable() -> None:
    first, second = network(), network()
    assert first.manifest == second.manifest
    replay = first.manifest["replay"]
    source = first.manifest["programs"][replay["program"]]["source"]
    for kernel in first.manifest["kernels"]:
        function = replay["functions"][kernel["function"]]
        assert (function["name"], function["args"]) == (kernel["name"], len(kernel["args"]))
    calls = re.findall(r"M_TASKS\((\w+)\(", source)
    assert calls == [function["name"] for function in replay["functions"]]
    assert source.count("__kernel") == 1
