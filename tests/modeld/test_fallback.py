"""A model that fails is given up for one that works: in the loop, and over restarts."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from modeld.health.side_reports import DriveKeeper
from modeld.state.drive_memory import DriveMemory, state_directory
from modeld.state.loop_state import Fault, LoopState
from runtime.errors import RuntimeFault
from tests.modeld.bench import Bench, Log, Patch
from tests.modeld.fake_program import SMALL, FakeProgram, make_interface

PLAN_SPEED = 3  # column of the plan: metres per second ahead


class TwoModels(Bench):
    """One camera and two models; the fallback speaks of 7 m/s, the other of 3."""

    def __init__(self, *, lane_change: str = "A", room: int = SMALL.size) -> None:
        self.second = FakeProgram(make_interface(lane_change=lane_change), room)
        super().__init__(wide=False, fallback=self.second, non_finite_limit=3)
        self.program.policy[0, PLAN_SPEED], self.second.policy[0, PLAN_SPEED] = 3.0, 7.0
        self.daemon.calibration.update([0.0, 0.0, 0.0], "", "")

    def drive(self, *frame_ids: int) -> list[tuple[bool, float]]:
        """Whether the message about each frame is valid, and the speed that it speaks of."""
        found = []
        for frame_id in frame_ids:
            self.step(frame_id)
            assert self.model.frameId == frame_id
            found.append((self.valid[0], self.model.velocity.x[0]))
        return found

    def take_over(self) -> None:
        assert self.daemon.take_over is not None
        self.daemon.take_over("tried")

    def fail(self, program: FakeProgram) -> None:
        """Let the device fail in each run of a program from now on."""

        def fails() -> None:
            raise RuntimeFault("gpu: device lost")

        program.on_run = fails


@pytest.fixture
def bench() -> TwoModels:
    return TwoModels()


def errors(caplog: Log) -> list[str]:
    return [r.message for r in caplog.records if r.levelno == logging.ERROR]


def test_an_error_of_the_device_costs_one_frame(bench: TwoModels, caplog: Log) -> None:
    state = bench.daemon.state
    assert bench.drive(0) == [(True, 3.0)]
    bench.fail(bench.program)
    # The frame is answered all the same, with what was known last, and not to be acted on.
    assert bench.drive(1) == [(False, 3.0)]
    assert state.reasons == ("device failed",)
    assert bench.drive(2, 3) == [(True, 7.0)] * 2
    assert state.fallback == "gpu: device lost"
    assert state.faults[Fault.DEVICE_ERROR] == 1
    assert bench.daemon.take_over is None
    (said,) = errors(caplog)
    assert said.startswith("model given up: gpu: device lost; switching to the fallback model ")


def test_an_error_while_a_frame_is_only_queued_counts_too(bench: TwoModels) -> None:
    assert bench.drive(0) == [(True, 3.0)]
    bench.fail(bench.program)
    bench.step(2)  # frame 1 is missing: this one is prepared
    assert bench.said == {}
    assert bench.drive(3) == [(True, 7.0)]


def test_outputs_that_stay_not_finite_are_given_up_on(bench: TwoModels) -> None:
    bench.program.policy[0, 5] = np.nan
    assert [valid for valid, _ in bench.drive(0, 1)] == [False, False]
    bench.program.policy[0, 5] = 0.0
    assert bench.drive(2) == [(True, 3.0)]  # not in a row
    bench.program.policy[0, 5] = np.inf
    assert bench.drive(3, 4, 5, 6) == [(False, 3.0)] * 3 + [(True, 7.0)]
    assert bench.daemon.state.fallback == "outputs of 3 runs in a row are not finite"
    assert bench.daemon.state.faults[Fault.NOT_FINITE] == 5


def test_without_another_model_an_error_is_the_process_to_handle(bench: TwoModels) -> None:
    bench.take_over()
    assert bench.drive(0) == [(True, 7.0)]
    bench.fail(bench.second)
    with pytest.raises(RuntimeFault, match="device lost"):
        bench.step(1)


def test_a_fallback_without_room_for_the_frames_is_done_without(caplog: Log) -> None:
    bench = TwoModels(room=SMALL.payload_bytes - 1)
    before = bench.daemon.take_over
    assert before is not None  # no frame is known yet
    assert bench.drive(0, 1, 2) == [(True, 3.0)] * 3
    assert bench.daemon.take_over is None
    (said,) = errors(caplog)
    assert said.startswith(
        "fallback model not usable, continuing without one: road camera, frame 0:"
    )
    assert f"expected at most {SMALL.payload_bytes - 1} bytes" in said
    assert bench.daemon.state.problems == (said,)
    # A fault is the process to handle, instead of a model that can use no frame.
    bench.fail(bench.program)
    with pytest.raises(RuntimeFault, match="device lost"):
        bench.step(3)
    assert bench.daemon.state.fallback == ""


def test_a_fallback_with_just_enough_room_is_kept() -> None:
    bench = TwoModels(room=SMALL.payload_bytes)
    assert bench.drive(0) == [(True, 3.0)]
    bench.fail(bench.program)
    assert bench.drive(1, 2) == [(False, 3.0), (True, 7.0)]
    assert bench.daemon.state.problems == ()


@pytest.mark.parametrize(("machine", "kept"), [("A", True), ("B", False)])
def test_a_lane_change_goes_on_where_the_machines_are_alike(machine: str, kept: bool) -> None:
    bench = TwoModels(lane_change=machine)
    before = bench.daemon.lane_change
    bench.take_over()
    assert (bench.daemon.lane_change is before) is kept


def test_a_note_is_kept_until_it_is_cleared(tmp_path: Path) -> None:
    memory = DriveMemory(tmp_path)
    assert memory.fallback.read() == ""
    memory.fallback.write("it hung")
    memory.model.write("/a.pkl" + "x" * 5000)
    again = DriveMemory(tmp_path)
    assert (again.fallback.read(), again.model.read()) == ("it hung", "/a.pkl" + "x" * 3994)
    memory.end_drive()
    memory.end_drive()
    assert memory.fallback.read() == memory.model.read() == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "\x80", "[" * 8000, '{"boot_id": "another", "text": "x"}']
)
def test_a_note_of_another_boot_or_a_damaged_one_is_not_followed(
    tmp_path: Path, content: str
) -> None:
    (tmp_path / "fallback.json").write_text(content, encoding="latin-1")
    assert DriveMemory(tmp_path).fallback.read() == ""


def test_a_pipe_in_the_place_of_a_note_is_not_waited_for(tmp_path: Path, caplog: Log) -> None:
    os.mkfifo(tmp_path / "fallback.json")
    assert DriveMemory(tmp_path).fallback.read() == ""
    assert "not used: " in caplog.text


@pytest.mark.parametrize("directory", ["gone", None])
def test_a_directory_that_is_gone_is_logged_and_none_keeps_nothing(
    tmp_path: Path, directory: str | None, caplog: Log
) -> None:
    memory = DriveMemory(None if directory is None else tmp_path / directory)
    memory.fallback.write("it hung")
    assert ("cannot save state" in caplog.text) is (directory is not None)
    assert memory.fallback.read() == ""
    memory.end_drive()


def test_a_drive_is_remembered_from_its_first_message_until_the_car_is_parked(
    tmp_path: Path,
) -> None:
    memory, state = DriveMemory(tmp_path), LoopState()
    keeper = DriveKeeper(memory, state, Path("/a.pkl"))
    for published, is_parked, kept in (
        (0, True, ""),
        (1, False, "/a.pkl"),
        (9, True, ""),
        (9, False, ""),  # parked cars publish nothing
        (10, False, "/a.pkl"),
    ):
        state.published = published
        keeper(is_parked)
        assert memory.model.read() == kept
    state.fallback = "it hung"
    keeper(False)
    assert memory.fallback.read() == "it hung"


def test_state_lies_where_the_service_manager_says(monkeypatch: Patch) -> None:
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    assert state_directory(None) is None
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/modeld:/run/other")
    assert state_directory(None) == Path("/run/modeld")
    assert state_directory(Path("/x")) == Path("/x")
