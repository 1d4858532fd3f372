"""Errors of the bus layer.

CerealError
├── MessageError    bytes that are no message, or a message that is not what was announced
├── ServiceError    a service name that does not exist
├── TransportError  an address that cannot be used
│   ├── AddressError      a text that is no address
│   └── MessageSizeError  a message that an endpoint has no room for; others may follow
├── FrameError      a frame ring that is missing, foreign or damaged
│   └── CameraAddressError  a text that is no address of cameras
└── LogError        a log that cannot be read or written
    └── MissingCodecError  the package of its codec is not installed
"""


class CerealError(Exception):
    """Base of all errors of this package; `exit_code` is what the command line exits with."""

    exit_code: int = 4


class MessageError(CerealError):
    """The bytes are no Event, or not the Event that was expected."""


class ServiceError(CerealError):
    """The name is no known service."""

    exit_code = 2


class TransportError(CerealError):
    """An endpoint could not be bound, connected or used."""


class AddressError(TransportError):
    """A text is no address of a bus."""

    exit_code = 2


class MessageSizeError(TransportError):
    """An endpoint cannot take a message of this size; it takes others."""


class FrameError(CerealError):
    """A frame ring is missing, taken, foreign or damaged."""


class CameraAddressError(FrameError):
    """A text is no address of cameras."""

    exit_code = 2


class LogError(CerealError):
    """A log cannot be read or written."""


class MissingCodecError(LogError):
    """The package that a log's codec needs is not installed."""

    exit_code = 3
