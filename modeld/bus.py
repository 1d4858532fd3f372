"""Opens the message bus of the daemons, which has two addresses.

One address carries the services that the daemons publish, the other all other services. An address
belongs to services, not to a direction. So a program that subscribes to the daemons, or that
simulates the car for them, uses the same two addresses (ADR 0092).
"""

from pathlib import Path
from typing import Final

from cereal.stacks import Addresses, Stack
from cereal.transport import Transport
from cereal.transport.msgq import Gates
from cereal.transport.opening import open_transport
from modeld.health.reporter import HEALTH_SERVICES

DAEMON_SERVICES: Final = (
    *("modelV2", "drivingModelData", "cameraOdometry", "driverStateV2"),
    *HEALTH_SERVICES.values(),
)
"""Services that the daemons publish, and do not subscribe to."""


def open_bus(
    addresses: Addresses,
    stack: Stack,
    *,
    prefix: str = "",
    gates: Gates | None = None,
    keys: Path | None = None,
) -> Transport:
    """Return the open bus, for a daemon or for a program that exchanges messages with one.

    Args:
        addresses: The address of `DAEMON_SERVICES`, and the address of all other services.
        stack: The driving stack (openpilot or a fork) whose service names and ports are used.
        prefix: OPENPILOT_PREFIX, for shared-memory rings whose address does not name one.
        gates: Hold back messages on shared-memory rings, for lock step, see `MsgqTransport`.
        keys: Directory with the keys for network addresses; None: no encryption.

    Raises:
        TransportError: An address is malformed, or a key is invalid.
    """
    found = None
    if keys is not None:
        from cereal.transport.curve import CurveKeys

        found = CurveKeys.read(keys)
    return open_transport(addresses, DAEMON_SERVICES, stack, prefix=prefix, gates=gates, keys=found)
