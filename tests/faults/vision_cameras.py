"""The cameras of a car by VisionIPC, their packets on rings of messages, as openpilot has them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cereal.frame_ring import FrameFormat
from cereal.transport import MsgqTransport
from cereal.visionipc import VisionIpcServer
from tests.faults.cameras import Cameras


@dataclass
class _Stream:
    """A stream of a server as if it were a ring."""

    server: VisionIpcServer
    name: str
    format: FrameFormat

    def next_buffer(self) -> Any:
        return self.server.next_buffer(self.name)

    def publish(self, frame_id: int, sof_ns: int, eof_ns: int) -> None:
        self.server.send(self.name, frame_id, sof_ns, eof_ns)


class VisionCameras(Cameras):
    """The camera process of openpilot."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.path = Path()
        super().__init__("camerad")

    def open(self, forms: Mapping[str, FrameFormat]) -> None:
        with self._lock:
            self._bus = MsgqTransport(prefix=self.prefix)
            self._server = VisionIpcServer(self.server, self._bus, prefix=self.prefix)
            self.path = self._server.path
            for name, form in forms.items():
                self._server.create_buffers(name, self.slots, form)
                self._rings[name] = _Stream(self._server, name, form)
            self._server.start()
            # No camera process takes pictures at once.
            time.sleep(0.2)

    def close_rings(self, *_streams: str) -> None:
        with self._lock:
            if self._rings:
                self._rings.clear()
                self._server.close()
                self._bus.close()
