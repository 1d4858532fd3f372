"""Processes of the product as a user starts them, and a subscriber that has nothing of ours."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cereal.schema import SCHEMA_PATH

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0
# pyzmq, pycapnp and the schema file, started with -I: a line of JSON for each message; of bytes it
# has the length.
FOREIGN = """
import json, sys
import capnp, zmq
capnp.remove_import_hook()
ours = ("cereal", "runtime", "scheduler", "modeld", "tools")
assert not [name for name in sys.modules if name.split(".")[0] in ours]
log = capnp.load(sys.argv[1])
poller, sockets = zmq.Poller(), {}
for name in sys.argv[3:]:
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(f"{sys.argv[2]}/{name}")
    sockets[socket] = name
    poller.register(socket, zmq.POLLIN)
while True:
    for socket, _ in poller.poll():
        (data,) = socket.recv_multipart()
        with log.Event.from_bytes(data, traversal_limit_in_words=2**61) as event:
            assert event.which() == sockets[socket], event.which()
            row = getattr(event, event.which()).to_dict()
            row |= {"service": event.which(), "valid": event.valid, "time": event.logMonoTime}
            print(json.dumps(row, default=len), flush=True)
"""


def cli(*arguments: str, cwd: Path) -> None:
    """Run a command to its end, which must be a good one."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.cli", *arguments],
        cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@contextmanager
def process(*arguments: str, log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process whose messages go into a file; it is killed at the end."""
    with (
        log.open("w", encoding="utf-8") as file,
        subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, stderr=file, text=True, **options
        ) as child,
    ):
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def heard(
    bus: str, *services: str, log: Path, patience_s: float = PATIENCE_S
) -> Iterator[Iterator[dict[str, Any]]]:
    """Yield messages of services as they come, fields by name; no more after a while."""
    command = ("-I", "-c", FOREIGN, str(SCHEMA_PATH), bus, *services)
    with process(*command, log=log, stdout=subprocess.PIPE) as child:
        watchdog = threading.Timer(patience_s, child.kill)
        watchdog.start()
        assert child.stdout is not None
        try:
            yield map(json.loads, child.stdout)
        finally:
            watchdog.cancel()
