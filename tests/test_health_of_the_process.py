"""The real daemon says how it is while it waits: on the bus, in its file, to a person."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.format.artifact import read_artifact
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

pytestmark = pytest.mark.opencl


def test_a_daemon_without_cameras_is_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, bus, metrics = tmp_path / "tiny.pkl", tmp_path / "bus", tmp_path / "modeld.prom"
    write_tiny_driving(model)
    bus.mkdir()
    settings = tmp_path / "config.toml"
    settings.write_text(
        f'bus_address = "ipc://{bus}"\nmodel = "{model}"\nmetrics_file = "{metrics}"\n'
        f'state_dir = "{tmp_path}"\ncamera_server = "nobody-{tmp_path.name}"\ndemo = true\n',
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "tools.cli", "run", "--config", str(settings)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            code = main(["status", "--bus", f"ipc://{bus}", "--timeout", "60", "--json"])
        finally:
            process.terminate()
            _, log = process.communicate(timeout=60)
    assert (code, process.returncode) == (0, 0), log
    found = json.loads(capsys.readouterr().out)["daemons"]["modeldHealth"]
    assert found["problems"] == []
    health = found["health"]
    assert (health["kind"], health["phase"]) == ("driving", "waiting for cameras")
    assert (health["processId"], health["model"]) == (process.pid, str(model))
    assert health["modelSha256"] == read_artifact(model).sha256
    assert health["uptime"] > 0
    assert health["versions"][0]["name"] == "modeld"
    text = metrics.read_text(encoding="utf-8")
    assert 'modeld_phase{daemon="driving",phase="waiting for cameras"} 1' in text.splitlines()
