"""A daemon whose runs are replays: what it does when one fails, or never returns, is as before."""

from pathlib import Path

import pytest

from tests.faults.faulty_opencl import Mode
from tests.faults.table import rows
from tests.faults.test_device import FRAMES_TO_FALLBACK, check_fallback
from tests.faults.world import world_with_fallback
from tests.recordings.conftest import KIND

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]


@pytest.mark.parametrize(
    ("mode", "row", "frames"),
    [
        (Mode.DEVICE_LOST, "test_run_fails_with_a_fallback", FRAMES_TO_FALLBACK),
        (Mode.HANG, "test_kernel_never_returns_with_a_fallback", 4 + FRAMES_TO_FALLBACK),
    ],
)
def test_a_replay_fails_with_a_fallback(
    mode: Mode, row: str, frames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KIND, "qcom")
    monkeypatch.setenv("RUNTIME_RECORD", "1")
    monkeypatch.setenv("RUNTIME_REPLAY", "0")
    with world_with_fallback(tmp_path) as world:
        assert world.service.lines("launches run as one command")
        world.control.order(mode, 1, program="primary")
        check_fallback(world, rows()[row], frames)
