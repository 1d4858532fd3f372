"""Ways to carry messages: ZeroMQ or rings between processes, memory inside one."""

from cereal.transport.base import MemoryTransport, Publisher, Subscriber, Transport
from cereal.transport.msgq import MsgqTransport
from cereal.transport.zmq import ZmqTransport

__all__ = [
    "MemoryTransport",
    "MsgqTransport",
    "Publisher",
    "Subscriber",
    "Transport",
    "ZmqTransport",
]
