"""Create the keys of a bus between machines: DIRECTORY for bus_keys or --bus-keys.

Writes own.key_secret, own.key and the empty directory peers. Only the owner may read
own.key_secret, and it must never leave the machine; own.key is for other machines. Existing files
are kept. Machines whose own.key is in peers may subscribe to this machine. server.key is the
own.key of the machine that this one subscribes to. Keys are used for addresses of other machines,
including tcp://*.

Example:
  modeld keys /etc/modeld/keys
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cereal.transport.curve import PEERS_NAME, PUBLIC_NAME, SERVER_NAME, CurveKeys, make_keys
from tools.lib.json_output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="created if missing")


def run(args: argparse.Namespace) -> int:
    """Create missing keys, and print which file to copy to which machine; return exit code 0."""
    directory: Path = args.directory
    is_new = make_keys(directory)
    keys = CurveKeys.read(directory)
    others = len(keys.peers) - 1
    if args.json:
        print_json(
            {
                "directory": str(directory),
                "made": is_new,
                "public_key": keys.public.decode(),
                "peers": others,
                "server_key": None if keys.server is None else keys.server.decode(),
            }
        )
        return 0
    print(f"{directory / PUBLIC_NAME}: {'made' if is_new else 'kept'}, {keys.public.decode()}")
    print(f"{directory / PEERS_NAME}: {others} that may subscribe here")
    print(f"{directory / SERVER_NAME}: {'none' if keys.server is None else keys.server.decode()}")
    print(
        f"next: copy {PUBLIC_NAME} to the other machine, as {PEERS_NAME}/NAME.key if this machine "
        f"subscribes to it, as {SERVER_NAME} if it subscribes to this machine"
    )
    return 0
