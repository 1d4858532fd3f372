"""Command line options for a daemon's bus and settings.

The bus is given by its addresses and by the driving stack, which defines service names and ports.
The options of settings are generated from the settings' descriptions.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final, get_args

from cereal.cameras import CameraServer, open_cameras
from cereal.services import HashName
from cereal.stacks import DEFAULT_STACK, STACKS, Addresses, Stack
from cereal.transport import Transport
from modeld import bus
from modeld.service.config import SETTINGS, Config, environment_prefix
from modeld.service.config_sources import Given
from modeld.service.settings import Setting

DEFAULT_BUS: Final = "tcp://127.0.0.1"
# Options and their help texts: the command's own address first, then the daemons'.
_HEARS: Final = {
    "--subscribe": "where to listen (that of --bus)",
    "--publish": "where the daemons publish, if that is elsewhere (that of --subscribe)",
}
_SENDS: Final = {
    "--publish": "where to publish (that of --bus)",
    "--subscribe": "where the daemons subscribe, if that is elsewhere (that of --publish)",
}


def add_stack_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that select the stack, which defines the bus's names and ports."""
    parser.add_argument(
        "--stack",
        choices=STACKS,
        metavar="NAME",
        help=f"whose names and ports the bus has: {', '.join(STACKS)} ({DEFAULT_STACK.name})",
    )
    parser.add_argument(
        "--port-hash",
        choices=get_args(HashName),
        help="hash that gives TCP ports; murmur before November 2024 (the stack's)",
    )


def add_bus_arguments(parser: argparse.ArgumentParser, *, sends: bool = False) -> None:
    """Declare the bus options of a command that subscribes to daemons.

    With `sends`, the command publishes to the daemons instead.
    """
    parser.add_argument(
        "--bus",
        default=DEFAULT_BUS,
        metavar="ADDRESS",
        help="tcp://HOST, tcp://HOST:+N with all ports moved by N, ipc:///DIRECTORY, or msgq: for "
        "rings in shared memory (tcp://127.0.0.1)",
    )
    for option, text in (_SENDS if sends else _HEARS).items():
        parser.add_argument(option, metavar="ADDRESS", help=text)
    parser.add_argument(
        "--bus-keys",
        type=Path,
        metavar="DIRECTORY",
        help="keys for addresses of other machines, as modeld keys makes them",
    )
    parser.set_defaults(sends=sends)
    add_stack_arguments(parser)


def take_bus_of(args: argparse.Namespace, config: Config) -> None:
    """Take bus options that were not given from the settings of a daemon."""
    named = args.subscribe or args.publish or args.bus != DEFAULT_BUS
    if not named:
        args.publish, args.subscribe = config.addresses
    args.stack = args.stack or config.stack
    args.port_hash = args.port_hash or config.port_hash
    args.bus_keys = args.bus_keys or config.bus_keys


def stack_of(args: argparse.Namespace) -> Stack:
    """Return the requested stack, else the default one."""
    stack = STACKS[args.stack or DEFAULT_STACK.name]
    return replace(stack, hash_name=args.port_hash) if args.port_hash else stack


def addresses_of(args: argparse.Namespace) -> Addresses:
    """Return the requested addresses; a command with a single one uses it for both."""
    if args.sends:
        publish = args.publish or args.bus
        return Addresses(publish, args.subscribe or publish)
    subscribe = args.subscribe or args.bus
    return Addresses(args.publish or subscribe, subscribe)


def open_bus(args: argparse.Namespace) -> Transport:
    """Open the requested bus.

    Raises:
        TransportError: An address is malformed.
    """
    prefix = environment_prefix()
    return bus.open_bus(addresses_of(args), stack_of(args), prefix=prefix, keys=args.bus_keys)


def open_camera_server(args: argparse.Namespace) -> CameraServer:
    """Return the cameras at the requested address, without connecting to them.

    Raises:
        FrameError: The address is malformed.
    """
    prefix = environment_prefix()
    return open_cameras(args.camera_server, stack_of(args), prefix=prefix)


# --- The daemon's settings --------------------------------------------------------------------


def add_setting_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --config, the options of settings, and --set for settings without an option."""
    parser.add_argument("--config", type=Path, metavar="TOML", help="settings file")
    for setting in SETTINGS.values():
        name, _, placeholder = (setting.doc.option or "").partition(" ")
        if setting.kind is bool and name:
            parser.add_argument(
                name, dest=_dest(setting), action="store_const", const="true", help=_help(setting)
            )
        elif name:
            parser.add_argument(name, dest=_dest(setting), metavar=placeholder, help=_help(setting))
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting by its key in the file, such as camera.road.width=960; may be repeated",
    )


def settings_given(args: argparse.Namespace) -> list[Given]:
    """Return the settings given as options, in order of increasing priority.

    The order is -v and -q, options of settings, --set.
    """
    found = []
    if args.verbosity < 0:
        found.append(Given("log_level", "error", "-q"))
    elif args.verbosity > 0:
        found.append(Given("log_level", "debug", "-v"))
    if args.verbosity > 1:
        found.append(Given("log_tracebacks", "true", "-vv"))
    for setting in SETTINGS.values():
        text = getattr(args, _dest(setting), None)
        if text is not None and setting.doc.option:
            found.append(Given(setting.key, text, setting.doc.option.partition(" ")[0]))
    for pair in args.set:
        key, _, text = pair.partition("=")
        found.append(Given(key.strip(), text.strip(), f"--set {key.strip()}"))
    return found


def _dest(setting: Setting) -> str:
    return f"setting:{setting.key}"


def _help(setting: Setting) -> str:
    text = setting.doc.text.rstrip(".")
    if text.split()[0][1:].islower():  # the first word is not a name such as OpenCL
        text = text[0].lower() + text[1:]
    if setting.doc.choices:
        text += f": {', '.join(setting.doc.choices)}"
    if setting.default is None or setting.kind is bool:
        return text
    return f"{text} ({setting.default})"
