"""Errors of the bus layer.

CerealError
├── MessageError    the bytes are not a valid message, or not the expected kind of message
├── ServiceError    the service name does not exist
├── TransportError  an endpoint cannot be bound, connected or used
│   ├── AddressError      the text is not a bus address
│   └── MessageSizeError  the message is too large for the endpoint, which remains usable
├── FrameError      a frame ring is missing, in use, foreign or damaged
│   └── CameraAddressError  the text is not a camera address
└── LogError        a log cannot be read or written
    └── MissingCodecError  the package for the log's codec is not installed
"""


class CerealError(Exception):
    """Base of all errors of this package. `exit_code` is the exit status of the command line."""

    exit_code: int = 4


class MessageError(CerealError):
    """The bytes are not an Event, or not the expected Event."""


class ServiceError(CerealError):
    """No service has this name."""

    exit_code = 2


class TransportError(CerealError):
    """An endpoint could not be bound, connected or used."""


class AddressError(TransportError):
    """The text is not a bus address."""

    exit_code = 2


class MessageSizeError(TransportError):
    """The message does not fit the endpoint; messages of another size can still be sent."""


class FrameError(CerealError):
    """A frame ring is missing, in use by another writer, foreign or damaged."""


class CameraAddressError(FrameError):
    """The text is not a camera address."""

    exit_code = 2


class LogError(CerealError):
    """A log cannot be read or written."""


class MissingCodecError(LogError):
    """The package for the log's codec is not installed."""

    exit_code = 3
