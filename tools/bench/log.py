"""``modeld bench --log [FILE]``: measures the speed of reading a log.

Without a file, a log of 100 000 events is written first, with the messages, rates and sizes of
about a minute and a half of a drive. All rates count decompressed content:

- ``read_mb_per_s``: every event as a message reader (`cereal.log_reader.read_log`).
- ``split_mb_per_s``: only the bytes of each event.
- ``unpack_mb_per_s``: only decompression.

Each is the median of three passes. The three measurements alternate, so that load on the machine
affects all of them equally. After the first pass the file is in the page cache.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cereal.errors import LogError
from cereal.log_reader import log_content, read_log, read_log_bytes
from cereal.log_writer import LogWriter
from cereal.schema import new_event
from runtime.texts import size_text
from tools.lib.json_output import print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping

EVENTS = 100_000
PASSES = 3
# Interval of each service's messages, in hundredths of a second.
_EVERY = {
    "carState": 1,
    "carControl": 1,
    "carOutput": 1,
    "controlsState": 1,
    "selfdriveState": 1,
    "can": 1,
    "sendcan": 1,
    "accelerometer": 1,
    "gyroscope": 1,
    "roadCameraState": 5,
    "wideRoadCameraState": 5,
    "roadEncodeIdx": 5,
    "wideRoadEncodeIdx": 5,
    "modelV2": 5,
    "drivingModelData": 5,
    "cameraOdometry": 5,
    "livePose": 5,
    "liveParameters": 5,
    "longitudinalPlan": 5,
    "radarState": 5,
    "pandaStates": 10,
    "liveCalibration": 25,
    "deviceState": 50,
}
_CAN_FRAMES = {"can": 24, "sendcan": 6}
_TICK_NS = 10_000_000


def run(args: argparse.Namespace) -> int:
    """Measure, print the result and return exit code 0.

    Raises:
        LogError: the file is not a log.
    """
    if args.path:
        result = measure(args.path[0])
    else:
        with tempfile.TemporaryDirectory(prefix="modeld-bench-") as directory:
            path = Path(directory) / "rlog.zst"
            write_typical_log(path, EVENTS)
            result = measure(path)
    if args.json:
        print_json(result)
    else:
        _print_result(result)
    return 0


def measure(path: Path, passes: int = PASSES) -> dict[str, Any]:
    """Read a log `passes` times; return the object of ``--json``.

    Raises:
        LogError: the file is not a log, or has no message.
    """
    ways: dict[str, Callable[[Path], Iterable[Any]]] = {
        "read": read_log,
        "split": read_log_bytes,
        "unpack": log_content,
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    events = content_bytes = 0
    for _ in range(passes):
        for way, function in ways.items():
            start_ns = time.perf_counter_ns()
            count = sum(1 for _ in function(path))
            seconds[way].append((time.perf_counter_ns() - start_ns) * 1e-9)
            if way == "read":
                events = count
    if not events:
        raise LogError(f"{path}: expected a log with messages, found none that can be read")
    content_bytes = sum(map(len, log_content(path)))
    return {
        "events": events,
        "file_bytes": path.stat().st_size,
        "content_bytes": content_bytes,
        **{
            f"{way}_mb_per_s": content_bytes / 1e6 / float(np.median(times))
            for way, times in seconds.items()
        },
    }


def write_typical_log(path: Path, count: int) -> None:
    """Write a log of `count` messages, in the mix of a real drive.

    Raises:
        LogError: the file cannot be written.
    """
    with LogWriter(path) as writer:
        for data, _ in zip(typical_events(), range(count), strict=False):
            writer.write(data)


def typical_events(seed: int = 0) -> Iterator[bytes]:
    """Yield the messages of an endless drive in time order."""
    rng = np.random.default_rng(seed)
    tick = 0
    while True:
        for service, every in _EVERY.items():
            if tick % every == 0:
                yield _event(service, tick, rng)
        tick += 1


def _event(service: str, tick: int, rng: np.random.Generator) -> bytes:
    size = {**_CAN_FRAMES, "pandaStates": 1}.get(service)
    event = new_event(service, mono_time_ns=tick * _TICK_NS, valid=True, size=size)
    message = getattr(event, service)
    if service in _CAN_FRAMES:
        payload = rng.bytes(8 * len(message))
        for index, frame in enumerate(message):
            frame.address = 0x100 + 8 * index
            frame.src = index % 3
            frame.dat = payload[8 * index : 8 * index + 8]
    elif service == "modelV2":
        _fill_model(message, rng)
    elif service in ("accelerometer", "gyroscope"):
        message.init("acceleration").v = rng.standard_normal(3).tolist()
    elif service == "carState":
        message.vEgo = 20.0 + float(rng.standard_normal())
        message.steeringAngleDeg = float(rng.standard_normal())
        message.init("wheelSpeeds").fl = message.vEgo
        message.init("cruiseState").enabled = True
    elif service == "carControl":
        message.init("actuators").accel = float(rng.standard_normal())
        message.orientationNED = rng.standard_normal(3).tolist()
        message.angularVelocity = rng.standard_normal(3).tolist()
    elif service == "cameraOdometry":
        for name in ("trans", "rot", "transStd", "rotStd", "wideFromDeviceEuler"):
            setattr(message, name, rng.standard_normal(3).tolist())
    elif service == "longitudinalPlan":
        for name in ("accels", "speeds", "jerks"):
            setattr(message, name, rng.standard_normal(17).tolist())
    return bytes(event.to_bytes())


def _fill_model(model: Any, rng: np.random.Generator) -> None:
    def fill(series: Any, names: str) -> None:
        for name, values in zip(names.split(), rng.standard_normal((7, 33)), strict=False):
            setattr(series, name, values.tolist())

    fill(model.position, "x y z t xStd yStd zStd")
    for name in ("velocity", "orientation", "orientationRate", "acceleration"):
        fill(getattr(model, name), "x y z t")
    for series in (*model.init("laneLines", 4), *model.init("roadEdges", 2)):
        fill(series, "x y z t")
    for lead in model.init("leadsV3", 3):
        fill(lead, "t x y v a")


def _print_result(result: Mapping[str, Any]) -> None:
    print(
        f"{result['events']} events, {size_text(result['content_bytes'])} in a file of "
        f"{size_text(result['file_bytes'])}\n"
        f"read      {result['read_mb_per_s']:.0f} MB/s of content, a reader for each event\n"
        f"split     {result['split_mb_per_s']:.0f} MB/s, the bytes of each event\n"
        f"unpack    {result['unpack_mb_per_s']:.0f} MB/s, decompressing alone"
    )
