"""A daemon's process driven step by step as openpilot's process_replay does it, from its rules.

A step is what was recorded up to the camera states that trigger it. Before it is sent, the process
has asked for the next frame: all that it has published until then belongs to the step before, and
is stamped 20 ms behind the message that triggers now. Then the messages are sent in their order,
each camera's state followed by its frame, and the receive of the frame may go on.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from cereal.frames import Frame
from cereal.lock_step import SHARED_MEMORY
from cereal.schema import read_event
from cereal.stacks import STACKS
from cereal.transport.msgq import MsgqTransport
from cereal.visionipc.protocol import endpoint
from cereal.visionipc.server import VisionIpcServer
from modeld.daemon import PUBLICATIONS
from modeld.monitoring import PUBLICATION
from tests.lockstep.events import Events
from tools.drives.drive import Drive, Message
from tools.messages.event_bytes import write_stamp

ROOT = Path(__file__).parents[2]
STEP_NS = 20_000_000
# One each 5 ms: half a minute, pauses of the test not counted.
START_LOOKS = 6000
BUFFERS = 2
STACK_OF = {
    "eventfds-2025": "openpilot-2025",
    "eventfds-2026": "openpilot-2026",
    "fifos": "openpilot-2026",
}


@dataclass(frozen=True, slots=True)
class ProcessUnderTest:
    """A process as the harness knows it.

    Attributes:
        name: what it calls it.
        inputs: services that it publishes.
        outputs: services that it collects.
        cameras: stream of each camera state; the first one's frames are waited for.
        silent: inputs that the process need not listen to.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    cameras: Mapping[str, str]
    silent: tuple[str, ...]


MODELD = ProcessUnderTest(
    "modeld",
    (
        *("deviceState", "roadCameraState", "wideRoadCameraState", "liveCalibration"),
        *("driverMonitoringState", "carState", "carControl", "liveDelay"),
    ),
    PUBLICATIONS,
    MappingProxyType({"roadCameraState": "road", "wideRoadCameraState": "wideRoad"}),
    ("wideRoadCameraState",),
)
DMONITORINGMODELD = ProcessUnderTest(
    "dmonitoringmodeld",
    ("liveCalibration", "driverCameraState"),
    (PUBLICATION,),
    MappingProxyType({"driverCameraState": "driver"}),
    ("driverCameraState",),
)


@dataclass(frozen=True, slots=True)
class Step:
    """What is sent at once: messages, each camera state with its frame; the time of the last."""

    sent: tuple[tuple[Message, Frame | None], ...]
    mono_time_ns: int


def steps_of(drive: Drive, tested: ProcessUnderTest) -> Iterator[Step]:
    """Cut a drive where all cameras of the process have a state since the last cut."""
    cameras = {
        state: stream for state, stream in tested.cameras.items() if stream in drive.info.formats
    }
    queue: list[tuple[Message, Frame | None]] = []
    seen: set[str] = set()
    for moment in drive.moments():
        for message in moment.messages:
            if message.service not in tested.inputs:
                continue
            stream = cameras.get(message.service, "")
            queue.append((message, moment.frames.get(stream)))
            seen |= {message.service} & cameras.keys()
            if seen == cameras.keys():
                yield Step(tuple(queue), message.mono_time_ns)
                queue, seen = [], set()


class Harness:
    """The process, its events, its cameras and the bus around it; a context.

    Args:
        directory: empty; parameters, FIFOs and the log lie there.
        generation: of the events, one of `events.GENERATIONS`; rings and frames go with it.
        tested: which process.
        model: its artifact.
        drive: what it is driven by; its frames should be unpadded.
        cut_at: how much there is of what describes the events; None: all.
    """

    def __init__(
        self,
        directory: Path,
        generation: str,
        tested: ProcessUnderTest,
        model: Path,
        drive: Drive,
        *,
        cut_at: int | None = None,
    ) -> None:
        self.tested = tested
        self.drive = drive
        self.prefix = secrets.token_hex(8)[:15]
        self._directory = directory
        self._stack = STACKS[STACK_OF[generation]]
        self._made = ExitStack()
        with ExitStack() as undo:
            undo.push(self._made)
            rings = self._stack.queue_path("modelV2", self.prefix).parent
            rings.mkdir()
            self._made.callback(shutil.rmtree, rings)
            self._open(generation)
            if cut_at is not None:
                os.truncate(self.events.state, cut_at)
            self.process = self._start(model)
            self._wait_until_it_listens()
            undo.pop_all()

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the process, and remove what was made."""
        self._made.close()

    def run(self) -> list[bytes]:
        """Send the whole drive; return what the process has said, stamped."""
        collected: list[bytes] = []
        last_ns = 0
        for step in steps_of(self.drive, self.tested):
            self._wait_called()
            last_ns = step.mono_time_ns + STEP_NS
            collected += self._outputs(last_ns)
            for message, frame in step.sent:
                self._publishers[message.service].send(message.read_as)
                if frame is not None:
                    self._send(self.tested.cameras[message.service], frame)
            self.events.permit()
        self._wait_called()
        return collected + self._outputs(last_ns + STEP_NS)

    def said(self) -> str:
        return (self._directory / "log").read_text(encoding="utf-8", errors="replace")

    def _open(self, generation: str) -> None:
        tested, made = self.tested, self._made
        transport = MsgqTransport(stack=self._stack, prefix=self.prefix)
        made.callback(transport.close)
        self._publishers = {name: transport.publisher(name) for name in tested.inputs}
        self._subscribers = {name: transport.subscriber(name) for name in tested.outputs}
        self._server = VisionIpcServer("camerad", transport, stack=self._stack, prefix=self.prefix)
        made.callback(self._server.close)
        for stream in tested.cameras.values():
            if stream in self.drive.info.formats:
                self._server.create_buffers(stream, BUFFERS, self.drive.info.formats[stream])
        self._server.start()
        trigger = endpoint("camerad", next(iter(tested.cameras.values())))
        self.events = Events(
            generation, trigger, self.prefix, tested.name, SHARED_MEMORY, self._directory
        )
        made.callback(self.events.close)

    def _start(self, model: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            "OPENPILOT_PREFIX": self.prefix,
            "PARAMS_ROOT": str(self._directory),
            "PROC_NAME": self.tested.name,
            "SIMULATION": "1",
            "REPLAY": "1",
            "CEREAL_FAKE": "1",
            "CEREAL_FAKE_PREFIX": self.tested.name,
            "MODELD_BUS_ADDRESS": "msgq:",
            "MODELD_CAMERA_SERVER": "visionipc:camerad",
            "MODELD_STACK": self._stack.name,
            "MODELD_MODEL": str(model),
        }
        with (self._directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tools.cli", "run"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=self.events.inherited,
            )

        def end() -> None:
            process.kill()
            process.wait()

        self._made.callback(end)
        # Only now, as the harness finds out which car it is once the process has started.
        car = self.drive.info.car_params
        if car is not None:
            parameters = self._directory / self.prefix
            parameters.mkdir()
            whole = read_event(car).carParams.as_builder().to_bytes()
            (parameters / "CarParams").write_bytes(whole)
        return process

    def _wait_until_it_listens(self) -> None:
        """Wait until all that is published has a reader that has nothing left to take."""
        heard = set(self.tested.inputs) - set(self.tested.silent)
        looks = 0
        while not all(self._publishers[name].is_read() for name in heard):
            assert (looks := looks + 1) < START_LOOKS, f"it does not listen:\n{self.said()}"
            code = self.process.poll()
            assert code is None, f"it ended with {code}:\n{self.said()}"
            time.sleep(0.005)

    def _wait_called(self) -> None:
        assert self.events.wait_called(), f"it does not ask for a frame:\n{self.said()}"

    def _outputs(self, stamp_ns: int) -> list[bytes]:
        """What was published since the last call, each with a stamp."""
        found = []
        for subscriber in self._subscribers.values():
            while (data := subscriber.receive(0)) is not None:
                event = write_stamp(data, stamp_ns)
                assert event is not None
                found.append(event)
        return found

    def _send(self, stream: str, frame: Frame) -> None:
        self._server.next_buffer(stream)[...] = frame.data
        self._server.send(stream, frame.frame_id, frame.timestamp_sof_ns, frame.timestamp_eof_ns)
