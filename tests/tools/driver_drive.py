"""A short rendered drive with a driver camera, a lost road frame and a recorded driverStateV2."""

from pathlib import Path

from cereal.log_reader import read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event
from tests.support.built import built
from tests.tools.small_monitoring import write_small_monitoring
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

FRAMES, LOST = 8, 4
SIZE = (1344, 760)
# Of the driverStateV2 of the recording device, one for each frame.
RECORDED_ID = 900_000


def driver_segment() -> Path:
    """Return the segment's directory."""
    return next(built("driver-drive", _make).glob("*--0"))


def small_monitoring() -> Path:
    name = "dmonitoring.pkl"
    return built("small-monitoring", lambda to: write_small_monitoring(to / name)) / name


def driving_model() -> Path:
    """Return a driving artifact for the segment's cameras."""
    name = "driving.pkl"
    return built("tiny-of-drive", lambda to: write_tiny_driving(to / name, SIZE)) / name


def _make(directory: Path) -> None:
    words = ["make-drive", str(directory), "--seconds", str(FRAMES / 20), "--driver-camera"]
    assert main([*words, "--drop", f"road:{LOST},wide:{LOST}", "--workers", "1"]) == 0
    log = next(directory.glob("*--0")) / "rlog.zst"
    events = [
        (event.logMonoTime, data, str(event.which()))
        for event, data in zip(read_log(log), list(read_log_bytes(log)), strict=True)
    ]
    with LogWriter(log) as writer:
        for mono_time_ns, data, name in events:
            writer.write(data)
            if name == "driverCameraState":
                said = new_event("driverStateV2", mono_time_ns=mono_time_ns, valid=True)
                said.driverStateV2.frameId = RECORDED_ID
                writer.write(said.to_bytes())
