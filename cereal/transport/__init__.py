"""Ways to carry messages: ZeroMQ between processes, memory inside one."""

from cereal.transport.base import Publisher, Subscriber, Transport
from cereal.transport.memory import MemoryTransport
from cereal.transport.zmq import ZmqTransport

__all__ = ["MemoryTransport", "Publisher", "Subscriber", "Transport", "ZmqTransport"]
