"""The timing gate: its decision by hand-made figures, and real processes beside a busy one."""

import math
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from modeld.own_packages import PACKAGES
from runtime.own_process import own_command
from tests.scheduler.onnx_import.onnx_models import parsed
from tests.tools.regress.fault import plant_delay
from tools.cli import main
from tools.errors import ToolError
from tools.regress.run import TimingOutcome
from tools.regress.tell.summary import explain_timing
from tools.regress.time import timing_sides
from tools.regress.time.timing import (
    LIMIT,
    FrameTiming,
    Interval,
    Kernels,
    LaunchTime,
    StoredTiming,
    TimingResult,
    compare_kernels,
    describe_kernels,
    frame_intervals,
    interval,
    judge_timing,
)
from tools.regress.time.timing_frames import Sampler, TimedFrame, read_frames, write_frames
from tools.regress.time.timing_sides import (
    Measurement,
    Side,
    SideProcess,
    measure_timing,
    summarize,
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


def measured(
    ratio: Interval, baseline: Interval | None = None, waiting: float = 0, **more: Any
) -> TimingResult:
    return TimingResult("some device", "processor", ratio, baseline, 10.0, waiting, **more)


def accepted(ratio: Interval, waiting: float | None = None, **more: Any) -> StoredTiming:
    return StoredTiming(ratio, "processor", 10.0, waiting, {}, **more)


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
        # So does what it waits.
        (measured(exactly(7.0), exactly(1.0), 0.3, baseline_waiting=0.26), None, True, None, ""),
        (measured(exactly(7.0), exactly(1.0), 0.3), None, False, None, "30% of the time"),
    ],
)
def test_measurements_are_judged(
    result: TimingResult, reference: Interval | None, passed: bool, slower: float | None, said: str
) -> None:
    stored = None
    if reference is not None:
        stored = accepted(reference, 0.01 if result.waiting else None)
    verdict = judge_timing(result, stored)
    assert verdict.passed is passed
    assert slower is None or verdict.slower == pytest.approx(slower)
    assert said in verdict.text


def test_without_reference_nothing_is_judged() -> None:
    verdict = judge_timing(measured(exactly(7.0)), None)
    assert verdict.passed
    assert verdict.slower is None
    assert "no reference" in verdict.text


def frames(*ratios: Interval) -> tuple[FrameTiming, ...]:
    return tuple(FrameTiming(f"drive frame {n}", one, one) for n, one in enumerate(ratios))


def test_one_slower_frame_fails_where_all_together_do_not() -> None:
    slow = frames(*[exactly(1.0)] * 7, exactly(1.2))
    verdict = judge_timing(measured(exactly(7.0), exactly(1.025), frames=slow), None)
    assert not verdict.passed
    assert verdict.worst == "drive frame 7"
    assert "1 of 8 frames slower than the limit of 5%" in verdict.text
    assert "drive frame 7: +20.0%" in verdict.text
    # A stored reference knows its frames by name; others say nothing.
    known = accepted(exactly(1.0), frames={"drive frame 7": exactly(1.0)})
    assert not judge_timing(measured(exactly(1.025), frames=slow), known).passed
    other = accepted(exactly(1.0), frames={"another frame 7": exactly(1.0)})
    assert judge_timing(measured(exactly(1.025), frames=slow), other).passed


def test_frames_are_surer_than_one_mean_before_they_fail() -> None:
    # 8 % with a spread that a single mean would fail by: one of eight exceeds it by chance.
    samples = [1.07, 1.08, 1.09, 1.08]
    assert interval(samples).low > 1.0 + LIMIT
    turned = np.array([[1.0, 1.01, 0.99, 1.0, 1.01, 0.99, 1.0, one] for one in samples])
    noise = np.random.default_rng(0).normal(0.0, 0.03, turned.shape)
    noise -= noise.mean(0)
    noisy = frame_intervals((turned + noise).tolist())
    assert noisy[-1].mean == pytest.approx(1.08, abs=1e-3)
    verdict = judge_timing(measured(exactly(7.0), exactly(1.01), frames=frames(*noisy)), None)
    assert verdict.passed
    assert verdict.is_open
    assert "too noisy to rule out 5% of drive frame 7" in verdict.text


def test_intervals_of_frames_by_hand() -> None:
    # Two frames in three processes, of which the second one is slower in both alike.
    found = frame_intervals([[1.0, 3.0], [2.0, 6.0], [1.0, 3.0]])
    whole = interval([2.0, 4.0, 2.0])
    assert [one.mean for one in found] == [pytest.approx(8 / 6), pytest.approx(8 / 2)]
    assert found[0].high - found[0].mean == pytest.approx(whole.high - whole.mean)
    # Shares of 0.5, 0.6 and 0.7 of a mean of 1: variance 0.01, two degrees of freedom.
    (one, _) = frame_intervals([[0.5, 1.5], [0.6, 1.4], [0.7, 1.3]])
    assert one.mean == pytest.approx(0.6)
    assert one.high - one.mean == pytest.approx(12.59 * 0.1 / math.sqrt(3))


def pair(model: list[float], baseline: list[float]) -> dict[str, dict[str, Any]]:
    """Return what a pair of processes says of two frames, in two rounds."""
    about = {"device": "some device", "clock": "processor", "frames": ["one", "two"]}

    def runs(times: list[float], waiting: float | None) -> list[dict[str, Any]]:
        return [{"ratio": ms / 2.0, "ms": ms, "waiting": waiting} for ms in times]

    sides = {"model": model, "baseline": baseline}
    # The machine is three times as slow in the second round.
    return {
        name: {**about, "runs": [runs(ms, 0.02), runs([3.0 * one for one in ms], None)]}
        for name, ms in sides.items()
    }


def test_pairs_of_processes_by_hand() -> None:
    found = summarize([pair([6.0, 3.0], [6.0, 2.0]), pair([9.0, 3.0], [6.0, 2.0])])
    assert found.to_baseline is not None
    assert found.to_baseline.samples == (1.25, 1.5)
    assert found.ratio.samples == (4.5, 6.0)
    assert found.model_ms == 10.5
    assert found.baseline_ms == 8.0
    assert found.waiting == 0.02
    one, two = found.frames
    assert (one.name, two.name) == ("one", "two")
    assert one.to_baseline is not None
    assert one.to_baseline.samples == (1.0, 1.5)
    assert two.to_baseline is not None
    assert two.to_baseline.samples == (1.5, 1.5)


def launches(*rows: tuple[str, str, float]) -> list[LaunchTime]:
    return [LaunchTime(kernel, tuple(nodes.split()), ms) for kernel, nodes, ms in rows]


def test_slower_kernels_are_named_with_their_nodes_and_both_times() -> None:
    before = launches(
        ("k1", "/a/Conv /a/Relu", 1.0), ("k2", "/b/Conv", 2.0), ("k2", "/c/Conv", 2.0)
    )
    # One is cut otherwise, without loss; one is slower.
    now = launches(
        *[("k3", "/a/Conv", 0.7), ("k4", "/a/Relu", 0.3)],
        *[("k5", "/b/Conv", 32.0), ("k2", "/c/Conv", 2.1)],
    )
    changes = compare_kernels(before, now)
    assert [change.kernels for change in changes] == [("k5",), ("k2",), ("k3", "k4")]
    assert describe_kernels(changes, 30.0) == [
        "slower kernel: k5, nodes /b/Conv: 2.000 ms before, 32.000 ms now"
    ]
    kernels = Kernels("drive frame 0", changes, ())
    verdict = judge_timing(measured(exactly(9.0), exactly(7.0), kernels=kernels), None)
    assert verdict.lines == ("slower kernel: k5, nodes /b/Conv: 2.000 ms before, 32.000 ms now",)
    # The same in --json and --explain.
    outcome = TimingOutcome("run", verdict, measured(exactly(9.0), kernels=kernels))
    (kernel,) = asdict(outcome)["verdict"]["slower_kernels"]
    assert kernel["kernels"] == ("k5",)
    assert (kernel["before_ms"], kernel["now_ms"]) == (2.0, 32.0)
    why = explain_timing(outcome)
    assert (why.cause, why.kernel, why.nodes, why.largest) == ("speed", "k5", ("/b/Conv",), 30.0)
    assert why.lines == verdict.lines


def test_kernels_that_share_a_node_are_told_apart_where_both_sides_have_them() -> None:
    # Both write a part of what is concatenated.
    before = launches(("k1", "/a/Gemm /Concat", 1.0), ("k2", "/b/Gemm /Concat", 0.5))
    now = launches(("k1", "/a/Gemm /Concat", 1.1), ("k2", "/b/Gemm /Concat", 8.0))
    (line,) = describe_kernels(compare_kernels(before, now), 7.6)
    assert line == "slower kernel: k2, nodes /b/Gemm, /Concat: 0.500 ms before, 8.000 ms now"


def test_a_kernel_that_lost_little_in_each_of_many_places_is_named() -> None:
    nodes = [f"/{n}/Conv" for n in range(20)]
    before = launches(*(("k1", node, 1.0) for node in nodes), ("k2", "/b/Conv", 5.0))
    now = launches(*(("k3", node, 1.5) for node in nodes), ("k2", "/b/Conv", 5.0))
    (line,) = describe_kernels(compare_kernels(before, now), 10.0)
    assert line.startswith(
        "slower kernel: k3, nodes /0/Conv, /1/Conv, /2/Conv, /3/Conv and 16 more:"
    )
    assert line.endswith("20.000 ms before, 30.000 ms now")


def test_where_no_kernel_lost_what_runs_them_did() -> None:
    same = launches(("k1", "/a/Conv", 5.0), ("k2", "/b/Conv", 3.0))
    (line,) = describe_kernels(compare_kernels(same, same), 0.8)
    assert line.startswith("kernels one by one: 8.000 ms before, 8.000 ms now, of 0.800 ms")
    assert "what runs them is slower" in line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        # As an installation of before protocols had numbers ends, and as it might answer.
        ("import sys; print('error: --protocol', file=sys.stderr); sys.exit(2)", "error: --prot"),
        ("print('{\"ratio\": 7.0}')", "found another one"),
        ("print('no JSON')", "found another one"),
        ("print('{\"protocol\": 3}')", "speaks protocol 2"),
        ("import sys; sys.exit('no device')", r"of x\.pkl: expected a measurement, found: no dev"),
    ],
)
def test_a_process_of_another_age_is_refused_in_one_line(code: str, said: str) -> None:
    with (
        closing(SideProcess([sys.executable, "-c", code], "x.pkl")) as side,
        pytest.raises(ToolError, match=said) as error,
    ):
        side.greet()
    assert "\n" not in str(error.value)


def test_a_process_answers_or_says_why_not() -> None:
    code = "import sys; print('{\"protocol\": 2}', flush=True); input(); sys.exit('lost')"
    with closing(SideProcess([sys.executable, "-c", code], "x.pkl")) as side:
        side.greet()
        with pytest.raises(ToolError, match="found: lost"):
            side.ask("time 1")


def test_another_checkout_runs_its_own_module(tmp_path: Path) -> None:
    command = own_command("tools.x", "--y", tree=tmp_path)
    starter = str(tmp_path / "modeld" / "own_packages.py")
    assert command == [sys.executable, "-P", starter, "tools.x", "--y"]
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert own_command("tools.x", tree=tmp_path)[0] == str(python)


class _Counting:
    """A program whose state is the number of runs so far."""

    entries = ("run", "prepare")

    def __init__(self) -> None:
        spec = SimpleNamespace(name="runs", kind="state", payload_bytes=8)
        self.manifest = SimpleNamespace(buffers=[spec])
        self.count = 0

    def state(self, name: str) -> Any:
        assert name == "runs"
        return np.array([self.count])

    def run(self, inputs: Any, entry: str | None = None) -> dict[str, Any]:
        del inputs, entry
        self.count += 1
        return {}


@pytest.mark.parametrize(
    ("runs", "kept"), [(3, [0, 1, 2]), (8, [0, 2, 4, 6]), (64, [0, 16, 32, 48])]
)
def test_frames_are_spread_over_a_drive_of_any_length(
    runs: int, kept: list[int], tmp_path: Path
) -> None:
    program: Any = _Counting()
    sampler = Sampler(program, "run", 4, "drive")
    buffer = np.zeros(2)
    for number in range(runs):
        buffer[:] = number
        sampler.run({"x": buffer})
        sampler.note(number)
        sampler.run({"x": buffer}, "prepare")
        sampler.note(-1)
    path = tmp_path / "frames.npz"
    write_frames(path, sampler.frames())
    found = read_frames(path)
    assert [frame.name for frame in found] == [f"drive frame {number}" for number in kept]
    # What each run was given, and the state before it.
    assert [frame.inputs["x"].tolist() for frame in found] == [[n, n] for n in kept]
    assert [frame.states["runs"].tolist() for frame in found] == [[2 * n] for n in kept]


@pytest.mark.slow
def test_unreadable_artifact_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"none\.pkl.*expected a measurement"):
        measure_timing(Measurement(Side(tmp_path / "none.pkl")))


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
    reference = accepted(measure_timing(Measurement(Side(model))).ratio)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            same = measure_timing(Measurement(Side(model)), reference)
            assert judge_timing(same, reference).passed
            tries = (
                judge_timing(measure_timing(Measurement(Side(slower)), reference), reference)
                for _ in range(3)
            )
            verdict = next((one for one in tries if "too noisy" not in one.text), None)
        finally:
            busy.kill()
    assert verdict is not None
    assert not verdict.passed
    assert verdict.slower is not None
    assert verdict.slower > LIMIT
    direct = measure_timing(Measurement(Side(slower), Side(model)))
    verdict = judge_timing(direct, None)
    assert not verdict.passed
    # All layers are one kernel, which is launched more often.
    (kernel,) = verdict.slower_kernels
    assert kernel.kernels == kernel.kernels_before
    assert kernel.lost_ms > 0.0


NODE = "-> p3"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_a_kernel_that_is_slow_on_one_frame_is_found_and_named(tmp_path: Path) -> None:
    model = _write_chain(tmp_path / "model.pkl", 12)
    values = np.zeros((SIZE // 4, SIZE), np.float32)
    given = [TimedFrame(f"drive frame {n}", {"x": values + (n == 5)}, {}) for n in range(8)]
    path = tmp_path / "frames.npz"
    write_frames(path, given)
    slow = tmp_path / "slow.pkl"
    # What the kernel reads is 0 on the other frames.
    name = plant_delay(model, slow, NODE, 20000, "READ[0] != 0.0f")
    found = measure_timing(Measurement(Side(slow), Side(model), frames=path))
    verdict = judge_timing(found, None)
    assert not verdict.passed
    assert verdict.worst == "drive frame 5"
    assert verdict.lines[0].startswith(f"slower kernel: {name}, nodes ")
    assert NODE in verdict.slower_kernels[0].nodes
    same = measure_timing(Measurement(Side(model), Side(model), frames=path))
    assert judge_timing(same, None).passed


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.opencl
def test_a_slower_runtime_of_another_checkout_is_seen(tmp_path: Path) -> None:
    model = _write_chain(tmp_path / "model.pkl", LAYERS)
    tree = tmp_path / "tree"
    tree.mkdir()
    root = Path(timing_sides.__file__).parents[3]
    for package in PACKAGES:
        if package == "runtime":
            shutil.copytree(root / package, tree / package)
        else:
            (tree / package).symlink_to(root / package)
    same = measure_timing(Measurement(Side(model), Side(model, tree)))
    assert judge_timing(same, None).passed
    program = tree / "runtime" / "run" / "program.py"
    text = program.read_text()
    said = "        self._execute(bound, bound.steps, inputs, self._queue, None)\n        stats ="
    assert said in text
    burn = (
        "        until = time.process_time_ns() + %d\n"
        "        while time.process_time_ns() < until:\n            pass\n"
    )
    program.write_text(text.replace(said, burn % (0.3 * same.model_ms * 1e6) + said))
    verdict = judge_timing(measure_timing(Measurement(Side(model, tree), Side(model))), None)
    assert not verdict.passed
    assert any("what runs them is slower" in line for line in verdict.lines)
