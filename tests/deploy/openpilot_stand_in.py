"""Stands for the rest of openpilot: its manager's parameters, its camerad, its car, on msgq.

    python tests/deploy/openpilot_stand_in.py STACK

With OPENPILOT_PREFIX and PARAMS_ROOT, like openpilot itself; until it is ended. Prints a line when
frames run. The pace is that of a car: 20 frames a second of two cameras with unpadded buffers.
"""

import sys
from contextlib import closing
from pathlib import Path

from cereal.clock import MonotonicClock
from cereal.frame_ring import nv12_unpadded
from cereal.schema import new_event
from cereal.transport import MsgqTransport
from cereal.visionipc.server import VisionIpcServer
from modeld.service.config import Config
from modeld.startup import ROAD_STREAM, WIDE_STREAM, StopSignals
from tools.messages.camera_process import CarBus
from tools.messages.drive_messages import READOUT_NS, FrameTimes, Mounting
from tools.messages.telemetry import CarSample

SIZE = (1928, 1208)
BUFFERS = 8
PERIOD_NS = 50_000_000
CAR = "STAND IN CAR"


def write_parameters(directory: Path) -> None:
    """Write what the stack knows, behind the link that it makes."""
    values = directory.with_name(".tmp_values")
    values.mkdir(parents=True)
    car, calibration = (
        new_event(name, mono_time_ns=1) for name in ("carParams", "liveCalibration")
    )
    car.carParams.carFingerprint = CAR
    calibration.liveCalibration.rpyCalib = [0.0, 0.02, -0.01]
    (values / "CarParams").write_bytes(car.carParams.copy().to_bytes())
    (values / "CalibrationParams").write_bytes(calibration.to_bytes())
    (values / "IsOnroad").write_bytes(b"1")
    directory.symlink_to(values.name)


def main() -> int:
    config = Config(stack=sys.argv[1])
    stack, prefix = config.bus_stack, config.prefix
    write_parameters(config.parameters())
    transport = MsgqTransport(stack=stack, prefix=prefix)
    server = VisionIpcServer("camerad", transport, stack=stack, prefix=prefix)
    with closing(transport), server, StopSignals() as stop:
        for stream in (ROAD_STREAM, WIDE_STREAM):
            server.create_buffers(stream, BUFFERS, nv12_unpadded(*SIZE))
        server.start()
        bus = CarBus(transport, Mounting())
        car = CarSample(25.0, 0.0, left_blinker=False, right_blinker=False)
        print("frames run", flush=True)
        frame_id, clock = 0, MonotonicClock()
        due_ns = clock.now_ns()
        while not stop.event.is_set():
            frame_id += 1
            due_ns = max(due_ns + PERIOD_NS, clock.now_ns())
            clock.sleep_until_ns(due_ns)
            times = FrameTimes(frame_id, due_ns - READOUT_NS, due_ns)
            bus.publish(times, car)
            # The wide frame first: when the road frame wakes the daemon, both are there.
            for stream in (WIDE_STREAM, ROAD_STREAM):
                server.next_buffer(stream)[:1000] = frame_id % 256
                server.send(stream, frame_id, times.sof_ns, times.eof_ns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
