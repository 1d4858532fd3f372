"""`modeld bench` in its other modes: against peers, the roofline, the bus, the daemon process."""

import gc
import importlib.util
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.narrow_models import in_halves
from runtime import choose_device
from tests.runtime import tiny
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld
from tests.tools.small_monitoring import write_small_monitoring
from tools.bench import against, bus, daemon, host, log
from tools.timing import peers, roofline
from tools.timing.peers import Peer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product with bias and activation."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 8)).astype(np.float32), "b": np.ones(8, np.float32)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(model_of(nodes, [value("x", (4, 16))], [value("y", (4, 8))], weights), path)
    return path


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As many threads as the device of this process has; blocks without pauses."""
    monkeypatch.setenv("POCL_MAX_PTHREAD_COUNT", "")  # restored afterwards
    monkeypatch.setattr(against, "PAUSE_S", 0.0)
    return ["--threads", str(choose_device().info.compute_units)]


@pytest.mark.opencl
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_against_has_the_documented_keys_and_equal_outputs(
    model: Path, threads: list[str], peer: str, modeld: Modeld
) -> None:
    if importlib.util.find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed (extra bench)")
    found = modeld(0, "bench", "--json", "--against", peer, model, "--blocks", "3", *threads).json
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
    model: Path, threads: list[str], modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_wrong(path: Path, inputs: peers.Arrays, threads: int) -> list[peers.Variant]:
        del path, inputs, threads
        return [peers.Variant("wrong", lambda: None, lambda: {"y": np.full((4, 8), 2.0)})]

    monkeypatch.setitem(peers.PEERS, "numpy", Peer("bench", open_wrong))
    found = modeld(
        0, "bench", "--json", "--against", "numpy", model, "--blocks", "1", *threads
    ).json
    assert found["max_rel_err"] > 0.4  # tanh is at most 1


@pytest.mark.opencl
def test_against_binds_and_fixes_inputs_for_everybody(
    tmp_path: Path, threads: list[str], modeld: Modeld
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
        found = modeld(0, "bench", "--json", "--against", "onnxruntime", path, *options).json
    assert given == [((6, 32), ["x"])]
    assert found["max_rel_err"] < 1e-5
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tile.onnx"]


@pytest.mark.opencl
def test_against_takes_another_program_of_ours(
    tmp_path: Path, model: Path, threads: list[str], modeld: Modeld
) -> None:
    """The same model in halves, whose answer is near, and an artifact of it, whose is the same."""
    half = tmp_path / "half.onnx"
    onnx.save(in_halves(onnx.load(model)), half)
    modeld(0, "compile", "--plain", half, "-o", tmp_path / "half.pkl")
    names = [f"file:{model}", f"file:{tmp_path / 'half.pkl'}", "onnxruntime"]
    words = ("bench", "--json", "--blocks", "1", *threads, "--against")
    found = modeld(0, *words, ",".join(names), half).json
    assert found["against"] == "onnxruntime"
    errors = [found["peers"][name]["max_rel_err"] for name in names[:2]]
    assert 1e-5 < errors[0] < 1e-2
    assert errors[1] == 0.0
    assert modeld(0, *words, names[0], tmp_path / "half.pkl").json["against"] == names[0]
    modeld.refused(
        2, "found (4, 16); name a file", *words, f"file:{tiny.write(tmp_path / 't')}", half
    )


def test_missing_peer_is_one_line_with_the_extra(
    model: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers.PEERS, "not_installed_here", peers.PEERS["openvino"])
    words = ("bench", "--against", "onnxruntime,not_installed_here", model)
    modeld.refused(2, "pip install 'modeld[bench]'", *words)


@pytest.mark.opencl
def test_peer_that_refuses_the_model_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(peers.PeerError, match=r"onnxruntime .* expected it to open .*bad\.onnx"):
        peers.open_peer("onnxruntime", path, {}, 1)


@pytest.mark.slow
@pytest.mark.opencl
def test_roofline_judges_every_launch(
    tmp_path: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "CACHES", tmp_path)  # small caches: small arrays, little time
    monkeypatch.setattr(roofline.CeilingProbe.__init__, "__defaults__", ((1 << 16, 1 << 20), 10**5))
    monkeypatch.setattr("tools.bench.artifact.ROUNDS", 1)
    artifact = tiny.write(tmp_path / "tiny.pkl")
    found = modeld(0, "bench", "--json", artifact, "--roofline", "--iters", "3").json
    assert sorted(row["launch"] for row in found["launches"]) == [0, 1, 2, 3, 4]
    assert sum(row["share"] for row in found["kernels"]) == pytest.approx(1.0)
    weights = {row["name"]: row["weight_bytes"] for row in found["launches"]}
    assert weights == {"shift": 0, "sum": 0, "double_it": 0, "add_weight": 16, "add_bytes": 0}
    # A few bytes in a launch of microseconds: nowhere near what the memory gives.
    assert all(row["of_roofline"] < 0.5 for row in found["kernels"])
    assert found["below_half_share"] == pytest.approx(1.0)
    assert found["ceilings"]["gflops"] > 0
    out = modeld(0, "bench", artifact, "--roofline", "--iters", "3").out
    assert "GFLOP/s float32 multiply-adds on all cores" in out
    assert "/add_weight" in out
    assert "all launches below 50%, small ones too: 100.0%" in out


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_paced_measures_every_pause_in_every_company(tmp_path: Path, modeld: Modeld) -> None:
    artifact = tiny.write(tmp_path / "tiny.pkl")
    company = ["busy", "model", "one-cpu"]
    words = ("--paced", "--iters", "2", "--beside", ",".join(company))
    found = modeld(0, "bench", "--json", artifact, *words).json
    assert list(found["beside"]) == company
    for times in (found["pause_ms"], *found["beside"].values()):
        assert list(times) == ["0", "5", "30", "50"]
        for row in times.values():
            assert 0 < row["p50_ms"] <= row["p99_ms"]
            assert row["p99_over_p50"] == pytest.approx(row["p99_ms"] / row["p50_ms"])
    assert found["realtime"] == []
    assert "p99/p50" in modeld(0, "bench", artifact, "--paced", "--iters", "1").out


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


@pytest.mark.alone
def test_bus_loses_nothing_and_has_the_documented_keys(
    modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus.measure, "__defaults__", (None, None, 20, 2, 20))
    found = modeld(0, "bench", "--json", "--bus", "--seconds", "0.05").json
    for name in ("zmq_ipc", "msgq"):
        one = found[name]
        assert 0 < one["p50_us"] <= one["p99_us"]
        assert one["msgs_per_s"] > 0
        assert one["lost"] == 0
        assert (one["steady"]["messages"], one["steady"]["lost"]) == (500, 0)
        assert one["stalled"]["grown_mib"] < 16
    assert found["frame_handover_us"] > 0
    assert found["vision_ipc_us"] > 0


@pytest.mark.alone
@pytest.mark.opencl
@pytest.mark.slow
def test_a_daemon_that_waits_takes_little(
    tiny_model: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus.measure, "__defaults__", (None, None, 20, 2, 20))
    found = modeld(0, "bench", "--json", "--bus", "--seconds", "0.05", "--model", tiny_model).json
    for name in ("zmq_ipc", "msgq"):
        # A loop that looked again and again would take all of a core.
        assert found[name]["idle_cpu_percent"] < 20


def test_reading_a_log_is_measured(
    tmp_path: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rlog.zst"
    log.write_typical_log(path, 500)
    found = modeld(0, "bench", "--json", "--log", path).json
    assert found["events"] == 500
    assert found["content_bytes"] > found["file_bytes"] == path.stat().st_size
    assert min(found[f"{way}_mb_per_s"] for way in ("read", "split", "unpack")) > 0
    monkeypatch.setattr(log, "EVENTS", 200)
    assert modeld(0, "bench", "--json", "--log").json["events"] == 200
    assert "a reader for each event" in modeld(0, "bench", "--log", path).out


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A benchmark that waits little before and after its frames."""
    monkeypatch.setattr(daemon, "SETTLE_S", 0.2)
    monkeypatch.setattr(daemon, "LAST_MESSAGE_S", 0.3)


@pytest.mark.alone
@pytest.mark.opencl
@pytest.mark.usefixtures("soon")
def test_daemon_is_measured_as_a_process(tiny_model: Path, modeld: Modeld) -> None:
    found = modeld(0, "bench", "--json", "--daemon", "1", "--model", tiny_model).json
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
    tiny_model: Path, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "WARM_UP_STEPS", 5)
    found = modeld(0, "bench", "--json", "--host", "--model", tiny_model, "--iters", "10").json
    assert found["frames"] == 10
    for name in ("cpu_us", "wall_us"):
        assert 0 < found[f"{name}_min"] <= found[f"{name}_p50"] <= found[f"{name}_p99"]
    # The command's process goes on with its collector.
    assert gc.isenabled()


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_starts_are_measured_from_the_process_to_the_first_message(
    tiny_model: Path, modeld: Modeld
) -> None:
    found = modeld(0, "bench", "--json", "--start", "1", "--model", tiny_model).json
    assert found["starts"] == 1
    for name in ("start", "restart"):
        assert 0 < found[f"{name}_ms_p50"] <= found[f"{name}_ms_max"]


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.usefixtures("soon")
def test_both_daemons_are_measured_side_by_side(
    tiny_model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    monitoring = write_small_monitoring(tmp_path / "dmonitoring.pkl")
    both = ("--daemon", "1", "--model", tiny_model, "--monitoring")
    found = modeld(0, "bench", "--json", *both, monitoring).json
    assert found["published"] == found["valid"] > 0
    beside = found["monitoring"]
    assert beside["frames"] == found["frames"] == 20
    assert beside["published"] + beside["dropped"] == 20
    assert beside["published"] == beside["valid"] > 0
    assert 0 < beside["exec_ms_p50"] <= beside["exec_ms_p99"]
    assert "host_ms_p50" not in beside
    assert "driverStateV2" in modeld(0, "bench", *both, monitoring).out
