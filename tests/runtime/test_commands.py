"""The commands on artifacts: data on stdout, one line on stderr, the documented exit codes."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from cereal.log_writer import LogWriter
from cereal.schema import new_event
from tests.runtime import tiny
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.tools.conftest import Modeld
from tools.lib.named_file import kind_of
from tools.lib.terminal import format_table
from tools.timing.program_inputs import make_inputs

pytestmark = pytest.mark.opencl


@pytest.fixture
def modeld(capsys: pytest.CaptureFixture[str]) -> Modeld:
    return Modeld(capsys)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    path = tmp_path / "in.npz"
    np.savez(path, **tiny.inputs())  # type: ignore[arg-type]  # numpy types **kwds as its own bool
    return path


def test_exec_writes_what_run_returns(
    artifact: Path, arrays: Path, tmp_path: Path, modeld: Modeld
) -> None:
    out = tmp_path / "out.npz"
    command = ("exec", artifact, "--inputs", arrays, "--outputs", out)
    about = {"name": "y", "dtype": "float32", "shape": [4]}
    found = modeld(0, *command, "--json").json["outputs"][0]
    assert found == {**about, "min": 12.0, "max": 48.0, "not_finite": 0}
    with np.load(out) as outputs:
        np.testing.assert_array_equal(outputs["y"], [12, 24, 36, 48])
        np.testing.assert_array_equal(outputs["count"], [1225])
    assert "float32" in modeld(0, *command).out
    assert {path.name for path in tmp_path.iterdir()} == {"in.npz", "out.npz", "tiny.pkl"}


def test_scalars_and_any_name_come_through_compile_and_exec(tmp_path: Path, modeld: Modeld) -> None:
    """`file` and `allow_pickle` are numpy.savez's own keywords; the rank of an input may be 0."""
    proto = parsed(
        """(float[3] x, float t) => (float[3] file, float allow_pickle)
        { file = Mul(x, t) allow_pickle = ReduceSum<keepdims = 0>(file) }"""
    )
    model, made, out = (tmp_path / name for name in ("m.onnx", "m.pkl", "out.npz"))
    onnx.save(proto, model)
    np.savez(tmp_path / "in.npz", x=np.arange(3, dtype=np.float32), t=np.float32(2))
    modeld(0, "compile", model, "-o", made)
    modeld(0, "exec", made, "--inputs", tmp_path / "in.npz", "--outputs", out)
    with np.load(out) as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "file": [0, 2, 4],
            "allow_pickle": 6,
        }


def test_exec_refuses_files_that_are_not_arrays(
    artifact: Path, arrays: Path, tmp_path: Path, modeld: Modeld
) -> None:
    np.save(tmp_path / "single.npy", np.zeros(3))
    np.savez(tmp_path / "objects.npz", x=np.array([{}], dtype=object))
    (tmp_path / "cut.npz").write_bytes(arrays.read_bytes()[:-100])
    np.savez(tmp_path / "odd.npz", x=np.zeros(5, np.float32), frame=tiny.inputs()["frame"])
    out = tmp_path / "out.npz"
    for name, message in (
        ("no.npz", "found no such file"),
        ("tiny.pkl", "found an artifact"),
        ("single.npy", "found a single NumPy array"),
        ("objects.npz", "expected an .npz of plain arrays"),
        ("cut.npz", "expected an .npz of plain arrays"),
        ("odd.npz", "input 'x': expected float32[4], found float32[5]"),
    ):
        command = ("exec", artifact, "--outputs", out, "--inputs", tmp_path / name)
        assert modeld.refused(2, message, *command).out == ""
    assert not out.exists()


@pytest.mark.parametrize("load", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bench_has_the_documented_keys(
    load: bool, artifact: Path, modeld: Modeld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Loading is warm only where there is a cache: the user's may be one that cannot be written.
    monkeypatch.setenv("MODELD_CACHE_DIR", str(tmp_path / "cache"))
    trace = tmp_path / "trace.json"
    command = ["bench", artifact, "--iters", "7", "--profile", "--trace", trace]
    result = modeld(0, *command, "--json", *([] if load else ["--no-load"])).json
    documented = "median_ms mean_ms p90_ms p95_ms p99_ms min_ms max_ms write_ms kernels_ms read_ms"
    documented += (
        " runs warm_up_runs seconds runs_per_s kernels launches submissions bytes_moved gflops"
    )
    documented += " arena_peak_bytes load_warm_ms load_cold_ms rss_mib device"
    assert set(documented.split()) <= set(result)
    ordered = [result[f"{name}_ms"] for name in ("min", "median", "p90", "p95", "p99", "max")]
    assert ordered[0] > 0
    assert ordered == sorted(ordered)
    assert ordered[0] <= result["mean_ms"] <= ordered[-1]
    assert min(result[f"{name}_ms"] for name in ("write", "kernels", "read")) > 0
    assert (result["runs"], result["warm_up_runs"]) == (7, 5)
    # From the manifest: 4 flops and 16 bytes an item; 1 + 4 + 4 + 4 + 1 items.
    assert (result["kernels"], result["launches"], result["bytes_moved"]) == (5, 5, 14 * 16)
    assert result["submissions"] == 5
    assert result["gflops"] == pytest.approx(14 * 4 / (result["median_ms"] * 1e6))
    assert result["arena_peak_bytes"] == 512
    if load:  # a cold one compiles five kernels and a warm one none
        assert 0 < result["load_warm_ms"] < result["load_cold_ms"]
    assert [row["name"] for row in result["per_kernel"]][:2] == ["shift", "sum"]
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    # As many runs as --iters says, each with its 5 launches and the 4 phases of the host.
    assert result["trace_runs"] == 7
    assert len(events) == 3 + 7 * (1 + 5 + 4)
    assert {"/shift", "/sum"} <= {event["name"] for event in events}


def test_bench_shows_a_table_and_takes_an_entry(artifact: Path, modeld: Modeld) -> None:
    out = modeld(0, "bench", artifact, "--iters", "2", "--no-load", "--entry", "prepare").out
    for part in ("entry prepare", "slowest 1 of 1 launch (", "/shift", "load     not measured"):
        assert part in out
    assert "double_it" not in out


def test_bench_refuses_what_cannot_work(artifact: Path, tmp_path: Path, modeld: Modeld) -> None:
    modeld.refused(2, "no entry 'x'", "bench", artifact, "--entry", "x")
    modeld.refused(3, "no OpenCL device matches", "bench", artifact, "--device", "no such")
    modeld.refused(2, "expected one artifact, or", "bench", "--submission", artifact, artifact)
    modeld.refused(2, "--blocks: expected", "bench", "--submission", artifact, "--blocks", "0")
    modeld.refused(2, "record", "bench", "--submission", artifact)
    modeld.refused(4, "no such file", "bench", tmp_path / "no.pkl")
    artifact.write_bytes(artifact.read_bytes()[:-1])
    modeld.refused(4, "truncated", "bench", artifact)


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


def test_devices_marks_the_one_that_is_taken(modeld: Modeld) -> None:
    result = modeld(0, "devices", "--json").json
    assert result["auto"] in [device["index"] for device in result["devices"]]
    out = modeld(0, "devices").out
    assert result["devices"][0]["name"] in out
    assert "\n*  " in out


def test_inspect_shows_an_artifact_without_its_sources(artifact: Path, modeld: Modeld) -> None:
    result = modeld(0, "inspect", artifact, "--json").json
    assert (result["kind"], result["name"], result["kernels"]) == ("artifact", "tiny", 5)
    assert result["entries"]["run"]["flops"] == 14 * 4
    assert result["state"] == [{"name": "queue", "dtype": "float32", "shape": [3, 4]}]
    out = modeld(0, "inspect", artifact).out
    assert "prepare" in out
    assert "__kernel" not in out
    # Which kind a file is does not depend on its name.
    assert kind_of(artifact.rename(artifact.with_suffix(".onnx"))) == "artifact"


@pytest.mark.parametrize("ending", ["", ".bz2", ".zst"])
def test_inspect_shows_a_log_with_rates(tmp_path: Path, modeld: Modeld, ending: str) -> None:
    path = tmp_path / f"a.rlog{ending}"
    with LogWriter(path) as log:
        for index in range(5):
            event = new_event("carControl", mono_time_ns=1_000_000_000 + index * 10_000_000)
            log.write(event.to_bytes())
    result = modeld(0, "inspect", path, "--json").json
    assert (result["kind"], result["messages"]) == ("log", 5)
    assert result["services"] == [
        {"service": "carControl", "count": 5, "span_s": 0.04, "rate_hz": 100.0}
    ]


def test_inspect_shows_an_onnx_model(tmp_path: Path, modeld: Modeld) -> None:
    path, weight = tmp_path / "a.onnx", np.array([1, 2, 3], np.float32)
    text = "(float[2,3] x) => (float[2,3] y) { s = Add(x, w) y = Relu(s) }"
    onnx.save(parsed(text, w=weight), path)
    result = modeld(0, "inspect", path, "--json").json
    assert (result["kind"], result["opset"], result["parameters"]) == ("onnx", 17, 3)
    assert result["operators"] == {"Add": 1, "Relu": 1}
    assert result["inputs"] == [{"name": "x", "dtype": "float", "shape": [2, 3]}]


def test_inspect_refuses_other_files(tmp_path: Path, modeld: Modeld) -> None:
    path = tmp_path / "a"
    for content, found in (
        (b"PK\x03\x04 and so on, longer than a header", "a ZIP archive"),
        (b"", "an empty file"),
        # Begins like an event of four segments and ends before the first of them.
        (b"\3\0\0\0\1\0\0\0" + bytes(8), "data of an unknown kind (it begins with 03 00 00 00 01"),
    ):
        path.write_bytes(content)
        modeld.refused(4, f"found {found}", "inspect", path)
    modeld.refused(4, "found no such file", "inspect", tmp_path / "no")


def test_tables_align_numbers() -> None:
    assert format_table(("a", "number"), [("x", 1), ("long", 22.5)]) == (
        "a     number\nx          1\nlong  22.500"
    )
    assert format_table(("empty",), []) == "empty"
