"""The parts that a loop gets from its process."""

from dataclasses import dataclass, field

import runtime
from cereal.cameras import CameraServer
from cereal.transport import Transport
from modeld.state.loop_state import LoopState


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """Programs, bus, cameras, and the state of the loop."""

    program: runtime.Program  # of the first model
    transport: Transport
    cameras: CameraServer
    fallback: runtime.Program | None = None  # of the model that takes over when that one fails
    state: LoopState = field(default_factory=LoopState)
