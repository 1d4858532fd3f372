"""Determines which models the daemons on the bus are running, and which the store has selected.

It also has the self-test for models that are added to the store, and the check that the car is
parked before models are changed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

import runtime
from cereal.errors import MessageError
from cereal.schema import content, read_event, reading
from cereal.stacks import Addresses, BusAddress
from cereal.transport import Transport
from cereal.transport.base import Subscriber
from modeld.bus import open_bus
from modeld.errors import ModelInterfaceError
from modeld.process import KINDS
from modeld.service.config import Config
from modeld.store.model_store import ModelStore, SelfTest, version_at
from modeld.store.records import Selected
from runtime.run.selftest import self_test as self_test_program
from tools.service.health import SERVICES, Health, HealthEar

# Longest wait for health messages, which a daemon sends once a second.
LISTEN_S = 1.3
# Timeout of a connection to a port on this machine.
PROBE_S = 0.2


@dataclass(frozen=True)
class Run:
    """The model that a daemon is running."""

    role: str  # "driving", "fallback" or "monitoring"
    model: str  # NAME@VERSION if it is in the store, else its path
    in_store: bool


def open_transport(config: Config) -> Transport | None:
    """Open the bus of the settings; return None if no process can be on it.

    Raises:
        TransportError: An address is malformed.
    """
    there = [address for address in config.addresses if _is_there(address)]
    if not there:
        return None
    # If the directory of one address does not exist, use the other address for both.
    addresses = Addresses(*(one if one in there else there[0] for one in config.addresses))
    return open_bus(addresses, config.bus_stack, prefix=config.prefix, keys=config.bus_keys)


def _is_there(address: str) -> bool:
    """Return whether there can be publishers: False if the address is a missing directory."""
    directory = BusAddress.parse(address).directory
    return directory is None or directory.exists()


def _has_daemon(config: Config) -> bool:
    """Return whether a daemon may be on the bus, to avoid waiting if there is certainly none."""
    address = BusAddress.parse(config.addresses.publish)
    if address.prefix is not None or (address.directory is None and address.leaves_machine):
        return True
    ends = [address.endpoint(name, config.bus_stack) for name in SERVICES]
    if address.directory is not None:
        return any(Path(end.removeprefix("ipc://")).exists() for end in ends)
    return any(map(_answers, ends))


def _answers(end: str) -> bool:
    host, _, port = end.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except OSError:
        return False
    return True


def running_models(store: ModelStore, config: Config) -> list[Run]:
    """Return the models that daemons on the bus report within `LISTEN_S`.

    Raises:
        TransportError: As in `open_transport`.
    """
    transport = open_transport(config) if _has_daemon(config) else None
    if transport is None:
        return []
    try:
        heard = HealthEar(transport, Event()).listen(LISTEN_S)
    finally:
        transport.close()
    return [run_of(store, health) for health in heard.values()]


def run_of(store: ModelStore, health: Health) -> Run:
    """Return the model in a daemon's health message."""
    role = "fallback" if health["isFallback"] else health["kind"]
    model = version_at(store, Path(health["model"]))
    return Run(role, str(model or health["model"]), in_store=model is not None)


def comparison(store: ModelStore, selection: Mapping[str, Selected], health: Health) -> str:
    """Return a text with the model selected for a daemon's role and the model that it runs."""
    run = run_of(store, health)
    selected = selection.get(run.role, Selected()).current
    if selected is None:
        return f"nothing selected for {run.role}, running {run.model}"
    return f"selected {selected}, running {run.model}"


def roles_of(model: str, runs: Collection[Run]) -> list[str]:
    """Return the roles in which daemons run a model version of the store."""
    return [run.role for run in runs if run.in_store and run.model == model]


def self_test_on(device: str | None) -> SelfTest:
    """Return a function that loads an artifact on a device and runs its self-test.

    The function raises ModeldError or RuntimeFault, with one line that names the artifact.
    """

    def self_test(path: Path) -> None:
        artifact = runtime.read_artifact(path)
        kind = KINDS[artifact.manifest.kind].model
        try:
            kind.check(artifact.manifest.metadata)
        except ModelInterfaceError as error:
            raise ModelInterfaceError(f"{path}: {error}") from error
        with runtime.load_program(artifact, device) as program:
            self_test_program(program)
            kind.try_out(program)

    return self_test


_DEVICE: Final = "deviceState"
# Outputs that a daemon with frames publishes 20 times a second.
_OUTPUTS: Final = ("modelV2", "driverStateV2")
# Time for ZeroMQ to connect, and for three messages of deviceState at 2 Hz.
ANSWER_S: Final = 1.6


def why_not_parked(transport: Transport, timeout_s: float = ANSWER_S) -> str:
    """Return why the car does not count as parked, as a phrase; "" if it is parked.

    It is driving if deviceState reports started, or if a daemon publishes outputs. If there are no
    messages for `timeout_s`, it is parked. Without permission to subscribe, the state is unknown.
    """
    device = transport.subscriber(_DEVICE, conflate=True)
    outputs = {name: transport.subscriber(name, conflate=True) for name in _OUTPUTS}
    ends = [device, *outputs.values()]
    try:
        for service, reason in transport.refused().items():
            return f"unknown, because {service} cannot be received ({reason})"
        deadline = time.monotonic() + timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            # Round up, to avoid busy waiting in the last millisecond.
            if not transport.wait(ends, int(remaining_s * 1000) + 1):
                break
            for name, output in outputs.items():
                if output.receive() is not None:
                    return f"a daemon publishes {name}"
            if _reports_started(device):
                return f"{_DEVICE} reports started"
    finally:
        for end in ends:
            end.close()
    return ""


def _reports_started(device: Subscriber) -> bool:
    """Return whether the newest message reports started; False without an undamaged message."""
    data = device.receive()
    if data is None:
        return False
    try:
        event = read_event(data)
        with reading(_DEVICE):
            return event.which() == _DEVICE and bool(content(event).started)
    except MessageError:
        return False
