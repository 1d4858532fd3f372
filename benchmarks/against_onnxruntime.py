"""Compare a compiled model with onnxruntime, both with two threads, in alternating blocks.

onnxruntime's workers spin for a while after a call and take cores from whoever runs next: hence the
pauses, and the ratio per block instead of two separate runs.

Example:
  .venv/bin/python benchmarks/against_onnxruntime.py build/models/*.onnx
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from runtime import load_program
from scheduler.compile import compile_plain

BLOCKS, FRAMES, PAUSE_S, THREADS = 8, 20, 0.4, 2


def block_ms(run: Callable[[], Any]) -> float:
    """Return the median time of one call over a block, after a pause."""
    time.sleep(PAUSE_S)
    times = []
    for _ in range(FRAMES):
        started = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - started) / 1e6)
    return float(np.median(times))


def compare(path: Path) -> str:
    """Return one line: medians of both and the ratio over the blocks."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(path), options)
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.integers(0, 256, i.shape).astype(np.uint8)
        if "uint8" in i.type
        else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }
    with tempfile.TemporaryDirectory() as directory:
        artifact = Path(directory) / "model.pkl"
        compile_plain(path).build().write(artifact)
        with load_program(artifact) as program:
            pairs = [
                (block_ms(lambda: program.run(inputs)), block_ms(lambda: session.run(None, inputs)))
                for _ in range(BLOCKS + 1)
            ][1:]  # the first pair warms up
    ours, theirs = (np.array(column) for column in zip(*pairs, strict=True))
    ratio = ours / theirs
    return (
        f"{path.name}: ours {np.median(ours):.2f} ms, onnxruntime {np.median(theirs):.2f} ms, "
        f"ratio {np.median(ratio):.2f} ({ratio.min():.2f} to {ratio.max():.2f})"
    )


def main() -> None:
    """Compare each model given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="+", type=Path, metavar="MODEL.onnx")
    for path in parser.parse_args().model:
        print(compare(path))


if __name__ == "__main__":
    main()
