"""The product as a user runs it: real models, real daemon process, a subscriber not of ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cereal.schema import SCHEMA_PATH

pytestmark = pytest.mark.opencl
ROOT = Path(__file__).resolve().parent.parent
FRAMES_WANTED = 12
SERVICES = ("modelV2", "drivingModelData", "cameraOdometry")

# pyzmq, pycapnp and the schema file; nothing of ours, started with -I from another directory.
FOREIGN = """
import json, math, sys
import capnp, zmq
capnp.remove_import_hook()
schema, bus, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = capnp.load(schema)
poller, sockets = zmq.Poller(), {}
for name in ("modelV2", "drivingModelData", "cameraOdometry"):
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(f"{bus}/{name}")
    sockets[socket] = name
    poller.register(socket, zmq.POLLIN)
seen = {name: [] for name in sockets.values()}
while min(map(len, seen.values())) < wanted:
    ready = poller.poll(60000)
    if not ready:
        sys.exit("nothing came for a minute")
    for socket, _ in ready:
        parts = socket.recv_multipart()
        assert len(parts) == 1, len(parts)
        with log.Event.from_bytes(parts[0], traversal_limit_in_words=2**61) as event:
            name = event.which()
            assert name == sockets[socket], (name, sockets[socket])
            body = getattr(event, name)
            row = {"frame": body.frameId, "valid": event.valid, "time": event.logMonoTime}
            if name == "modelV2":
                row["path"] = [len(body.position.x), all(map(math.isfinite, body.position.x))]
                row["lines"] = [len(line.y) for line in body.laneLines]
                row["leads"] = len(body.leadsV3)
                row["seconds"] = body.modelExecutionTime
                row["ahead"] = body.position.x[-1]
                row["drop_percent"] = body.frameDropPerc
            if name == "cameraOdometry":
                row["pose"] = [len(body.trans), len(body.rot)]
            if name == "drivingModelData":
                row["poly"] = len(body.path.yCoefficients)
            seen[name].append(row)
ours = ("cereal", "runtime", "scheduler", "modeld", "tools")
bad = [n for n in sys.modules if n.split(".")[0] in ours]
print(json.dumps({"seen": seen, "ours": bad}))
"""


def cli(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Example models compiled by the command line."""
    directory = tmp_path_factory.mktemp("end-to-end")
    made = cli("make-model", "models", cwd=directory)
    assert made.returncode == 0, made.stderr
    compiled = cli(
        "compile", "models/vision.onnx", "models/policy.onnx", "-o", "driving.pkl", cwd=directory,
    )  # fmt: skip
    assert compiled.returncode == 0, compiled.stderr
    return directory / "driving.pkl"


@contextmanager
def process(*arguments: str, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT, stderr=file, text=True, **options,
        ) as child,
    ):  # fmt: skip
        try:
            yield child
        finally:
            child.kill()


def imported_modules(importtime_log: str) -> set[str]:
    """Top-level names of every module in the log of `python -X importtime`."""
    lines = [ln for ln in importtime_log.splitlines() if ln.startswith("import time:")]
    return {ln.rsplit("|", 1)[1].strip().split(".")[0] for ln in lines}


@pytest.mark.slow
def test_daemon_process_publishes_to_a_foreign_subscriber(artifact: Path, tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"test-e2e-{os.getpid()}"
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
                "-m", "tools.lib.bench_camera", "--server", server, "--bus", bus, "--frames", "8",
                "--size", "1928", "1208", "--rate-hz", "8",
                log=tmp_path / "camera.log", stdin=subprocess.PIPE,
            )
        )  # fmt: skip
        subscriber = stack.enter_context(
            process(
                "-I", "-c", FOREIGN, str(SCHEMA_PATH), bus, str(FRAMES_WANTED),
                log=tmp_path / "subscriber.log", stdout=subprocess.PIPE,
            )
        )  # fmt: skip
        printed, _ = subscriber.communicate(timeout=120)
        assert subscriber.returncode == 0, (tmp_path / "subscriber.log").read_text(encoding="utf-8")
        assert daemon.poll() is None, "the daemon ended"
        assert camera.poll() is None, "the camera ended"
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(timeout=20) == 0

    result = json.loads(printed)
    assert result["ours"] == []
    check_messages(result["seen"])
    loaded = imported_modules(daemon_log.read_text(encoding="utf-8"))
    assert {"modeld", "runtime", "cereal", "numpy"} <= loaded
    assert loaded.isdisjoint({"onnx", "onnxruntime", "scheduler", "av"})


def check_messages(seen: dict[str, list[dict[str, Any]]]) -> None:
    for service in SERVICES:
        frames = [row["frame"] for row in seen[service]]
        assert frames == sorted(set(frames)), (service, frames)
        times = [row["time"] for row in seen[service]]
        assert times == sorted(times)
    # On a busy machine frames may be dropped; then the daemon says so.
    for before, row in pairwise(seen["modelV2"]):
        assert row["frame"] == before["frame"] + 1 or row["drop_percent"] > 0, seen["modelV2"]
    for row in seen["modelV2"]:
        assert row["path"] == [33, True]
        assert row["lines"] == [33, 33, 33, 33]
        assert row["leads"] == 3
        assert 0 < row["seconds"] < 10
        assert row["ahead"] > 50, "the example policy drives ahead at about 15 m/s"
    assert all(row["pose"] == [3, 3] for row in seen["cameraOdometry"])
    assert all(row["poly"] == 5 for row in seen["drivingModelData"])
    assert seen["modelV2"][-1]["valid"], "calibration arrived, the model speaks"


def test_log_lines_of_imports_are_understood() -> None:
    text = "import time:       120 |        120 |   onnx.helper\nother\nimport time: 1 | 2 | zmq\n"
    assert imported_modules(text) == {"onnx", "zmq"}
