"""What a player sends, on a clock set by hand."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from cereal.clock import ManualClock
from cereal.frames import Frame
from tests.tools.playback.synthetic_drive import SyntheticDrive
from tools.drives.drive import Moment
from tools.playback.player.player import NS_PER_S, Played, Player, PlayOptions

CLOCK_NS = 123 * NS_PER_S


class Tape:
    """An outlet that writes down what is sent, and when."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[int, str, bytes]] = []  # clock, service, data
        self.frames: list[tuple[int, str, int, int, int]] = []  # clock, stream, id, sof, eof
        self.log: list[str] = []  # both, by name
        self.values: list[int] = []  # brightness of each frame
        self.after_frame: Callable[[int], None] = lambda _: None
        self._filled: dict[str, Frame] = {}

    def send(self, service: str, data: bytes) -> None:
        self.sent.append((self.clock.now_ns(), service, data))
        self.log.append(service)

    def fill(self, stream: str, frame: Frame) -> None:
        self._filled[stream] = frame

    def publish(self, stream: str, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        self.frames.append((self.clock.now_ns(), stream, frame_id, sof_ns, eof_ns))
        self.log.append(f"frame {stream}")
        self.values.append(int(self._filled.pop(stream).data[0]))
        self.after_frame(len(self.frames))

    @property
    def road(self) -> list[tuple[int, int, int]]:
        """(clock, id, sof) of the road camera's frames."""
        return [(at, number, sof) for at, stream, number, sof, _ in self.frames if stream == "road"]

    @property
    def road_ns(self) -> list[int]:
        """The clock at each of them."""
        return [at for at, _, _ in self.road]

    @property
    def road_ids(self) -> list[int]:
        return [number for _, number, _ in self.road]


def make(drive: SyntheticDrive, **options: Any) -> tuple[Player, Tape, list[Played]]:
    clock = ManualClock(CLOCK_NS)
    tape = Tape(clock)

    @contextlib.contextmanager
    def read(first: int) -> Iterator[Iterator[Moment]]:
        yield drive.moments(first)

    player = Player(drive.info, read, tape, clock, PlayOptions(**options))
    played: list[Played] = []
    player.on_frame = played.append
    return player, tape, played


def play(drive: SyntheticDrive, **options: Any) -> tuple[Player, Tape, list[Played]]:
    player, tape, played = make(drive, **options)
    player.run(threading.Event())
    return player, tape, played
