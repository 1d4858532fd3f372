"""Which models of a store run: what the daemons say on the bus, beside what is selected."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from cereal.address import Addresses, BusAddress
from cereal.transport import Transport
from modeld.bus import open_bus
from modeld.service.config import Config
from modeld.store.model_store import ModelStore
from modeld.store.removal import version_at
from modeld.store.selection import Selected
from tools.service.health_ear import SERVICES, HealthEar
from tools.service.health_judge import Health

# A daemon says once a second how it is.
LISTEN_S = 1.3
# On this machine: who listens answers at once.
PROBE_S = 0.2


@dataclass(frozen=True)
class Run:
    """What a daemon runs.

    Attributes:
        role: that it runs the model for.
        model: NAME@VERSION, or the file of a model that is none of the store.
        in_store: whether it is one of the store.
    """

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
    """Return what the daemons on the bus say that they run; waits for them up to 1.3 s.

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
    """Return what a daemon that said how it is runs."""
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
