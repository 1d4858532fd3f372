"""The timing gate: its decision by hand-made figures, and real processes beside a busy one."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

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


def _result(
    ratio: Interval, *, to_baseline: Interval | None = None, waiting: float | None = 0.0
) -> TimingResult:
    return TimingResult("some device", "processor", ratio, to_baseline, 1.0, waiting)


def _exactly(value: float) -> Interval:
    return interval([value] * 4)


def test_interval_of_four_values_by_hand() -> None:
    # Mean 2.5, variance 5/3; t = 3.182; half = 3.182 * sqrt(5/3) / 2 = 2.05397.
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.high - found.mean == pytest.approx(3.182 * math.sqrt(5 / 3) / 2)


@pytest.mark.parametrize(
    ("slower", "passed"), [(-0.3, True), (0.0, True), (0.04, True), (0.1, False)]
)
def test_exact_measurements_are_judged_by_the_limit(slower: float, passed: bool) -> None:
    verdict = judge_timing(_result(_exactly(7.0 * (1 + slower))), _exactly(7.0))
    assert verdict.passed is passed
    assert verdict.slower == pytest.approx(slower)


def test_noise_that_reaches_the_limit_does_not_fail_and_says_so() -> None:
    verdict = judge_timing(_result(interval([7.0, 8.4, 7.1, 7.9])), _exactly(7.0))
    assert verdict.passed
    assert "too noisy" in verdict.text


def test_noise_of_the_reference_counts() -> None:
    noisy = interval([6.0, 8.0, 6.2, 7.8])
    assert judge_timing(_result(_exactly(7.6)), noisy).passed
    assert not judge_timing(_result(_exactly(7.6)), _exactly(7.0)).passed


def test_baseline_decides_where_there_is_one() -> None:
    result = _result(_exactly(7.0), to_baseline=_exactly(1.1))
    assert not judge_timing(result, _exactly(7.0)).passed
    assert not judge_timing(result, None).passed


def test_without_reference_nothing_is_judged() -> None:
    verdict = judge_timing(_result(_exactly(7.0)), None)
    assert verdict.passed
    assert verdict.slower is None
    assert "no reference" in verdict.text


def test_time_spent_waiting_fails() -> None:
    verdict = judge_timing(_result(_exactly(7.0), waiting=0.2), _exactly(7.0), waiting=0.01)
    assert not verdict.passed
    assert "waiting" in verdict.text


def test_unreadable_artifact_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "none.pkl"
    with pytest.raises(ToolError, match=r"none\.pkl.*expected a measurement"):
        measure_timing(path)


def _write_chain(path: Path, layers: int) -> Path:
    """Compile `layers` products of SIZE x SIZE, each with a tanh so that none can be merged."""
    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for index in range(layers):
        weight = rng.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{index}"], [f"p{index}"]))
        nodes.append(helper.make_node("Tanh", [f"p{index}"], [f"t{index}"]))
        last = f"t{index}"
    shape = [SIZE // 4, SIZE]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = path.with_suffix(".onnx")
    onnx.save(model, str(source))
    assert main(["compile", "--plain", str(source), "-o", str(path), "-q"]) == 0
    return path


@contextmanager
def _busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.alone
@pytest.mark.opencl
def test_ten_percent_more_work_fails_and_the_same_passes_beside_a_busy_process(
    tmp_path: Path,
) -> None:
    model = _write_chain(tmp_path / "model.pkl", LAYERS)
    slower = _write_chain(tmp_path / "slower.pkl", LAYERS + LAYERS // 10)
    reference = measure_timing(model).ratio
    with _busy_process():
        same = measure_timing(model, reference=reference.mean)
        assert judge_timing(same, reference).passed
        attempts = 0
        while True:
            more = measure_timing(slower, reference=reference.mean)
            verdict, attempts = judge_timing(more, reference), attempts + 1
            if attempts == 3 or "too noisy" not in verdict.text:
                break
    assert not verdict.passed
    assert verdict.slower is not None
    assert verdict.slower > LIMIT
    direct = measure_timing(slower, baseline=model)
    assert not judge_timing(direct, None).passed
