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


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("modeld: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, **tiny.inputs())  # type: ignore[arg-type]  # numpy types **kwds as its own bool
    return path


def test_exec_writes_what_run_returns(
    artifact: Path, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npz"
    command = ["exec", str(artifact), "--inputs", str(arrays), "--outputs", str(out)]
    result = run_json(capsys, *command)
    assert result["outputs"][0] == {
        "name": "y",
        "dtype": "float32",
        "shape": [4],
        "min": 12.0,
        "max": 48.0,
        "not_finite": 0,
    }
    with np.load(out) as outputs:
        np.testing.assert_array_equal(outputs["y"], [12, 24, 36, 48])
        np.testing.assert_array_equal(outputs["count"], [1225])
    assert main(command) == 0
    assert "float32" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"in.npz", "out.npz", "tiny.pkl"}


def test_exec_refuses_files_that_are_not_arrays(
    artifact: Path, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.npz")
    exec_it = ("exec", str(artifact), "--outputs", out, "--inputs")
    assert "cannot read: No such file" in error_of(capsys, 2, *exec_it, str(tmp_path / "no.npz"))
    assert "expected an .npz of plain arrays" in error_of(capsys, 2, *exec_it, str(artifact))
    single = tmp_path / "single.npy"
    np.save(single, np.zeros(3))
    assert "found a single array" in error_of(capsys, 2, *exec_it, str(single))
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{}], dtype=object))
    assert "expected an .npz of plain arrays" in error_of(capsys, 2, *exec_it, str(objects))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(arrays.read_bytes()[:-100])
    assert "expected an .npz of plain arrays" in error_of(capsys, 2, *exec_it, str(cut))
    nowhere = str(tmp_path / "missing" / "out.npz")
    command = ("exec", str(artifact), "--inputs", str(arrays), "--outputs", nowhere)
    assert "expected its directory to exist" in error_of(capsys, 2, *command)
    assert not Path(out).exists()


def test_exec_names_the_input_that_does_not_fit(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.npz"
    np.savez(path, x=np.zeros(5, np.float32), frame=tiny.inputs()["frame"])
    out = tmp_path / "out.npz"
    command = ("exec", str(artifact), "--inputs", str(path), "--outputs", str(out))
    assert "input 'x': expected float32[4], found float32[5]" in error_of(capsys, 2, *command)
    assert not out.exists()


def test_bench_has_the_documented_keys(
    artifact: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Loading is warm only where there is a cache: the user's may be one that cannot be written.
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    trace = tmp_path / "trace.json"
    command = ("bench", str(artifact), "--iters", "7", "--profile", "--trace", str(trace))
    result = run_json(capsys, *command)
    documented = "median_ms p99_ms min_ms kernels launches bytes_moved arena_peak_bytes gflops"
    documented += " load_warm_ms load_cold_ms rss_mib device"
    assert set(documented.split()) <= set(result)
    assert 0 < result["min_ms"] <= result["median_ms"] <= result["p99_ms"]
    # From the manifest: 4 flops and 16 bytes an item; 1 + 4 + 4 + 4 + 1 items.
    assert (result["kernels"], result["launches"], result["bytes_moved"]) == (5, 5, 14 * 16)
    assert result["gflops"] == pytest.approx(14 * 4 / (result["median_ms"] * 1e6))
    assert result["arena_peak_bytes"] == 512
    # A cold load compiles five kernels and a warm one none.
    assert 0 < result["load_warm_ms"] < result["load_cold_ms"]
    assert [row["name"] for row in result["per_kernel"]][:2] == ["shift", "sum"]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert result["trace_runs"] == 7  # as many as --iters says; each with its 5 launches
    assert len(events) == 2 + 7 * (1 + 5)
    assert {"/shift", "/sum"} <= {event["name"] for event in events}


def test_bench_shows_a_table_and_takes_an_entry(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bench", str(artifact), "--iters", "2", "--no-load", "--entry", "prepare"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "entry prepare" in out
    assert "slowest 1 of 1 launch (" in out
    assert "/shift" in out
    assert "double_it" not in out
    assert "load     not measured" in out


def test_bench_refuses_what_cannot_work(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--iters: expected 1" in error_of(capsys, 2, "bench", str(artifact), "--iters", "0")
    assert "no entry 'x'" in error_of(capsys, 2, "bench", str(artifact), "--entry", "x")
    assert "no such file" in error_of(capsys, 4, "bench", str(tmp_path / "no.pkl"))
    artifact.write_bytes(artifact.read_bytes()[:-1])
    assert "truncated" in error_of(capsys, 4, "bench", str(artifact))
    tiny.write(artifact)
    assert "no OpenCL device matches" in error_of(
        capsys, 3, "bench", str(artifact), "--device", "no such device"
    )


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


def test_devices_marks_the_one_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, "devices")
    assert result["auto"] in [device["index"] for device in result["devices"]]
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert result["devices"][0]["name"] in out
    assert "\n*  " in out


def test_inspect_shows_an_artifact_without_its_sources(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = run_json(capsys, "inspect", str(artifact))
    assert (result["kind"], result["name"], result["kernels"]) == ("artifact", "tiny", 5)
    assert result["entries"]["run"]["flops"] == 14 * 4
    assert result["state"] == [{"name": "queue", "dtype": "float32", "shape": [3, 4]}]
    assert main(["inspect", str(artifact)]) == 0
    out = capsys.readouterr().out
    assert "prepare" in out
    assert "__kernel" not in out


@pytest.mark.parametrize("ending", ["", ".bz2", ".zst"])
def test_inspect_shows_a_log_with_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    path = tmp_path / f"a.rlog{ending}"
    with LogWriter(path) as log:
        for index in range(5):
            event = new_event("carControl", mono_time_ns=1_000_000_000 + index * 10_000_000)
            log.write(event.to_bytes())
    result = run_json(capsys, "inspect", str(path))
    assert (result["kind"], result["messages"]) == ("log", 5)
    assert result["services"] == [
        {"service": "carControl", "count": 5, "span_s": 0.04, "rate_hz": 100.0}
    ]


def test_inspect_shows_an_onnx_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    result = run_json(capsys, "inspect", str(path))
    assert (result["kind"], result["opset"], result["parameters"]) == ("onnx", 17, 3)
    assert result["operators"] == {"Add": 1, "Relu": 1}
    assert result["inputs"] == [{"name": "x", "dtype": "float", "shape": [2, 3]}]


def test_inspect_refuses_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"PK\x03\x04 and so on, longer than a header")
    assert "it begins with 50 4b 03 04" in error_of(capsys, 4, "inspect", str(path))
    path.write_bytes(b"")
    assert "it begins with nothing" in error_of(capsys, 4, "inspect", str(path))
    # Begins like an event of four segments and ends before the first of them.
    path.write_bytes(b"\3\0\0\0\1\0\0\0" + bytes(8))
    assert "it begins with 03 00 00 00 01" in error_of(capsys, 4, "inspect", str(path))
    missing = str(tmp_path / "no")
    assert "cannot read: No such file" in error_of(capsys, 4, "inspect", missing)


def test_kind_does_not_depend_on_the_name(artifact: Path) -> None:
    renamed = artifact.rename(artifact.with_suffix(".onnx"))
    assert kind_of(renamed) == "artifact"


def test_table_aligns_numbers_to_the_right() -> None:
    assert format_table(("a", "number"), [("x", 1), ("long", 22.5)]) == (
        "a     number\nx          1\nlong  22.500"
    )
    assert format_table(("empty",), []) == "empty"


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert format_size(size) == text
