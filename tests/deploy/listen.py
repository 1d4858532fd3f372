"""Subscriber of the deployment test, run where modeld is installed: one line of each modelV2.

    python listen.py BUS

A line is the monotonic clock in ns, the frame's id, and whether the message is valid.
"""

import sys
import time

from cereal.schema import content, read_event
from cereal.transport import ZmqTransport


def main(bus: str) -> None:
    """Listen until killed."""
    subscriber = ZmqTransport(bus).subscriber("modelV2", conflate=False)
    while True:
        data = subscriber.receive(timeout_ms=1000)
        if data is not None:
            now_ns = time.monotonic_ns()
            event = read_event(data)
            line = f"{now_ns} {content(event).frameId} {int(event.valid)}"
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
