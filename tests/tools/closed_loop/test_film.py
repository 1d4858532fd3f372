"""What a live drive leaves: segments of a device, with pictures that are painted again."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from cereal.log_reader import read_log
from cereal.log_writer import LogWriter
from cereal.schema import new_event
from tools.drives.open_drive import DriveOptions, open_drive
from tools.simulator.closed_loop.device import Cameras, CarMessages, camera_message, device_cameras
from tools.simulator.closed_loop.film import Footage, Scene, scene_of, write_footage
from tools.simulator.closed_loop.live import LiveLoop
from tools.simulator.closed_loop.simulation import TICKS_PER_FRAME, Simulation
from tools.simulator.closed_loop.trial import STANDARD, make_trial

ROUTE = "00000001--0000000001"
NS_PER_S = 1_000_000_000
BEGIN_NS = 500 * NS_PER_S
FIRST_ID = 30
# Slow motion: what is a minute of the clock is a segment, whatever was simulated.
TIMES_S = (0.1, 20.0, 40.0, 59.9, 60.1, 60.2)


@pytest.mark.slow
def test_a_drive_is_left_in_segments_of_a_minute_with_all_its_pictures(tmp_path: Path) -> None:
    trial = make_trial(STANDARD, 3, 200.0)
    simulation, messages = Simulation(trial), CarMessages(Simulation(trial))
    cameras, painted, scenes = Cameras(trial, device_cameras()), [], dict[int, Scene]()
    with LogWriter(tmp_path / "bus.rlog") as log:
        for said_before in messages.frame_messages(BEGIN_NS - NS_PER_S):
            log.write(said_before.data)
        for number, time_s in enumerate(TIMES_S):
            time_ns, frame_id = BEGIN_NS + round(time_s * NS_PER_S), FIRST_ID + number
            scenes[frame_id] = scene_of(simulation)
            frames = cameras.frames(simulation, FIRST_ID, time_ns)
            painted.append({stream: frame.data.copy() for stream, frame in frames.items()})
            for message in messages.tick_messages(time_ns):
                log.write(message.data)
            for stream in frames:
                log.write(camera_message(stream, frame_id, time_ns).data)
            for one in (frame_id, number):  # one of the drive, one from before
                said = new_event("modelV2", mono_time_ns=time_ns + 1, valid=True)
                said.modelV2.frameId = one
                log.write(said.to_bytes())
            for _ in range(TICKS_PER_FRAME):
                simulation.tick()
    span_ns = (BEGIN_NS, BEGIN_NS + 61 * NS_PER_S)
    footage = Footage(trial, scenes, tmp_path / "bus.rlog", span_ns)
    drives, counts = tmp_path / "drives", list[int]()
    # Of a longer drive before this one nothing is left.
    (drives / f"{ROUTE}--2").mkdir(parents=True)
    made = write_footage(footage, drives, ROUTE, counts.append)
    assert [place.name for place in made] == [f"{ROUTE}--0", f"{ROUTE}--1"]
    assert sorted(drives.iterdir()) == made
    assert counts[-1] == 2 * len(TIMES_S)
    for place, frames_there in zip(made, (4, 2), strict=True):
        events = list(read_log(place / "rlog.zst"))
        ids = [event.modelV2.frameId for event in events if event.which() == "modelV2"]
        assert len(ids) == frames_there
        assert min(event.logMonoTime for event in events) >= BEGIN_NS
    drive = open_drive(str(drives), DriveOptions())
    shown = (moment for moment in drive.moments() if moment.frames)
    for moment, expected in zip(shown, painted, strict=True):
        for stream, data in expected.items():
            frame = moment.frames[stream]
            assert frame.frame_id == FIRST_ID + moment.index
            assert np.abs(frame.data.astype(int) - data).mean() < 3.0
    drive.close()


def test_the_cameras_of_a_parked_car_go_on_when_it_drives() -> None:
    """Making them takes longer than the daemon waits for a frame."""
    loop = LiveLoop(cast("Any", None), cast("Any", None), 20.0)
    trial, other = (make_trial(STANDARD, seed, 50.0) for seed in (1, 2))
    made = loop._cameras_of(trial)
    assert loop._cameras_of(trial) is made
    assert loop._cameras_of(other) is not made
