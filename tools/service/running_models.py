"""Which models of a store run, by the daemons' messages, and which are selected."""

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

# A daemon says once a second how it is.
LISTEN_S = 1.3
# On this machine: who listens answers at once.
PROBE_S = 0.2


@dataclass(frozen=True)
class Run:
    """A daemon's model: its role, and NAME@VERSION or the file of one that is not in the store."""

    role: str
    model: str
    in_store: bool


def open_transport(config: Config) -> Transport | None:
    """Open the bus of the settings, None where there can be nobody.

    Raises:
        TransportError: an address has another form.
    """
    there = [address for address in config.addresses if _is_there(address)]
    if not there:
        return None
    # Who cannot be heard at the one is asked for at the other.
    addresses = Addresses(*(one if one in there else there[0] for one in config.addresses))
    return open_bus(addresses, config.bus_stack, prefix=config.prefix, keys=config.bus_keys)


def _is_there(address: str) -> bool:
    """Tell whether there may be a publisher: in a directory that nobody has made there is none."""
    directory = BusAddress.parse(address).directory
    return directory is None or directory.exists()


def _has_daemon(config: Config) -> bool:
    """Tell whether a daemon may be there, so that nobody who is known not to be is waited for."""
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
    """Return the models that daemons on the bus report within 1.3 s.

    Raises:
        TransportError: as `open_transport`.
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
    """Return the model of a daemon from its health message."""
    role = "fallback" if health["isFallback"] else health["kind"]
    model = version_at(store, Path(health["model"]))
    return Run(role, str(model or health["model"]), in_store=model is not None)


def comparison(store: ModelStore, selection: Mapping[str, Selected], health: Health) -> str:
    """Return what is selected for the role that a daemon has, and what it runs, for a person."""
    run = run_of(store, health)
    selected = selection.get(run.role, Selected()).current
    if selected is None:
        return f"nothing selected for {run.role}, running {run.model}"
    return f"selected {selected}, running {run.model}"


def roles_of(model: str, runs: Collection[Run]) -> list[str]:
    """Return the roles that a model version runs for."""
    return [run.role for run in runs if run.in_store and run.model == model]


def self_test_on(device: str | None) -> SelfTest:
    """Return a function that loads an artifact on a device and runs it.

    It raises ModeldError or RuntimeFault, in one line that names the artifact.
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
# What a daemon that has frames publishes 20 times a second.
_OUTPUTS: Final = ("modelV2", "driverStateV2")
# Three messages of deviceState at its 2 Hz, and the time that ZeroMQ takes to connect.
ANSWER_S: Final = 1.6


def why_not_parked(transport: Transport, timeout_s: float = ANSWER_S) -> str:
    """Return the evidence that the car drives, as a phrase; "" if it is parked.

    It drives while deviceState reports started, or a daemon publishes outputs. It is parked if
    nobody publishes for `timeout_s`; without permission to listen the answer is unknown.
    """
    device = transport.subscriber(_DEVICE, conflate=True)
    outputs = {name: transport.subscriber(name, conflate=True) for name in _OUTPUTS}
    ends = [device, *outputs.values()]
    try:
        for service, reason in transport.refused().items():
            return f"nobody can tell, as {service} may not be received ({reason})"
        deadline = time.monotonic() + timeout_s
        while (remaining_s := deadline - time.monotonic()) > 0:
            # Rounded up, so that the last millisecond is not spent in turns.
            if not transport.wait(ends, int(remaining_s * 1000) + 1):
                break
            for name, output in outputs.items():
                if output.receive() is not None:
                    return f"a daemon publishes {name}"
            if _says_started(device):
                return f"{_DEVICE} says that it is started"
    finally:
        for end in ends:
            end.close()
    return ""


def _says_started(device: Subscriber) -> bool:
    """Return the newest message's answer; False without one, or if it is damaged."""
    data = device.receive()
    if data is None:
        return False
    try:
        event = read_event(data)
        with reading(_DEVICE):
            return event.which() == _DEVICE and bool(content(event).started)
    except MessageError:
        return False
