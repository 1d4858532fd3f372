"""Programs whose launches a driver records: one command a run, the same numbers, faults as before.

They run under layer.c, in a process of their own: tests/runtime/test_recording.py.
"""

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.errors import RuntimeFault
from runtime.format.artifact import from_memory
from runtime.opencl.binding import cl
from runtime.opencl.device import Device
from runtime.opencl.recording import recorder_of
from runtime.opencl.recording_api import RecordingError
from runtime.opencl.steps import Launch
from runtime.run.executor import Program, load_program
from tests.recordings.conftest import CHANGING, KIND, Layer
from tests.runtime import tiny
from tools.cli import main

BASE = tiny.inputs()["x"]
ONE = (1, 1, 1)
ALL = pytest.mark.parametrize("kind", [*CHANGING, "khr-fixed"])
EACH_CHANGING = pytest.mark.parametrize("kind", CHANGING)


def load(device: Device, place: Path) -> Program:
    return load_program(tiny.write(place / "tiny.pkl"), device)


def buffer(device: Device, value: float) -> cl.Buffer:
    how = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(device.context, how, hostbuf=tiny.inputs(value)["x"])


def results(program: Program, *given: Any) -> list[float]:
    """Return what runs on these values or buffers give: twice the sum of the last three."""
    found = []
    for x in given:
        inputs: dict[str, Any] = tiny.inputs()
        inputs["x"] = x if isinstance(x, cl.Buffer) else x * BASE
        outputs = program.run(inputs)
        assert outputs["count"] == [1225]
        found.append(float(((outputs["y"] - tiny.WEIGHT) / BASE)[2]))
    return found


@ALL
def test_a_run_is_one_command_with_the_same_results(
    device: Device, layer: Layer, tmp_path: Path
) -> None:
    with load(device, tmp_path) as program:
        assert (program.submissions("run"), program.submissions("prepare")) == (1, 1)
        layer.take()
        assert results(program, 1, 10, 100, 1000) == [2, 22, 222, 2220]
        assert layer.take() == {"launches": 0, "replays": 4, "updates": 0, "living": 1}
        program.run({"x": BASE}, "prepare")  # a single launch is not recorded, and shares states
        assert results(program, 0) == [2002]
        assert layer.take() == {"launches": 1, "replays": 1, "updates": 0, "living": 1}
        program.reset()
        assert results(program, 1) == [2]
        # Each launch is timed by itself.
        assert len(program.profile(tiny.inputs(), iterations=1)) == 5
        assert layer.take()["launches"] == 5


@EACH_CHANGING
def test_inputs_change_their_buffers(device: Device, layer: Layer, tmp_path: Path) -> None:
    ring = [buffer(device, 10.0), buffer(device, 100.0)]
    with load(device, tmp_path) as program:
        layer.take()
        assert results(program, *ring, 1, 1, *ring) == [20, 220, 222, 204, 24, 222]
        taken = layer.take()
        assert (taken["launches"], taken["replays"]) == (0, 6)
        assert taken["updates"] >= 5
        program.run({"x": ring[0]}, "prepare")  # kernels that are launched alone follow as well
        assert results(program, 0) == [220]
        # What is timed one by one reads it there, too.
        moved: dict[str, Any] = {**tiny.inputs(), "x": ring[1]}
        program.profile(moved, iterations=1)
        assert results(program, 0) == [200]


def test_a_long_list_is_several_recordings(device: Device, layer: Layer, tmp_path: Path) -> None:
    layer.set_longest(2)
    assert device.info.recording is not None
    limited = replace(device.info.recording, longest=2)
    info = replace(device.info, recording=limited)
    with load(replace(device, info=info), tmp_path) as program:
        assert program.submissions() == 3
        assert results(program, 1, buffer(device, 10.0), 1) == [2, 22, 24]
        assert layer.take()["living"] == 3


@EACH_CHANGING
def test_states_that_alternate(device: Device) -> None:
    """Two buffers are by turns the state before and the state after."""
    source = "__kernel void next(__global float* to, __global float* from) { *to = 3 * *from + 1; }"
    kernel = cl.Kernel(cl.Program(device.context, source).build(), "next")
    states = [buffer(device, value) for value in (0.0, 7.0)]
    kernel.set_args(*states)
    queue = cl.CommandQueue(device.context)
    assert device.info.recording is not None
    recorder = recorder_of(device.info.recording, queue)
    recording = recorder.record([Launch("next", kernel, ONE, ONE)] * 2)
    expected = 7.0
    for turn in range(6):
        for position in (0, 1):
            recording.change(1, position, states[(turn + position) % 2])
            recording.change(0, position, states[(turn + position) % 2])
        recording.replay()
        expected = 3 * expected + 1
        found = np.empty(1, np.float32)
        cl.enqueue_copy(queue, found, states[turn % 2])
        assert found == [expected]
    # An argument that is none: the driver's own word, and nothing has run.
    recording.change(0, 9, states[0])
    with pytest.raises(RecordingError, match=r"INVALID_VALUE|INVALID_ARG_INDEX"):
        recording.replay()
    recording.release()


@ALL
@pytest.mark.parametrize("failing", ["find", "new", "record", "end", "replay"])
def test_what_is_not_recorded_is_launched_one_by_one(
    device: Device, layer: Layer, failing: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer.fail(failing, -5)
    with load(device, tmp_path) as program:
        (line,) = caplog.messages
        assert line.startswith("launches are enqueued one by one: ")
        assert ("has no function" if failing == "find" else "OUT_OF_RESOURCES") in line
        assert program.submissions() == 5
        layer.take()
        assert results(program, 1, buffer(device, 10.0), 100) == [2, 22, 222]
        assert layer.take() == {"launches": 15, "replays": 0, "updates": 0, "living": 0}


@pytest.mark.parametrize("kind", ["khr-fixed"])
def test_a_driver_that_changes_no_arguments(
    device: Device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with load(device, tmp_path) as program:
        assert results(program, 1) == [2]
        assert results(program, buffer(device, 10.0), buffer(device, 100.0)) == [22, 222]
        (line,) = caplog.messages
        assert "does not have cl_khr_command_buffer_mutable_dispatch" in line
        assert program.submissions() == 5


@EACH_CHANGING
def test_a_refused_change_costs_the_recording_and_not_the_run(
    device: Device, layer: Layer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layer.fail("update", -5)
    with load(device, tmp_path) as program:
        assert results(program, 1, buffer(device, 10.0), 100) == [2, 22, 222]
        (line,) = caplog.messages
        assert "5 launches are enqueued one by one now" in line
        assert "OUT_OF_RESOURCES" in line


@ALL
def test_a_device_that_is_lost_is_a_fault_of_the_run(
    device: Device, layer: Layer, tmp_path: Path
) -> None:
    with load(device, tmp_path) as program:
        assert results(program, 1) == [2]
        layer.fail("replay", -36)
        with pytest.raises(RuntimeFault, match=r"'run', shift .. add_bytes, recorded.*INVALID_COM"):
            results(program, 5)
        layer.fail("replay", 0)
        layer.fail("finish", -14)  # lost while the recording runs
        with pytest.raises(RuntimeFault, match="'run', reading the outputs: clFinish failed"):
            results(program, 10)
        layer.fail("finish", 0)
        assert results(program, 100) == [222]


@pytest.mark.parametrize(("kind", "wanted"), [("qcom", "0"), ("none", "1")])
def test_nothing_is_recorded(
    device: Device, layer: Layer, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because it is switched off, or because the device has nothing for it."""
    monkeypatch.setenv("RUNTIME_RECORD", wanted)
    with load(device, tmp_path) as program:
        assert program.submissions() == 5
        assert layer.take()["living"] == 0


def test_pocl_is_recorded_only_where_that_is_asked_for(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pocl = replace(device, info=replace(device.info, platform="Portable Computing Language"))
    for wanted, commands in (("", 5), ("1", 1)):
        monkeypatch.setenv("RUNTIME_RECORD", wanted)
        with load(pocl, tmp_path) as program:
            assert program.submissions() == commands


def test_what_the_megakernel_leaves_out_is_recorded_with_it(
    device: Device, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its arguments are fixed, so an input that is a buffer is copied to its place."""
    monkeypatch.setenv("RUNTIME_RECORD", "1")
    info = replace(device.info, platform="Portable Computing Language", kind="cpu")
    raw = tiny.altered(tiny.megakernel_manifest(), {"kernels/2/function": -1})
    artifact = from_memory(raw, tiny.data_blob())
    with load_program(artifact, replace(device, info=info)) as program:
        assert (program.submissions("run"), program.submissions("prepare")) == (1, 1)
        layer.take()
        assert results(program, 1, buffer(device, 10.0), 100) == [2, 22, 222]
        assert layer.take() == {"launches": 0, "replays": 3, "updates": 0, "living": 1}


def test_bench_compares_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tools.bench.host.PAUSE_S", 0.0)
    monkeypatch.setenv(KIND, "qcom")
    monkeypatch.setenv("RUNTIME_RECORD", "1")
    words = ["bench", str(tiny.write(tmp_path / "tiny.pkl")), "--submission", "--device", "pocl"]
    assert main([*words, "--blocks", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["launches"], found["submissions"]) == (5, 1)
    assert found["extension"] == "cl_qcom_recordable_queues"
    for clock in ("host", "run"):
        assert 0 < found[clock]["ratio_min"] <= found[clock]["ratio"] <= found[clock]["ratio_max"]
    assert main([*words, "--blocks", "1"]) == 0
    assert "5 launches as 1 command (cl_qcom_recordable_queues)" in capsys.readouterr().out
    assert main(["devices"]) == 0
    assert "shared memory, recordings" in capsys.readouterr().out
    monkeypatch.delenv("RUNTIME_RECORD")
    assert main([*words, "--blocks", "1"]) == 2
    assert "are not recorded (on PoCL's CPU devices only with" in capsys.readouterr().err


@EACH_CHANGING
def test_runs_leave_nothing_behind(device: Device, tmp_path: Path) -> None:
    ring = [buffer(device, 10.0), buffer(device, 100.0)]
    with load(device, tmp_path) as program:
        inputs: list[dict[str, Any]] = [{**tiny.inputs(), "x": one} for one in ring]
        blocks = []
        for _ in range(4):
            for turn in range(50):
                program.run(inputs[turn % 2])
            gc.collect()
            blocks.append(sys.getallocatedblocks())
        # Something kept for each run would be 50 at least, each time.
        assert min(np.diff(blocks)) < 10
