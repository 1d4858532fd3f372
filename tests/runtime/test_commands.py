"""The commands on artifacts: data on stdout, one line on stderr, the documented exit codes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from cereal.log_writer import LogWriter
from cereal.schema import new_event
from tests.runtime import tiny
from tools.bench import make_inputs
from tools.cli import main
from tools.inspect import kind_of
from tools.lib.table import format_size, format_table

pytestmark = pytest.mark.opencl


class Shell:
    """Runs commands in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def json(self, *arguments: object) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.out(*arguments, "--json"))
        return result

    def out(self, *arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == 0
        return self._capsys.readouterr().out

    def error(self, code: int, *arguments: object) -> str:
        assert main([str(argument) for argument in arguments]) == code
        captured = self._capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("modeld: error: ")
        assert captured.err.count("\n") == 1
        return captured.err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, **tiny.inputs())  # type: ignore[arg-type]  # numpy types **kwds as its own bool
    return path


def test_exec_writes_what_run_returns(
    artifact: Path, arrays: Path, tmp_path: Path, shell: Shell
) -> None:
    out = tmp_path / "out.npz"
    command = ("exec", artifact, "--inputs", arrays, "--outputs", out)
    about = {"name": "y", "dtype": "float32", "shape": [4]}
    found = shell.json(*command)["outputs"][0]
    assert found == {**about, "min": 12.0, "max": 48.0, "not_finite": 0}
    with np.load(out) as outputs:
        np.testing.assert_array_equal(outputs["y"], [12, 24, 36, 48])
        np.testing.assert_array_equal(outputs["count"], [1225])
    assert "float32" in shell.out(*command)
    assert {path.name for path in tmp_path.iterdir()} == {"in.npz", "out.npz", "tiny.pkl"}


def test_exec_refuses_files_that_are_not_arrays(
    artifact: Path, arrays: Path, tmp_path: Path, shell: Shell
) -> None:
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    (tmp_path / "cut.npz").write_bytes(arrays.read_bytes()[:-100])
    np.savez(tmp_path / "odd.npz", x=np.zeros(5, np.float32), frame=tiny.inputs()["frame"])
    out = tmp_path / "out.npz"
    for name, message in (
        ("no.npz", "cannot read: No such file"),
        ("tiny.pkl", "expected an .npz of plain arrays"),
        ("single.npy", "found a single array"),
        ("objects.npz", "expected an .npz of plain arrays"),
        ("cut.npz", "expected an .npz of plain arrays"),
        ("odd.npz", "input 'x': expected float32[4], found float32[5]"),
    ):
        command = ("exec", artifact, "--outputs", out, "--inputs", tmp_path / name)
        assert message in shell.error(2, *command)
    command = ("exec", artifact, "--outputs", tmp_path / "no" / "out.npz", "--inputs", arrays)
    assert "expected its directory to exist" in shell.error(2, *command)
    assert not out.exists()


@pytest.mark.parametrize("load", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bench_has_the_documented_keys(
    load: bool, artifact: Path, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loading is warm only where there is a cache: the user's may be one that cannot be written.
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    trace = tmp_path / "trace.json"
    command = ["bench", artifact, "--iters", "7", "--profile", "--trace", trace]
    result = shell.json(*command, *([] if load else ["--no-load"]))
    documented = "median_ms p99_ms min_ms kernels launches bytes_moved arena_peak_bytes gflops"
    documented += " load_warm_ms load_cold_ms rss_mib device"
    assert set(documented.split()) <= set(result)
    assert 0 < result["min_ms"] <= result["median_ms"] <= result["p99_ms"]
    # From the manifest: 4 flops and 16 bytes an item; 1 + 4 + 4 + 4 + 1 items.
    assert (result["kernels"], result["launches"], result["bytes_moved"]) == (5, 5, 14 * 16)
    assert result["gflops"] == pytest.approx(14 * 4 / (result["median_ms"] * 1e6))
    assert result["arena_peak_bytes"] == 512
    if load:  # a cold one compiles five kernels and a warm one none
        assert 0 < result["load_warm_ms"] < result["load_cold_ms"]
    assert [row["name"] for row in result["per_kernel"]][:2] == ["shift", "sum"]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert result["trace_runs"] == 7  # as many as --iters says; each with its 5 launches
    assert len(events) == 2 + 7 * (1 + 5)
    assert {"/shift", "/sum"} <= {event["name"] for event in events}


def test_bench_shows_a_table_and_takes_an_entry(artifact: Path, shell: Shell) -> None:
    out = shell.out("bench", artifact, "--iters", "2", "--no-load", "--entry", "prepare")
    for part in ("entry prepare", "slowest 1 of 1 launch (", "/shift", "load     not measured"):
        assert part in out
    assert "double_it" not in out


def test_bench_refuses_what_cannot_work(artifact: Path, tmp_path: Path, shell: Shell) -> None:
    assert "--iters: expected 1" in shell.error(2, "bench", artifact, "--iters", "0")
    assert "no entry 'x'" in shell.error(2, "bench", artifact, "--entry", "x")
    assert "no OpenCL device matches" in shell.error(3, "bench", artifact, "--device", "no such")
    assert "no such file" in shell.error(4, "bench", tmp_path / "no.pkl")
    artifact.write_bytes(artifact.read_bytes()[:-1])
    assert "truncated" in shell.error(4, "bench", artifact)


def test_bench_inputs_are_seeded_and_fit_their_use() -> None:
    from runtime import TensorSpec

    specs = [
        TensorSpec("road_frame", (8192,), np.dtype(np.uint8)),
        TensorSpec("road_geometry", (4,), np.dtype(np.int32)),
        TensorSpec("road_transform", (3, 3), np.dtype(np.float32)),
        TensorSpec("desire", (8,), np.dtype(np.float32)),
        TensorSpec("tokens", (5,), np.dtype(np.int64)),
        TensorSpec("scale", (), np.dtype(np.float32)),
    ]
    inputs = make_inputs(specs, seed=1)
    assert all(inputs[s.name].dtype == s.dtype and inputs[s.name].shape == s.shape for s in specs)
    assert np.unique(inputs["road_frame"]).size > 30
    width, height, stride, uv_offset = inputs["road_geometry"].tolist()
    assert uv_offset + stride * height // 2 <= 8192
    assert 0 < width <= stride
    # A level camera: no rotation, so lines stay lines of the picture.
    np.testing.assert_allclose(inputs["road_transform"][2], [0, 0, 1], atol=1e-12)
    assert set(inputs["tokens"].tolist()) <= {0, 1}
    again, other = make_inputs(specs, seed=1), make_inputs(specs, seed=2)
    np.testing.assert_array_equal(inputs["desire"], again["desire"])
    assert not np.array_equal(inputs["desire"], other["desire"])


def test_devices_marks_the_one_that_is_taken(shell: Shell) -> None:
    result = shell.json("devices")
    assert result["auto"] in [device["index"] for device in result["devices"]]
    out = shell.out("devices")
    assert result["devices"][0]["name"] in out
    assert "\n*  " in out


def test_inspect_shows_an_artifact_without_its_sources(artifact: Path, shell: Shell) -> None:
    result = shell.json("inspect", artifact)
    assert (result["kind"], result["name"], result["kernels"]) == ("artifact", "tiny", 5)
    assert result["entries"]["run"]["flops"] == 14 * 4
    assert result["state"] == [{"name": "queue", "dtype": "float32", "shape": [3, 4]}]
    out = shell.out("inspect", artifact)
    assert "prepare" in out
    assert "__kernel" not in out
    # Which kind a file is does not depend on its name.
    assert kind_of(artifact.rename(artifact.with_suffix(".onnx"))) == "artifact"


@pytest.mark.parametrize("ending", ["", ".bz2", ".zst"])
def test_inspect_shows_a_log_with_rates(tmp_path: Path, shell: Shell, ending: str) -> None:
    path = tmp_path / f"a.rlog{ending}"
    with LogWriter(path) as log:
        for index in range(5):
            event = new_event("carControl", mono_time_ns=1_000_000_000 + index * 10_000_000)
            log.write(event.to_bytes())
    result = shell.json("inspect", path)
    assert (result["kind"], result["messages"]) == ("log", 5)
    assert result["services"] == [
        {"service": "carControl", "count": 5, "span_s": 0.04, "rate_hz": 100.0}
    ]


def test_inspect_shows_an_onnx_model(tmp_path: Path, shell: Shell) -> None:
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Relu", ["s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", float32, [2, 3])],
        [helper.make_tensor_value_info("y", float32, [2, 3])],
        [helper.make_tensor("w", float32, [3], [1, 2, 3])],
    )
    path = tmp_path / "a.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    result = shell.json("inspect", path)
    assert (result["kind"], result["opset"], result["parameters"]) == ("onnx", 17, 3)
    assert result["operators"] == {"Add": 1, "Relu": 1}
    assert result["inputs"] == [{"name": "x", "dtype": "float", "shape": [2, 3]}]


def test_inspect_refuses_other_files(tmp_path: Path, shell: Shell) -> None:
    path = tmp_path / "a"
    for content, found in (
        (b"PK\x03\x04 and so on, longer than a header", "50 4b 03 04"),
        (b"", "nothing"),
        # Begins like an event of four segments and ends before the first of them.
        (b"\3\0\0\0\1\0\0\0" + bytes(8), "03 00 00 00 01"),
    ):
        path.write_bytes(content)
        assert f"it begins with {found}" in shell.error(4, "inspect", path)
    assert "cannot read: No such file" in shell.error(4, "inspect", tmp_path / "no")


def test_tables_align_numbers_and_sizes_are_for_people() -> None:
    assert format_table(("a", "number"), [("x", 1), ("long", 22.5)]) == (
        "a     number\nx          1\nlong  22.500"
    )
    assert format_table(("empty",), []) == "empty"
    sizes = {
        0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 3 << 20: "3.0 MiB", 5 << 30: "5.0 GiB",
    }  # fmt: skip
    assert {size: format_size(size) for size in sizes} == sizes
