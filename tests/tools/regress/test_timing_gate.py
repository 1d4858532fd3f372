"""The timing gate: its decision by hand-made figures, and real processes beside a busy one."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.scheduler.onnx_import.onnx_models import parsed
from tools.cli import main
from tools.errors import ToolError
from tools.regress.timing import (
    LIMIT,
    Interval,
    TimingResult,
    interval,
    judge_timing,
    measure_timing,
)

SIZE = 384
LAYERS = 30


def exactly(value: float) -> Interval:
    return interval([value] * 4)


@pytest.mark.parametrize(
    ("count", "t"), [(2, 12.71), (3, 4.303), (4, 3.182), (5, 2.776), (8, 2.365), (12, 2.201)]
)
def test_interval_of_a_few_values_by_hand(count: int, t: float) -> None:
    # 0, 1, ... n - 1 have the mean (n - 1) / 2 and the variance n (n + 1) / 12.
    found = interval([float(i) for i in range(count)])
    assert found.mean == (count - 1) / 2
    half = pytest.approx(t * math.sqrt((count + 1) / 12))
    assert found.high - found.mean == half
    assert found.mean - found.low == half


def measured(ratio: Interval, baseline: Interval | None = None, waiting: float = 0) -> TimingResult:
    return TimingResult("some device", "processor", ratio, baseline, 1.0, waiting)


@pytest.mark.parametrize(
    ("result", "reference", "passed", "slower", "said"),
    [
        (measured(exactly(7.0 * 0.7)), exactly(7.0), True, -0.3, ""),
        (measured(exactly(7.0)), exactly(7.0), True, 0.0, ""),
        (measured(exactly(7.0 * 1.049)), exactly(7.0), True, 0.049, ""),
        (measured(exactly(7.0 * 1.051)), exactly(7.0), False, 0.051, "slower"),
        (measured(exactly(7.0 * 1.1)), exactly(7.0), False, 0.1, "slower"),
        (measured(interval([7.0, 8.4, 7.1, 7.9])), exactly(7.0), True, None, "too noisy"),
        # Noise of the reference counts.
        (measured(exactly(7.6)), interval([6.0, 8.0, 6.2, 7.8]), True, None, ""),
        (measured(exactly(7.6)), exactly(7.0), False, None, ""),
        # A baseline decides where there is one.
        (measured(exactly(7.0), exactly(1.1)), exactly(7.0), False, None, ""),
        (measured(exactly(7.0), exactly(1.1)), None, False, None, ""),
        (measured(exactly(7.0), waiting=0.061), exactly(7.0), False, None, "waiting"),
        (measured(exactly(7.0), waiting=0.059), exactly(7.0), True, None, ""),
    ],
)
def test_measurements_are_judged(
    result: TimingResult, reference: Interval | None, passed: bool, slower: float | None, said: str
) -> None:
    verdict = judge_timing(result, reference, waiting=0.01 if result.waiting else None)
    assert verdict.passed is passed
    assert slower is None or verdict.slower == pytest.approx(slower)
    assert said in verdict.text


def test_without_reference_nothing_is_judged() -> None:
    verdict = judge_timing(measured(exactly(7.0)), None)
    assert verdict.passed
    assert verdict.slower is None
    assert "no reference" in verdict.text


@pytest.mark.slow
def test_unreadable_artifact_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"none\.pkl.*expected a measurement"):
        measure_timing(tmp_path / "none.pkl")


def _write_chain(path: Path, layers: int) -> Path:
    """Compile `layers` products of SIZE x SIZE, each with a tanh so that none can be merged."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"t{index}" for index in range(layers))]
    weights: dict[str, Any] = {
        f"w{index}": rng.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE
        for index in range(layers)
    }
    nodes = " ".join(
        f"p{index} = MatMul({names[index]}, w{index}) t{index} = Tanh(p{index})"
        for index in range(layers)
    )
    shape = f"float[{SIZE // 4},{SIZE}]"
    model = parsed(f"({shape} x) => ({shape} {names[-1]}) {{ {nodes} }}", **weights)
    source = path.with_suffix(".onnx")
    onnx.save(model, str(source))
    assert main(["compile", "--plain", str(source), "-o", str(path), "-q"]) == 0
    return path


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_ten_percent_more_work_fails_and_the_same_passes_beside_a_busy_process(
    tmp_path: Path,
) -> None:
    model = _write_chain(tmp_path / "model.pkl", LAYERS)
    slower = _write_chain(tmp_path / "slower.pkl", LAYERS + LAYERS // 10)
    reference = measure_timing(model).ratio
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            same = measure_timing(model, reference=reference.mean)
            verdict = judge_timing(same, reference)
            assert verdict.passed
            for _ in range(3):
                verdict = judge_timing(measure_timing(slower, reference=reference.mean), reference)
                if "too noisy" not in verdict.text:
                    break
        finally:
            busy.kill()
    assert not verdict.passed
    assert verdict.slower is not None
    assert verdict.slower > LIMIT
    direct = measure_timing(slower, baseline=model)
    assert not judge_timing(direct, None).passed
