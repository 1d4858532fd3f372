"""How fast graphs become kernels: time per kernel to the list of kernels, and to their code.

Times are the least of some repeats. "units" are times the calibration loop, a fixed piece of work
of the same kind (dictionaries, tuples, small integers), so figures of two machines can be compared.

Example:
  .venv/bin/python benchmarks/scheduler_speed.py --only residual-8 transformer-8
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from scheduler.context import context_for
from scheduler.ir.node import toposort
from scheduler.lower import lower_kernels
from scheduler.pipeline import kernelize
from scheduler.tensor.tensor import Tensor

CALIBRATION_STEPS = 20_000


def weights(*shape: int) -> Tensor:
    """Return random weights, another buffer each time."""
    rng = np.random.default_rng(0)
    return Tensor.weight(rng.standard_normal(shape).astype(np.float32) * np.float32(0.05))


def residual(blocks: int) -> Tensor:
    """Return a chain of residual blocks: two 3x3 convolutions of 64 channels over 32 x 32."""
    x = Tensor.input("x", (1, 64, 32, 32))
    for _ in range(blocks):
        h = x.conv2d(weights(64, 64, 3, 3), weights(64), padding=1).relu()
        x = (h.conv2d(weights(64, 64, 3, 3), weights(64), padding=1) + x).relu()
    return x


def transformer(blocks: int, rows: int = 64, width: int = 128, heads: int = 4) -> Tensor:
    """Return a chain of pre-norm transformer blocks with a gelu MLP."""
    size = width // heads
    x = Tensor.input("x", (rows, width))
    for _ in range(blocks):
        h = x.layernorm() * weights(width) + weights(width)
        q, k, v = (
            (h @ weights(width, width) + weights(width)).reshape(rows, heads, size).permute(1, 0, 2)
            for _ in range(3)
        )
        scores = (q @ k.permute(0, 2, 1)) * (1 / math.sqrt(size))
        mixed = (scores.softmax(-1) @ v).permute(1, 0, 2).reshape(rows, width)
        x = x + mixed @ weights(width, width) + weights(width)
        h = x.layernorm() * weights(width) + weights(width)
        h = (h @ weights(width, 4 * width) + weights(4 * width)).gelu()
        x = x + h @ weights(4 * width, width) + weights(width)
    return x


def wide_sum(count: int) -> Tensor:
    """Return a sum of many inputs."""
    total = Tensor.input("x0", (16, 16))
    for i in range(1, count):
        total = total + Tensor.input(f"x{i}", (16, 16))
    return total


def elementwise(nodes: int) -> Tensor:
    """Return a chain of elementwise operations, about as many as asked for."""
    x = Tensor.input("x", (64,))
    y = x
    for i in range(nodes // 5):
        z = (y * 1.0001 + 0.5).sin() + x
        y = z.maximum(float(i))
    return y


def reductions(count: int) -> Tensor:
    """Return a chain of steps that each subtract a row's sum: five nodes and one reduction each."""
    y = Tensor.input("x", (64, 64))
    for _ in range(count):
        y = (y - y.sum(1, keepdim=True) * 0.01).tanh()
    return y


def wide_stack(count: int) -> Tensor:
    """Return a stack of many inputs."""
    stacked: Tensor = Tensor.stack([Tensor.input(f"x{i}", (8,)) for i in range(count)], 0)
    return stacked


GRAPHS: dict[str, Callable[[], Tensor]] = {
    "residual-8": lambda: residual(8),
    "residual-32": lambda: residual(32),
    "residual-128": lambda: residual(128),
    "transformer-8": lambda: transformer(8),
    "transformer-32": lambda: transformer(32),
    "transformer-128": lambda: transformer(128),
    "sum-512": lambda: wide_sum(512),
    "elementwise-10000": lambda: elementwise(10_000),
    "reductions-2000": lambda: reductions(2000),
    "stack-3000": lambda: wide_stack(3000),
}


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of one graph; times in milliseconds.

    Attributes:
        nodes: of the graph before any pass.
        kernels: launches.
        schedule_ms: from graph to kernel list.
        lower_ms: from kernel list to OpenCL C; NaN if not measured.
    """

    name: str
    nodes: int
    kernels: int
    schedule_ms: float
    lower_ms: float = math.nan

    @property
    def ms_per_kernel(self) -> float:
        """From graph to kernel list."""
        return self.schedule_ms / self.kernels

    @property
    def ms_per_node(self) -> float:
        """From graph to kernel list."""
        return self.schedule_ms / self.nodes


def calibration_ms(repeats: int = 5) -> float:
    """Return the time of a fixed piece of work of the kind that scheduling is."""

    def work() -> None:
        table: dict[tuple[int, int], tuple[int, ...]] = {}
        for i in range(CALIBRATION_STEPS):
            key = (i % 997, i // 997)
            table[key] = (*table.get((i % 499, 0), ()), i)[-3:]

    return min(_ms(work) for _ in range(repeats))


def measure(name: str, tensor: Tensor, repeats: int = 3, *, lowering: bool = False) -> Speed:
    """Measure one graph.

    Args:
        name: what to call it.
        tensor: its only output.
        repeats: the least time of so many runs is taken.
        lowering: whether to generate code too, once.
    """
    outputs, context = {"out": tensor.node}, context_for()
    times = [_ms(lambda: kernelize(outputs, (), context)) for _ in range(repeats - 1)]
    started = time.perf_counter_ns()
    named, kernels = kernelize(outputs, (), context)
    times.append((time.perf_counter_ns() - started) / 1e6)
    lower = (
        _ms(lambda: lower_kernels(kernels, list(named.values()), context)) if lowering else math.nan
    )
    return Speed(name, len(toposort([tensor.node])), len(kernels), min(times), lower)


def _ms(work: Callable[[], object]) -> float:
    started = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - started) / 1e6


def _row(found: Speed, unit: float) -> str:
    lowered = found.lower_ms / found.kernels
    return (
        f"{found.name:<20}{found.nodes:>7}{found.kernels:>9}{found.schedule_ms:>10.0f}"
        f"{found.ms_per_kernel:>11.2f}{found.ms_per_kernel / unit:>9.3f}{lowered:>17.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="GRAPH", choices=GRAPHS, default=list(GRAPHS))
    parser.add_argument("--repeats", type=int, default=3, help="runs of each graph (%(default)s)")
    parser.add_argument("--no-lowering", action="store_true", help="leave code generation out")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats: at least 1")
    unit = calibration_ms()
    results = []
    if not options.json:
        print(f"calibration loop: {unit:.2f} ms")
        print(
            f"{'graph':<20}{'nodes':>7}{'kernels':>9}{'ms':>10}{'ms/kernel':>11}{'units':>9}"
            f"{'lower ms/kernel':>17}"
        )
    for name in options.only:
        found = measure(name, GRAPHS[name](), options.repeats, lowering=not options.no_lowering)
        results.append(found)
        if not options.json:
            print(_row(found, unit), flush=True)
    if options.json:
        rows = [
            {**asdict(r), "lower_ms": None if math.isnan(r.lower_ms) else r.lower_ms}
            for r in results
        ]
        print(json.dumps({"calibration_ms": unit, "graphs": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
