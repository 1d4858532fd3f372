"""The product as a user runs it: real models, real daemon process, a subscriber not of ours."""

import math
import os
import signal
import subprocess
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.foreign import cli, heard, process

pytestmark = pytest.mark.opencl
FRAMES_WANTED = 12
SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Example models compiled by the command line."""
    directory = tmp_path_factory.mktemp("end-to-end")
    cli("make-model", "models", cwd=directory)
    files = ("models/vision.onnx", "models/policy.onnx")
    cli("compile", *files, "-o", "driving.pkl", cwd=directory)
    return directory / "driving.pkl"


def imported_modules(importtime_log: str) -> set[str]:
    """Top-level names of every module in the log of `python -X importtime`."""
    lines = [ln for ln in importtime_log.splitlines() if ln.startswith("import time:")]
    return {ln.rsplit("|", 1)[1].strip().split(".")[0] for ln in lines}


@pytest.mark.slow
@pytest.mark.alone
def test_daemon_process_publishes_to_a_foreign_subscriber(artifact: Path, tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"test-all-{os.getpid()}"
    daemon_log = tmp_path / "daemon.log"
    with ExitStack() as stack:
        daemon = stack.enter_context(
            process(
                "-X", "importtime", "-m", "tools.cli", "run", "--model", str(artifact), "--demo",
                "--bus", bus, "--camera-server", server, log=daemon_log,
            )
        )  # fmt: skip
        camera = stack.enter_context(
            process(
                "-m", "tools.bench.camera", "--server", server, "--bus", bus, "--frames", "8",
                "--size", "1928", "1208", "--rate-hz", "8",
                log=tmp_path / "camera.log", stdin=subprocess.PIPE,
            )
        )  # fmt: skip
        rows = stack.enter_context(heard(bus, *SERVICES, log=tmp_path / "subscriber.log"))
        seen: dict[str, list[dict[str, Any]]] = {name: [] for name in SERVICES}
        while min(map(len, seen.values())) < FRAMES_WANTED:
            row = next(rows)
            seen[row["service"]].append(row)
        assert daemon.poll() is None, "the daemon ended"
        assert camera.poll() is None, "the camera ended"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=20) == 0

    check_messages(seen)
    loaded = imported_modules(daemon_log.read_text(encoding="utf-8"))
    assert {"modeld", "runtime", "cereal", "numpy"} <= loaded
    assert loaded.isdisjoint({"onnx", "onnxruntime", "scheduler", "av"})


def check_messages(seen: dict[str, list[dict[str, Any]]]) -> None:
    for service in SERVICES:
        frames = [row["frameId"] for row in seen[service]]
        assert frames == sorted(set(frames)), (service, frames)
        times = [row["time"] for row in seen[service]]
        assert times == sorted(times)
    # On a busy machine frames may be dropped; then the daemon says so.
    for before, row in pairwise(seen["modelV2"]):
        assert row["frameId"] == before["frameId"] + 1 or row["frameDropPerc"] > 0
    for row in seen["modelV2"]:
        ahead = row["position"]["x"]
        assert len(ahead) == 33
        assert all(map(math.isfinite, ahead))
        assert ahead[-1] > 50, "the example policy drives ahead at about 15 m/s"
        assert [len(line["y"]) for line in row["laneLines"]] == [33] * 4
        assert len(row["leadsV3"]) == 3
        assert 0 < row["modelExecutionTime"] < 10
    for row in seen["cameraOdometry"]:
        assert [len(row["trans"]), len(row["rot"])] == [3, 3]
    assert all(len(row["path"]["yCoefficients"]) == 5 for row in seen["drivingModelData"])
    assert seen["modelV2"][-1]["valid"], "calibration arrived, the model speaks"


def test_log_lines_of_imports_are_understood() -> None:
    text = "import time:       120 |        120 |   onnx.helper\nother\nimport time: 1 | 2 | zmq\n"
    assert imported_modules(text) == {"onnx", "zmq"}
