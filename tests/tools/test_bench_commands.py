"""`modeld bench` in its other modes: against peers, the roofline, the bus, the daemon process."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime import choose_device
from tests.runtime import tiny
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.small_monitoring import write_small_monitoring
from tools import (
    bench_against,
    bench_bus,
    bench_daemon,
    bench_host,
    bench_log,
    bench_roofline,
)
from tools.cli import main
from tools.lib import ceilings, peers
from tools.lib.peers import Peer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product with bias and activation."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((16, 8)).astype(np.float32), "w")
    bias = numpy_helper.from_array(np.ones(8, np.float32), "b")
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
            helper.make_node("Tanh", ["h"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [weight, bias],
    )
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    # IR 10: what peers read that are older than our onnx.
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(["bench", *arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("modeld: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As many threads as the device of this process has; blocks without pauses."""
    monkeypatch.setenv("POCL_MAX_PTHREAD_COUNT", "")  # restored afterwards
    monkeypatch.setattr(bench_against, "PAUSE_S", 0.0)
    return ["--threads", str(choose_device().info.compute_units)]


# --- against ----------------------------------------------------------------------------------


@pytest.mark.opencl
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_against_has_the_documented_keys_and_equal_outputs(
    model: Path, threads: list[str], peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed (extra bench)")
    found = run_json(capsys, "--against", peer, str(model), "--blocks", "3", *threads)
    documented = "ours_ms theirs_ms ratio ratio_min ratio_max max_rel_err"
    assert set(documented.split()) <= set(found)
    assert found["against"] == peer
    assert found["max_rel_err"] < 1e-5
    ratios = [ours / theirs for ours, theirs in found["blocks"]]
    assert len(ratios) == 3
    assert found["ratio"] == pytest.approx(float(np.median(ratios)))
    assert (found["ratio_min"], found["ratio_max"]) == pytest.approx((min(ratios), max(ratios)))
    # Both settings were tried, and the faster one counts.
    (other_ms,) = found["other_options_ms"].values()
    assert found["theirs_ms"] <= other_ms
    assert found["peers"][peer]["version"] == peers.version_of(peer)
    # No peer leaves a signal stack behind that is gone: Ctrl-C would end the process.
    seen: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, previous)
    assert seen == [signal.SIGUSR1]


@pytest.mark.opencl
def test_against_shows_a_wrong_result(
    model: Path,
    threads: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def open_wrong(path: Path, inputs: peers.Arrays, threads: int) -> list[peers.Variant]:
        del path, inputs, threads
        return [peers.Variant("wrong", lambda: None, lambda: {"y": np.full((4, 8), 2.0)})]

    monkeypatch.setitem(peers.PEERS, "numpy", Peer("bench", open_wrong))
    found = run_json(capsys, "--against", "numpy", str(model), "--blocks", "1", *threads)
    assert found["max_rel_err"] > 0.4  # tanh is at most 1


@pytest.mark.opencl
def test_against_binds_and_fixes_inputs_for_everybody(
    tmp_path: Path, threads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """y = tile(x, times): neither size is known without the options."""
    nodes = [
        helper.make_node("Tile", ["x", "times"], ["t"]),
        helper.make_node("Tanh", ["t"], ["y"]),
    ]
    inputs = [value("x", ("batch", 8)), value("times", (2,), TensorProto.INT64)]
    path = tmp_path / "tile.onnx"
    onnx.save(model_of(nodes, inputs, [value("y", (None, None))]), path)
    options = ["--bind", "batch=3", "--constant", "times=2,4", "--blocks", "1", *threads]
    given: list[tuple[tuple[int, ...], list[str]]] = []
    opened = peers.PEERS["onnxruntime"].open_variants

    def open_and_look(path: Path, arrays: peers.Arrays, threads: int) -> Sequence[peers.Variant]:
        variants = opened(path, arrays, threads)
        variants[0].run()
        given.append((variants[0].outputs()["y"].shape, list(arrays)))
        return variants

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(peers.PEERS, "onnxruntime", Peer("bench", open_and_look))
        found = run_json(capsys, "--against", "onnxruntime", str(path), *options)
    assert given == [((6, 32), ["x"])]
    assert found["max_rel_err"] < 1e-5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tile.onnx"]
    assert "--bind" in error_of(capsys, 2, "--against", "onnxruntime", "a", "b", "--bind", "n=1")
    assert "are for --against" in error_of(capsys, 2, str(path), "--bind", "n=1")


def test_missing_peer_is_one_line_with_the_extra(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PEERS, "not_installed_here", peers.PEERS["openvino"])
    error = error_of(capsys, 2, "--against", "onnxruntime,not_installed_here", str(model))
    assert "pip install 'modeld[bench]'" in error


@pytest.mark.opencl
def test_peer_that_refuses_the_model_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(peers.PeerError, match=r"onnxruntime .* expected it to open .*bad\.onnx"):
        peers.open_peer("onnxruntime", path, {}, 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--against", "tensorrt", "m.onnx"], "expected one of onnxruntime, openvino, tinygrad"),
        (["--against", ",", "m.onnx"], "expected names of peers"),
        (["--against", "onnxruntime"], "found 0 files"),
        (["--against", "onnxruntime", "m.onnx", "--threads", "0"], "--threads: expected 1 to"),
        (["--against", "onnxruntime", "m.onnx", "--blocks", "0"], "--blocks: expected 1"),
        (["--bus", "a.pkl"], "--bus: expected no file"),
        (["--daemon", "5"], "expected the artifact as --model"),
        (["--daemon", "nan", "--model", "m.pkl"], "expected 1 second or more, found nan"),
        ([], "expected one artifact, found 0 files"),
        (["--roofline", "a.pkl", "b.pkl"], "expected one artifact, found 2 files"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in error_of(capsys, 2, *arguments)


# --- roofline ---------------------------------------------------------------------------------


@pytest.mark.opencl
def test_roofline_judges_every_launch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "CACHES", tmp_path)  # small caches: small arrays, little time
    monkeypatch.setattr(ceilings.CeilingProbe.__init__, "__defaults__", ((1 << 16, 1 << 20), 10**5))
    monkeypatch.setattr(bench_roofline, "ROUNDS", 1)
    artifact = tiny.write(tmp_path / "tiny.pkl")
    found = run_json(capsys, str(artifact), "--roofline", "--iters", "3")
    assert sorted(row["launch"] for row in found["launches"]) == [0, 1, 2, 3, 4]
    assert sum(row["share"] for row in found["kernels"]) == pytest.approx(1.0)
    weights = {row["name"]: row["weight_bytes"] for row in found["launches"]}
    assert weights == {"shift": 0, "sum": 0, "double_it": 0, "add_weight": 16, "add_bytes": 0}
    # A few bytes in a launch of microseconds: nowhere near what the memory gives.
    assert all(row["of_roofline"] < 0.5 for row in found["kernels"])
    assert found["below_half_share"] == pytest.approx(1.0)
    assert found["ceilings"]["gflops"] > 0
    assert main(["bench", str(artifact), "--roofline", "--iters", "3"]) == 0
    out = capsys.readouterr().out
    assert "GFLOP/s float32 multiply-adds on all cores" in out
    assert "/add_weight" in out
    assert "all launches below 50%, small ones too: 100.0%" in out


# --- paced ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.opencl
def test_paced_measures_every_pause_in_every_company(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = tiny.write(tmp_path / "tiny.pkl")
    company = ["busy", "model", "one-cpu"]
    found = run_json(
        capsys, str(artifact), "--paced", "--iters", "2", "--beside", ",".join(company)
    )
    assert list(found["beside"]) == company
    for times in (found["pause_ms"], *found["beside"].values()):
        assert list(times) == ["0", "5", "30", "50"]
        for row in times.values():
            assert 0 < row["p50_ms"] <= row["p99_ms"]
            assert row["p99_over_p50"] == pytest.approx(row["p99_ms"] / row["p50_ms"])
    assert found["realtime"] == []
    assert main(["bench", str(artifact), "--paced", "--iters", "1"]) == 0
    assert "p99/p50" in capsys.readouterr().out


@pytest.mark.opencl
def test_paced_says_what_came_of_real_time(tmp_path: Path) -> None:
    artifact = str(tiny.write(tmp_path / "tiny.pkl"))
    code = f"from tools.cli import main; main(['bench', {artifact!r}, '--paced', '--iters', '2', "
    # A process of its own: memory stays locked, and a thread in front, until it ends.
    done = subprocess.run(
        [sys.executable, "-c", code + "'--realtime', '--json'])"],
        capture_output=True,
        text=True,
        check=True,
    )
    effects = {effect["name"]: effect for effect in json.loads(done.stdout)["realtime"]}
    assert {"priority", "lock_memory", "freeze_gc", "keep_awake"} <= set(effects)
    assert all(effect["effective"] or effect["reason"] for effect in effects.values())


def test_paced_refuses_what_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact = str(tiny.write(tmp_path / "tiny.pkl"))
    assert "found 'noise'" in error_of(capsys, 2, artifact, "--paced", "--beside", "noise")
    assert "found 2 files" in error_of(capsys, 2, artifact, artifact, "--paced")
    assert "found 0" in error_of(capsys, 2, artifact, "--paced", "--iters", "0")


# --- bus and daemon ---------------------------------------------------------------------------


def test_bus_loses_nothing_and_has_the_documented_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_bus.measure, "__defaults__", (20, 2, 20))
    found = run_json(capsys, "--bus")
    assert set(found) >= {"zmq_ipc", "msgq", "msgq_reason", "frame_handover_us"}
    zmq = found["zmq_ipc"]
    assert 0 < zmq["p50_us"] <= zmq["p99_us"]
    assert zmq["msgs_per_s"] > 0
    assert zmq["lost"] == 0
    assert found["msgq"] is None
    assert found["frame_handover_us"] > 0


def test_reading_a_log_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rlog.zst"
    bench_log.write_typical_log(path, 500)
    found = run_json(capsys, "--log", str(path))
    assert found["events"] == 500
    assert found["content_bytes"] > found["file_bytes"] == path.stat().st_size
    assert min(found[f"{way}_mb_per_s"] for way in ("read", "split", "unpack")) > 0
    monkeypatch.setattr(bench_log, "EVENTS", 200)
    assert run_json(capsys, "--log")["events"] == 200
    assert main(["bench", "--log", str(path)]) == 0
    assert "a reader for each event" in capsys.readouterr().out
    assert "at most one file" in error_of(capsys, 2, "--log", str(path), str(path))
    assert "expected a readable log" in error_of(capsys, 4, "--log", str(tmp_path / "none"))


@pytest.mark.opencl
def test_daemon_is_measured_as_a_process(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_daemon, "SETTLE_S", 0.2)
    monkeypatch.setattr(bench_daemon, "LAST_MESSAGE_S", 0.3)
    found = run_json(capsys, "--daemon", "1", "--model", str(tiny_model))
    documented = "frames published dropped exec_ms_p50 exec_ms_p99 host_ms_p50 host_ms_p99"
    documented += " rss_growth_mib fds_growth"
    assert set(documented.split()) <= set(found)
    assert found["frames"] == 20
    assert found["published"] + found["dropped"] == 20
    assert found["published"] == found["valid"] > 0
    assert 0 < found["exec_ms_p50"] <= found["exec_ms_p99"]
    assert 0 < found["host_ms_p50"] <= found["host_ms_p99"]
    assert found["fds_growth"] == 0


@pytest.mark.opencl
def test_the_daemon_besides_its_model_is_measured(
    tiny_model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_host, "WARM_UP_STEPS", 5)
    found = run_json(capsys, "--host", "--model", str(tiny_model), "--iters", "10")
    assert found["frames"] == 10
    for name in ("cpu_us", "wall_us"):
        assert 0 < found[f"{name}_min"] <= found[f"{name}_p50"] <= found[f"{name}_p99"]
    assert "expected the artifact as --model" in error_of(capsys, 2, "--host")
    assert "found 0" in error_of(capsys, 2, "--host", "--model", str(tiny_model), "--iters", "0")


@pytest.mark.slow
@pytest.mark.opencl
def test_starts_are_measured_from_the_process_to_the_first_message(
    tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_json(capsys, "--start", "1", "--model", str(tiny_model))
    assert found["starts"] == 1
    for name in ("start", "restart"):
        assert 0 < found[f"{name}_ms_p50"] <= found[f"{name}_ms_max"]
    assert "expected 1 start or more" in error_of(
        capsys, 2, "--start", "0", "--model", str(tiny_model)
    )
    assert "expected the artifact as --model" in error_of(capsys, 2, "--start", "1")


@pytest.mark.slow
@pytest.mark.opencl
def test_both_daemons_are_measured_side_by_side(
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_daemon, "SETTLE_S", 0.2)
    monkeypatch.setattr(bench_daemon, "LAST_MESSAGE_S", 0.3)
    monitoring = write_small_monitoring(tmp_path / "dmonitoring.pkl")
    both = ("--daemon", "1", "--model", str(tiny_model), "--monitoring")
    found = run_json(capsys, *both, str(monitoring))
    assert found["published"] == found["valid"] > 0
    beside = found["monitoring"]
    assert beside["frames"] == found["frames"] == 20
    assert beside["published"] + beside["dropped"] == 20
    assert beside["published"] == beside["valid"] > 0
    assert 0 < beside["exec_ms_p50"] <= beside["exec_ms_p99"]
    assert "host_ms_p50" not in beside
    assert main(["bench", *both, str(monitoring)]) == 0
    assert "driverStateV2" in capsys.readouterr().out
    wrong = error_of(capsys, 4, *both, str(tiny_model))
    assert "expected a driver monitoring artifact, found one of kind 'driving'" in wrong


@pytest.mark.opencl
def test_daemon_refuses_artifacts_that_a_camera_is_too_large_for(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = ("--daemon", "1", "--model")
    other = error_of(capsys, 4, *daemon, str(tiny_model), "--camera", "320x240")
    assert "found 320x240 with 144384; compile the models again with --camera 320x240" in other
    plain = tiny.write(tmp_path / "plain.pkl")
    assert "expected a driving artifact" in error_of(capsys, 4, *daemon, str(plain))
