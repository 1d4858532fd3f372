"""Notifies the service manager with systemd's protocol, sd_notify(3).

Each notification is one datagram of ``KEY=VALUE`` lines, sent to the socket named by
``NOTIFY_SOCKET``. There is no reply.
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
# Watchdog period during a reload, in which kernels may have to be built.
RELOAD_S: Final = 60.0
# Longest wait for the manager to accept READY.
READY_WAIT_S: Final = 2.0
# Characters of the status line in `systemctl status`.
_MAX_STATUS: Final = 400


class Notifier:
    """The connection to the service manager. Without a manager, every method does nothing.

    Attributes:
        watchdog_s: The manager's watchdog period, within which it expects `alive`, or None.
        environment: The manager's variables, for a process that replaces this one.
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
        """Return the notifier for the manager's variables in `environ`.

        The variables are removed from `environ`, so child processes do not notify the manager.
        """
        found = {n: environ.pop(n) for n in (_SOCKET, _PERIOD, _PID) if n in environ}
        watchdog_s = None
        # The variables may be leftovers that were meant for a parent process.
        if found.get(_PERIOD, "").isdigit() and found.get(_PID, str(os.getpid())) == str(
            os.getpid()
        ):
            watchdog_s = int(found[_PERIOD]) / _US_PER_S or None
        notifier = cls(found.get(_SOCKET) or None, watchdog_s)
        notifier.environment = found
        return notifier

    def ready(self) -> None:
        """Report that start-up is complete; the daemon may still wait for cameras."""
        watchdog = self._period(self.watchdog_s)
        # Wait for a busy manager: this is sent only once, and without it the manager ends the
        # daemon.
        self._send(f"READY=1{watchdog}", wait_s=READY_WAIT_S)

    def status(self, text: str) -> None:
        """Report the current state in one line."""
        self._send(f"STATUS={' '.join(text.split())[:_MAX_STATUS]}")

    def alive(self) -> None:
        """Report progress, which feeds the watchdog."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that the daemon is ending."""
        self._send("STOPPING=1")

    def reloading(self, now_ns: int) -> None:
        """Report a restart of the daemon, which `ready` ends by restoring the watchdog period.

        `now_ns` is on the monotonic clock.
        """
        watchdog = self._period(RELOAD_S if self.watchdog_s else None)
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_ns // 1000}{watchdog}")

    def extend_start(self, seconds: float) -> None:
        """Report that start-up takes up to `seconds` longer, because kernels are compiled."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * _US_PER_S)}")

    def close(self) -> None:
        """Close the socket; later notifications are ignored."""
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
            # A manager that does not read must not block the supervisor.
            self._socket.settimeout(wait_s)
            self._socket.sendto(text.encode("utf-8", "replace"), socket.MSG_NOSIGNAL, self._address)
        except OSError as error:
            # The manager may have ended or be slow. The daemon continues; the watchdog decides.
            logger.debug("service manager not told %s: %s", text.partition("=")[0], error)


def _socket_address(address: str) -> str:
    """Return an address for the socket module; "@name" is an abstract one."""
    return "\0" + address[1:] if address.startswith("@") else address
