"""What a health report and its metrics cost.

    python -m benchmarks.health_report

One report is made, sent and timed at a time, with pauses as a supervisor has them, by the time that
the thread was on a processor: that is what the loop may have to wait for the interpreter.
"""

from __future__ import annotations

import tempfile
import time
from statistics import quantiles

from cereal.clock import MonotonicClock
from cereal.transport import ZmqTransport
from modeld.health.metrics import metrics_text
from modeld.health.reporter import HealthReporter
from modeld.health.snapshot import ServiceFacts
from modeld.model.load_models import versions
from modeld.service.realtime import Effect
from modeld.state.loop_state import LoopState, Phase

REPORTS = 300
PAUSE_S = 0.02


def main() -> None:
    """Print medians and 99th percentiles in milliseconds, and the size of a message."""
    state = LoopState(phase=Phase.RUNNING, frames=1000, published=1000, valid=1000)
    settings = ("cpus", "priority", "lock_memory", "freeze_gc", "gpu_priority")
    facts = ServiceFacts(
        "driving",
        model="/var/lib/modeld/driving.pkl",
        sha256="0" * 64,
        checkpoints={"vision": "example-vision/seed-0", "policy": "example-policy/seed-0"},
        device="a device",
        driver="a driver",
        realtime=tuple(Effect(name, "1", effective=False, reason="refused") for name in settings),
        versions=versions(),
    )
    times: dict[str, list[int]] = {"report": [], "metrics": []}
    with tempfile.TemporaryDirectory() as directory:
        transport = ZmqTransport(f"ipc://{directory}")
        subscriber = transport.subscriber("modeldHealth")
        reporter = HealthReporter(facts, state, transport, MonotonicClock(), "modeldHealth")
        data = None
        for _ in range(REPORTS):
            start_ns = time.thread_time_ns()
            snapshot = reporter.report(time.monotonic_ns())
            reported_ns = time.thread_time_ns()
            metrics_text(snapshot, 0.0)
            times["report"].append(reported_ns - start_ns)
            times["metrics"].append(time.thread_time_ns() - reported_ns)
            time.sleep(PAUSE_S)
            data = subscriber.receive() or data
        reporter.close()
        transport.close()
    for name, found in times.items():
        cuts = quantiles(found, n=100)
        print(f"{name}: p50 {cuts[49] / 1e6:.2f} ms, p99 {cuts[98] / 1e6:.2f} ms")
    print(f"message: {len(data or b'')} bytes")


if __name__ == "__main__":
    main()
