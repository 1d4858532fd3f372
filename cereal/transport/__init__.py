"""Message transports: ZeroMQ or msgq rings between processes, and queues within one process."""

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
