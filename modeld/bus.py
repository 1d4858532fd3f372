"""The bus of the daemons: they publish at one address, and subscribe at another.

An address belongs to services and not to a direction, so that a program that listens to the
daemons, or plays the car to them, uses the same two addresses and finds everything (ADR 0092).
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
    """Open the bus of the daemons, for one of them or for a program that speaks with them.

    Args:
        addresses: Of `DAEMON_SERVICES`, and of all other services.
        stack: Its names and ports are used.
        prefix: OPENPILOT_PREFIX, for rings whose address names none.
        gates: Of rings, see `MsgqTransport`.
        keys: Directory of the keys for addresses that leave the machine.

    Raises:
        TransportError: An address has another form, or a key is not right.
    """
    found = None
    if keys is not None:
        from cereal.transport.curve import CurveKeys

        found = CurveKeys.read(keys)
    return open_transport(addresses, DAEMON_SERVICES, stack, prefix=prefix, gates=gates, keys=found)
