"""The megakernel gives the results of single launches, and believes no damaged table."""

from typing import Any

import numpy as np
import pytest

from runtime.errors import ArtifactError, RuntimeFault
from runtime.format.artifact import from_memory
from runtime.opencl.binding import cl
from runtime.opencl.device import choose_device
from runtime.opencl.program_cache import ProgramCache
from runtime.run.executor import Program, build_binaries, load_program
from tests.runtime import tiny

OPENCL = pytest.mark.opencl
BASE = np.array([1, 2, 3, 4], np.float32)


@OPENCL
@pytest.mark.parametrize(
    ("workers", "options"),
    # The last one has the atomics of OpenCL 1.
    [(1, ""), (2, ""), (7, ""), (40, ""), (3, "-cl-std=CL1.2")],
)
def test_any_number_of_workers_gives_the_same_many_times(workers: int, options: str) -> None:
    raw = tiny.altered(tiny.megakernel_manifest(), {"programs/2/options": options})
    with tiny.on_cpu(raw, compute_units=workers) as program:
        for turn in range(1, 51):
            outputs = program.run(tiny.inputs(turn))
            total = sum(max(0, turn - back) for back in range(3))
            np.testing.assert_array_equal(outputs["y"], 2 * total * BASE + tiny.WEIGHT)
            np.testing.assert_array_equal(outputs["count"], [1225])
        np.testing.assert_array_equal(program.state("queue"), [48 * BASE, 49 * BASE, 50 * BASE])


@OPENCL
def test_entries_are_one_launch_each_and_share_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNTIME_CHECK", "1")  # also looks at the counters after each run
    with tiny.on_cpu(tiny.megakernel_manifest()) as program:
        assert [len(program._entries[name].steps) for name in program.entries] == [1, 1]
        assert program.stats.launches == {"run": 5, "prepare": 1}
        assert program.run({"x": 5 * BASE}, "prepare") == {}
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 12 * BASE + tiny.WEIGHT)
        program.reset()
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 2 * BASE + tiny.WEIGHT)


@OPENCL
def test_profile_times_each_launch_of_the_same_code() -> None:
    with tiny.on_cpu(tiny.megakernel_manifest()) as program:
        times = program.profile(tiny.inputs(), iterations=3)
        names = ["shift", "sum", "double_it", "add_weight", "add_bytes"]
        assert [time.name for time in times] == names
        assert all(time.median_ms > 0 for time in times)
        np.testing.assert_array_equal(program.state("queue"), [BASE, BASE, BASE])
        spans = program.spans(tiny.inputs(), iterations=2)
        assert [[span.name for span in turn] for turn in spans] == [names, names]
        assert all(a.end_ns <= b.start_ns for a, b in zip(spans[0], spans[0][1:], strict=False))


@OPENCL
def test_kernels_without_a_function_are_launched_between() -> None:
    raw = tiny.megakernel_manifest()
    raw["kernels"][2]["function"] = -1
    with tiny.on_cpu(raw) as program:
        names = [step.name for step in program._entries["run"].steps]
        assert names == ["shift .. sum", "double_it", "add_weight .. add_bytes"]
        program.run(tiny.inputs(1))
        program.run(tiny.inputs(2))
        outputs = program.run(tiny.inputs(3))
        np.testing.assert_array_equal(outputs["y"], 12 * BASE + tiny.WEIGHT)
        assert len(program.profile(tiny.inputs(), iterations=1)) == 5


@OPENCL
def test_a_run_that_failed_leaves_no_counters_behind() -> None:
    raw = tiny.megakernel_manifest()
    raw["kernels"].append({**raw["kernels"][4], "function": -1, "local": [1, 1, 1]})
    raw["kernels"][5].update({"global": [2, 1, 1], "local": [2, 1, 1]})  # the source asks for 1
    raw["entries"]["broken"] = {**raw["entries"]["run"], "launches": [0, 1, 2, 3, 5]}
    with tiny.on_cpu(raw) as program:
        program.run(tiny.inputs())
        assert program._megakernel is not None
        counters = program._megakernel._buffers[3]
        garbage = np.full(counters.size // 4, 7, np.int32)
        for reset in (False, True):
            with pytest.raises(RuntimeFault, match=r"entry 'broken', add_bytes: .*WORK_GROUP"):
                program.run(tiny.inputs(), "broken")
            # What a run that was cut short may leave: with it a worker waits for ever.
            cl.enqueue_copy(program._queue, counters, garbage)
            if reset:
                program.reset()
            np.testing.assert_array_equal(program.run(tiny.inputs())["count"], [1225])
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 4 * BASE + tiny.WEIGHT)


@OPENCL
def test_binaries_are_of_the_programs_that_are_needed(tmp_path: Any) -> None:
    info = choose_device("cpu").info
    raw = tiny.megakernel_manifest()
    binaries = build_binaries(raw, tiny.data_blob(), "cpu")
    assert [bool(binary) for binary in binaries] == [False, False, True]
    for program, binary in zip(raw["programs"], binaries, strict=True):
        program["binary"] = binary
    target = {"name": "cpu", "device": info.name, "driver": info.driver, "options": ""}
    path = tiny.write(tmp_path / "a.pkl", **{**raw, "target": target})
    with load_program(path, "cpu") as loaded:
        assert loaded.stats.built_from_source == 0
        np.testing.assert_array_equal(loaded.run(tiny.inputs())["y"], 2 * BASE + tiny.WEIGHT)


@OPENCL
def test_a_megakernel_that_fails_costs_speed_only(caplog: pytest.LogCaptureFixture) -> None:
    raw = tiny.megakernel_manifest()
    raw["programs"][2]["source"] += "oops"
    device = choose_device("cpu")
    artifact = from_memory(raw, tiny.data_blob())
    with Program(artifact, device, ProgramCache(device)) as program:
        assert len(program._entries["run"].steps) == 5
        np.testing.assert_array_equal(program.run(tiny.inputs())["y"], 2 * BASE + tiny.WEIGHT)
    assert "kernels are launched one by one" in caplog.text


@OPENCL
def test_a_kernel_with_other_arguments_is_refused() -> None:
    raw = tiny.megakernel_manifest()
    raw["programs"][2]["source"] = "__kernel void replay(__global int* a) { a[0] = 1; }"
    with pytest.raises(ArtifactError, match="its source takes 1 arguments, expected 6"):
        tiny.on_cpu(raw)
    raw["programs"][2]["source"] = "__kernel void other(__global int* a) { a[0] = 1; }"
    with pytest.raises(ArtifactError, match=r"kernel 'replay': cannot be bound: .*INVALID_KERNEL"):
        tiny.on_cpu(raw)


MOST = 2**31 - 2**17
# A record is three words and one for each argument: add_weight has three, shift two.
LAUNCHES = {f"e{n}": [3] * 199_728 for n in range(14)} | {"rest": [3] * 9 + [0] * 2}
FULL = {name: {"inputs": [], "outputs": [], "launches": one} for name, one in LAUNCHES.items()}
ENTRY = {"inputs": [], "outputs": [], "launches": [0]}
# Values by their place -> what the error says.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"replay/program": 3}, r"replay.program: 3 is outside 0\.\.2"),
    ({"replay/program": -1}, "-1 is outside"),
    ({"replay/program": tiny.GONE}, "the field 'program' is missing"),
    ({"replay": [1]}, "replay: expected a dict, found list"),
    ({"replay/functions": 3}, "expected list, found int"),
    ({"replay/functions": [7]}, r"replay.functions\[0\]: expected a dict, found int"),
    ({"replay/functions/0/args": 0}, r"replay.functions\[0\].args: 0 is outside"),
    ({"replay/functions/0/args": 1025}, r"1025 is outside 1\.\.1024"),
    ({"replay": {}}, r"function: 0 is outside -1\.\.-1"),
    ({"kernels/0/function": 5}, r"kernels\[0\].function: 5 is outside -1\.\.4"),
    ({"kernels/0/function": -2}, "-2 is outside"),
    ({"kernels/0/function": True}, "expected int, found bool"),
    (
        {"kernels/0/function": 1},
        r"kernels\[0\].function: 1 is 'sum' with 2 arguments, the kernel is 'shift' with 2",
    ),
    ({"kernels/0/args/+": tiny.X}, "'shift' with 2 arguments, the kernel is 'shift' with 3"),
    ({"kernels/0/args": [8, 0]}, r"8 is outside 0\.\.7"),
    (
        {f"buffers/{tiny.TWICE}/{key}": v for key, v in (("kind", "image"), ("image", [1, 1]))}
        | {f"buffers/{tiny.TWICE}/offset": 0},
        r"kernels\[2\].args: 0 is an image, expected buffers",
    ),
    ({"kernels/0/global": [MOST + 1, 1, 1]}, "at most 2147352576 for a kernel with a function"),
    ({"kernels/0/global": [1, 2, 1]}, r"\[1, 2, 1\], expected \[n, 1, 1\]"),
    ({"kernels/1/local": [2, 1, 1]}, r"kernels\[1\].local: 2 is outside 1\.\.1"),
    ({"entries": FULL | {"e": ENTRY}}, "a table of 16777221 words .* at most 16777216 allowed"),
]


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_a_damaged_table_is_refused(changes: dict[str, Any], message: str) -> None:
    raw = tiny.altered(tiny.megakernel_manifest(), changes)
    with pytest.raises(ArtifactError, match=message) as error:
        from_memory(raw, tiny.data_blob())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "changes",
    [{"kernels/0/global": [MOST, 1, 1]}, pytest.param({"entries": FULL}, marks=pytest.mark.slow)],
)
def test_a_table_at_its_bounds_is_taken(changes: dict[str, Any]) -> None:
    from_memory(tiny.altered(tiny.megakernel_manifest(), changes), tiny.data_blob())
