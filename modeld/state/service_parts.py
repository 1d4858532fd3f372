"""What a loop gets from the process that it runs in."""

from dataclasses import dataclass, field

import runtime
from cereal.cameras import CameraServer
from cereal.transport import Transport
from modeld.state.loop_state import LoopState


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """Programs, bus, cameras, and where the loop tells of itself.

    Attributes:
        program: Of the model to begin with.
        transport: The bus.
        cameras: Of the camera process.
        fallback: Of the model that takes over when that one fails; None: none.
        state: Of the loop.
    """

    program: runtime.Program
    transport: Transport
    cameras: CameraServer
    fallback: runtime.Program | None = None
    state: LoopState = field(default_factory=LoopState)
