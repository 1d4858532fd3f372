"""Programs run, keep state between runs and entries, and refuse inputs that do not fit."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import ArtifactError, BuildError, InputError, RuntimeFault
from runtime.format.artifact import from_memory
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import ProgramCache
from runtime.run.executor import Program, load_program, run_once
from tests.runtime import tiny

pytestmark = pytest.mark.opencl

BASE = np.array([1, 2, 3, 4], np.float32)


def test_run_computes_state_arena_and_weights(program: Program) -> None:
    outputs = program.run(tiny.inputs())
    # Queue: 0, 0, x. Twice its sum plus the weight.
    np.testing.assert_array_equal(outputs["y"], 2 * BASE + tiny.WEIGHT)
    np.testing.assert_array_equal(outputs["count"], [1225])
    outputs = program.run(tiny.inputs(10.0))
    np.testing.assert_array_equal(outputs["y"], 22 * BASE + tiny.WEIGHT)


def test_entries_share_state(program: Program) -> None:
    assert program.entries == ("run", "prepare")
    assert program.run({"x": tiny.inputs(5.0)["x"]}, "prepare") == {}
    np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 2 * (5 + 1) * BASE + tiny.WEIGHT)
    np.testing.assert_array_equal(program.state("queue"), [0 * BASE, 5 * BASE, BASE])


@pytest.mark.parametrize(
    ("reset", "value"), [(-1, np.zeros(12, np.float32)), (256, tiny.QUEUE_RESET)]
)
def test_reset_restores_zeros_or_the_value_in_the_data(
    reset: int, value: np.ndarray[Any, Any], tmp_path: Path
) -> None:
    raw = tiny.altered(tiny.manifest(), {f"buffers/{tiny.QUEUE}/reset": reset})
    with tiny.load(tmp_path / "a.pkl", **raw) as program:
        np.testing.assert_array_equal(program.state("queue").ravel(), value)
        program.run(tiny.inputs(7.0))
        np.testing.assert_array_equal(program.state("queue").ravel()[:8], value[4:])
        np.testing.assert_array_equal(program.state("queue")[2], 7 * BASE)
        program.reset()
        np.testing.assert_array_equal(program.state("queue").ravel(), value)


def test_specs_name_shapes_and_dtypes(program: Program) -> None:
    ports = (*program.inputs, *program.outputs)
    assert [f"{one.name} {one.dtype}{list(one.shape)}" for one in ports] == [
        *("x float32[4]", "frame uint8[100]", "y float32[4]", "count int32[1]")
    ]
    assert [spec.name for spec in program.entry_inputs("prepare")] == ["x"]
    assert program.entry_outputs("prepare") == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, r"entry 'run', input 'x': expected float32\[4\], it is missing"),
        ({"x": np.zeros(4)}, r"expected float32\[4\], found float64\[4\]"),
        ({"x": np.zeros((1, 4), np.float32)}, r"expected float32\[4\], found float32\[1, 4\]"),
        ({"x": np.zeros(8, np.float32)[::2]}, "C-contiguous; use numpy.ascontiguousarray"),
        ({"x": [1.0, 2.0]}, "as numpy array, found list"),
        ({"z": np.zeros(1)}, "unknown input 'z'; it takes: x, frame"),
    ],
)
def test_input_that_does_not_fit(program: Program, change: dict[str, Any], message: str) -> None:
    inputs = {**tiny.inputs(), **change}
    if inputs["x"] is None:
        del inputs["x"]
    with pytest.raises(InputError, match=message):
        program.run(inputs)
    assert not program.state("queue").any()


def test_unknown_entry_and_state_list_what_there_is(program: Program) -> None:
    with pytest.raises(InputError, match=r"tiny: no entry 'go'; it has: run, prepare"):
        program.run(tiny.inputs(), "go")
    with pytest.raises(InputError, match=r"tiny: no state 'total'; it has: queue"):
        program.state("total")


def test_scalars_have_no_dimension(tmp_path: Path) -> None:
    raw = tiny.altered(tiny.manifest(), {f"buffers/{tiny.COUNT}/shape": []})
    with tiny.load(tmp_path / "a.pkl", **raw) as program:
        count = program.run(tiny.inputs())["count"]
        assert (count.shape, count.item()) == ((), 1225)


def test_stats_count_runs_and_sizes(program: Program) -> None:
    stats = program.stats
    assert (stats.kernels, stats.launches) == (5, {"run": 5, "prepare": 1})
    assert (stats.arena_bytes, stats.weight_bytes, stats.state_bytes) == (512, 16, 48)
    assert stats.load_ms > 0
    assert stats.runs == 0  # loading warms up, which is not a run
    program.run(tiny.inputs())
    assert stats.runs == 1
    assert stats.last_run_ms > 0


def test_closed_program_says_so_and_has_let_go_of_the_artifacts_memory(artifact: Path) -> None:
    program = load_program(artifact)
    memory = weakref.ref(program._memory._blob.obj)
    outputs = program.run(tiny.inputs())
    program.close()
    program.close()
    for use in (lambda: program.run(tiny.inputs()), program.reset, lambda: program.state("queue")):
        with pytest.raises(RuntimeFault, match="tiny: the program is closed"):
            use()
    np.testing.assert_array_equal(outputs["count"], [1225])  # the caller's arrays stay
    assert tiny.collected(memory)


def test_programs_share_no_state_and_do_not_depend_on_their_file(artifact: Path) -> None:
    with load_program(artifact) as first, load_program(artifact) as second:
        first.run(tiny.inputs(3.0))
        tiny.write(artifact, name="next")
        np.testing.assert_array_equal(second.run(tiny.inputs())["y"], 2 * BASE + tiny.WEIGHT)


def test_profile_times_each_launch_and_advances_state(program: Program) -> None:
    times = program.profile(tiny.inputs(), iterations=3)
    assert [time.name for time in times] == ["shift", "sum", "double_it", "add_weight", "add_bytes"]
    assert [time.launch for time in times] == [0, 1, 2, 3, 4]
    assert all(0 <= time.min_ms <= time.median_ms for time in times)
    assert (times[1].origin, times[1].flops, times[1].bytes_moved) == (("/sum",), 16, 64)
    np.testing.assert_array_equal(program.state("queue"), [BASE, BASE, BASE])
    assert len(program.profile({"x": BASE}, "prepare", 1)) == 1
    with pytest.raises(InputError, match="expected at least 1, got 0"):
        program.profile(tiny.inputs(), iterations=0)


def test_run_once_needs_no_file_and_its_outputs_stay() -> None:
    first = run_once(tiny.manifest(), tiny.data_blob(), tiny.inputs())
    second = run_once(tiny.manifest(), tiny.data_blob(), tiny.inputs(2.0), choose_device())
    np.testing.assert_array_equal(first["y"], 2 * BASE + tiny.WEIGHT)
    np.testing.assert_array_equal(second["y"], 4 * BASE + tiny.WEIGHT)


def test_source_that_does_not_build_is_one_line_with_the_compilers_error() -> None:
    raw = tiny.manifest()
    raw["programs"][0]["source"] += "__kernel void broken(__global float* a) { a[0] = oops; }"
    with pytest.raises(
        BuildError, match=r"error: line \d+:\d+: use of undeclared .* 'oops'"
    ) as error:
        run_once(raw, tiny.data_blob(), tiny.inputs())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernels/0/name": "slide"}, ArtifactError, "'slide': cannot be bound: .*INVALID_KERNEL"),
        ({"kernels/0/args/+": tiny.X}, ArtifactError, "takes 2 arguments, the manifest gives 3"),
        # The source requires (1, 1, 1).
        ({"kernels/1/local": [2, 1, 1]}, RuntimeFault, "entry 'run', sum: .*INVALID_WORK_GROUP"),
    ],
)
def test_kernel_unlike_its_source(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_once(tiny.altered(tiny.manifest(), changes), tiny.data_blob(), tiny.inputs())


def test_buffer_the_device_cannot_hold_is_refused_by_name() -> None:
    raw = tiny.manifest()
    limit = choose_device().info.max_alloc_bytes
    raw["buffers"][tiny.X]["size"] = limit + 256
    with pytest.raises(ArtifactError, match=rf"buffer 'x' takes {limit + 256} bytes, .* allows"):
        run_once(raw, tiny.data_blob(), tiny.inputs())


def test_weights_of_a_cpu_device_are_the_artifacts_bytes_themselves() -> None:
    device = choose_device("cpu")
    data = bytearray(tiny.data_blob())
    artifact = from_memory(tiny.manifest(), memoryview(data))
    with Program(artifact, device, ProgramCache(device)) as program:
        data[0:16] = np.full(4, 100, np.float32).tobytes()
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 2 * BASE + 100)


@pytest.mark.parametrize(
    ("launches", "value", "index"),
    [
        ([0, 1, 2, 3, 4], float("inf"), "index 0"),
        ([0, 2, 3, 4], 1.0, ""),  # nobody computes `total`: a read of arena that nothing wrote
    ],
)
def test_checks_find_values_that_are_not_finite(
    launches: list[int], value: float, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")
    entries = tiny.manifest()["entries"]
    with tiny.load(tmp_path / "a.pkl", entries=entries) as program:
        program.run(tiny.inputs())
    entries["run"]["launches"] = launches
    message = f"'run': output 'y' has 4 of 4 values that are not finite.*{index}"
    with (
        tiny.load(tmp_path / "a.pkl", entries=entries) as program,
        pytest.raises(RuntimeFault, match=message),
    ):
        program.run(tiny.inputs(value))
