"""Reports to the service manager by systemd's notification protocol, sd_notify(3).

One datagram of ``KEY=VALUE`` lines to the socket that ``NOTIFY_SOCKET`` names; nobody answers.
"""

import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Final

logger = logging.getLogger(__name__)

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_PID: Final = "WATCHDOG_PID"
_US_PER_S: Final = 1_000_000
# A watchdog that runs already goes on while a process loads; kernels may have to be built.
RELOAD_S: Final = 60.0
READY_WAIT_S: Final = 2.0
# A line of status that a person reads in `systemctl status`.
_MAX_STATUS: Final = 400


class Notifier:
    """The connection to the service manager; without one every method does nothing.

    The manager expects `alive` again within `watchdog_s`, None for no watchdog. `environment` has
    the variables for a process that takes this one's place.
    """

    def __init__(self, address: str | None = None, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self.environment: dict[str, str] = {}
        self._address = None if address is None else _socket_address(address)
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> "Notifier":
        """Remove the manager's variables from `environ`, so that children do not speak for us."""
        found = {n: environ.pop(n) for n in (_SOCKET, _PERIOD, _PID) if n in environ}
        watchdog_s = None
        # The variables may have been meant for a parent that left them behind.
        if found.get(_PERIOD, "").isdigit() and found.get(_PID, str(os.getpid())) == str(
            os.getpid()
        ):
            watchdog_s = int(found[_PERIOD]) / _US_PER_S or None
        notifier = cls(found.get(_SOCKET) or None, watchdog_s)
        notifier.environment = found
        return notifier

    def ready(self) -> None:
        """The daemon has what it needs to work, and waits for cameras or has some."""
        watchdog = self._period(self.watchdog_s)
        # Said once, and without it a sound daemon is ended: a manager that is busy is waited for.
        self._send(f"READY=1{watchdog}", wait_s=READY_WAIT_S)

    def status(self, text: str) -> None:
        """Describe the present state in one line."""
        self._send(f"STATUS={' '.join(text.split())[:_MAX_STATUS]}")

    def alive(self) -> None:
        """Real progress has been seen since the last call."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """The daemon ends."""
        self._send("STOPPING=1")

    def reloading(self, now_ns: int) -> None:
        """Announce a restart of the daemon; `ready` follows, and sets the watchdog's period again.

        `now_ns` is of the monotonic clock.
        """
        watchdog = self._period(RELOAD_S if self.watchdog_s else None)
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_ns // 1000}{watchdog}")

    def extend_start(self, seconds: float) -> None:
        """Starting takes up to this much longer, as kernels are compiled."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _US_PER_S)}")

    def close(self) -> None:
        """Close the socket; nothing is sent any more."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @staticmethod
    def _period(seconds: float | None) -> str:
        """Return the line that sets the watchdog's period, empty without a watchdog."""
        return "" if seconds is None else f"\nWATCHDOG_USEC={int(seconds * _US_PER_S)}"

    def _send(self, text: str, *, wait_s: float = 0.0) -> None:
        if self._socket is None or self._address is None:
            return
        try:
            # A manager that does not read must not hold the loop's watcher up.
            self._socket.settimeout(wait_s)
            self._socket.sendto(text.encode("utf-8", "replace"), socket.MSG_NOSIGNAL, self._address)
        except OSError as error:
            # The manager may be gone, or slow; the daemon goes on, and the watchdog decides.
            logger.debug("service manager not told %s: %s", text.partition("=")[0], error)


def _socket_address(address: str) -> str:
    """Return an address as the socket module takes it: "@name" is an abstract one."""
    return "\0" + address[1:] if address.startswith("@") else address
