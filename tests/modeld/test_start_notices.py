"""What the service manager hears of a real process before it is ready."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.faults.service import Service, Setup
from tests.tools.tiny_driving import write_tiny_driving

pytestmark = [pytest.mark.opencl, pytest.mark.alone]
DEADLINE_S = 60.0
ASKS_FOR_TIME = "EXTEND_TIMEOUT_USEC=60000000"


def before_ready(service: Service) -> list[str]:
    """Lines of notifications of the present process until it says that it is ready."""
    service.wait_ready(DEADLINE_S)
    life = service.life
    notices = [n for n in service.notices if life.started_ns <= n.arrived_ns <= life.ready_ns]
    return [line for notice in notices for line in notice.text.split("\n")]


def test_a_start_says_what_it_does_and_asks_for_time_where_kernels_are_built(
    tmp_path: Path,
) -> None:
    model = write_tiny_driving(tmp_path / "tiny.pkl", (64, 32))
    (tmp_path / "bus").mkdir()
    arguments = ["--demo", "--model", str(model), "--bus", f"ipc://{tmp_path}/bus"]
    arguments += ["--camera-server", f"nobody-{tmp_path.name}", "--state-dir", str(tmp_path)]
    service = Service(
        tmp_path, Setup(arguments, environment={"MODELD_CACHE_DIR": str(tmp_path / "cache")})
    )
    try:
        told = before_ready(service)
        loading, building = f"STATUS=loading {model}", f"STATUS=loading {model}: building kernels"
        # One program of kernels, and a cache that is empty.
        assert told[:3] == [loading, ASKS_FOR_TIME, building]
        assert told[3].startswith("READY=1")
        service.signal(signal.SIGTERM, asked=True)
        assert service.wait_exit(DEADLINE_S) == 0
        service.start()
        told = before_ready(service)
        assert told[0] == loading
        assert told[1].startswith("READY=1")
    finally:
        service.close()
