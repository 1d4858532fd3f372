"""The sums behind the benchmarks: blocks and ratios, rooflines, levels of memory, the report."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.all_models import Row, kernel_lines, means, table
from runtime import choose_device
from runtime.run.profile import KernelTime
from tools.bench.artifact import explain_excess
from tools.timing.roofline import (
    EVERYTHING,
    CeilingProbe,
    Ceilings,
    MemoryLevel,
    cache_sizes,
    cpu_levels,
    gpu_levels,
    make_kernels,
    make_rows,
    quietest,
    share_below,
)
from tools.timing.run_times import compare, max_relative_error, measure_rounds

# 100 GFLOP/s, 1 KB at 100 GB/s, 1 MB at 50 GB/s, all else at 10 GB/s.
CEILINGS = Ceilings(
    100.0,
    (
        MemoryLevel("L2", 1_000, 100.0),
        MemoryLevel("L3", 1_000_000, 50.0),
        MemoryLevel("DRAM", EVERYTHING, 10.0),
    ),
    50.0,
)


def kernel_time(launch: int, us: float, flops: int, size: int) -> KernelTime:
    """A launch whose median `us` is twice its minimum."""
    return KernelTime(launch, f"k{launch}", (f"/n{launch}",), 1e-3 * us, 0.5e-3 * us, flops, size)


def test_rounds_alternate_and_rotate_after_a_warm_up() -> None:
    calls: list[str] = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    medians = measure_rounds(runs, rounds=3, frames=2, pause_s=0.0)
    assert "".join(calls) == "aabbccbbccaaccaabbaabbcc"
    assert {name: times.shape for name, times in medians.items()} == dict.fromkeys("abc", (3,))
    assert all((times > 0).all() for times in medians.values())


def test_ratio_is_the_median_of_ratios_within_rounds() -> None:
    # The machine becomes twice as slow in the third round; the ratio does not see it.
    found = compare(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0, 4.0]))
    assert (found.ratio, found.ratio_min, found.ratio_max) == (0.75, 0.5, 1.0)
    assert found.ratio_quiet == 0.5
    assert (found.ours_ms, found.theirs_ms) == (2.0, 2.0)
    assert found.blocks == ((1.0, 2.0), (2.0, 2.0), (3.0, 4.0))


def test_relative_error_is_the_worst_output_over_its_own_scale() -> None:
    theirs = {"a": np.array([1.0, -4.0]), "b": np.array([[100.0]]), "spare": np.zeros(1)}
    ours = {"a": np.array([1.0, -3.0]), "b": np.array([101.0])}
    assert max_relative_error(ours, theirs) == pytest.approx(0.25)
    assert max_relative_error(theirs, theirs) == 0.0
    ours["b"][0] = np.nan
    assert max_relative_error(ours, theirs) == float("inf")


def test_roofline_takes_the_bound_of_each_kernel() -> None:
    times = [
        kernel_time(0, 20.0, flops=1_000_000, size=800),  # 10 us of arithmetic
        kernel_time(1, 0.016, flops=1, size=800),  # 8 ns from L2
        kernel_time(2, 4.0, flops=1, size=100_000),  # 2 us from L3
        kernel_time(3, 8.0, flops=1, size=200_000),  # weights: with the others' too large for L3
    ]
    rows = {row.launch: row for row in make_rows(times, [0, 0, 0, 200_000], CEILINGS)}
    assert [rows[n].bound for n in range(4)] == ["compute", "L2", "L3", "L3"]
    assert [rows[n].of_roofline for n in range(4)] == pytest.approx([0.5, 0.5, 0.5, 0.5], rel=1e-3)
    assert rows[0].gflops == pytest.approx(50.0)
    assert rows[0].of_sgemm == pytest.approx(1.0)
    assert rows[2].gbytes_per_s == pytest.approx(25.0)


def test_weights_that_do_not_fit_together_come_from_the_level_below() -> None:
    times = [kernel_time(n, 1.0, flops=0, size=700) for n in range(2)]
    # Each alone would fit L2 (7 ns); the 1400 bytes of a frame do not (14 ns).
    alone, _ = make_rows(times, [700, 0], CEILINGS)
    together, _ = make_rows(times, [700, 700], CEILINGS)
    assert alone.of_roofline == pytest.approx(0.007)
    assert together.of_roofline == pytest.approx(0.014)
    assert (alone.bound, together.bound) == ("L2", "L3")


def test_only_slow_kernels_with_a_share_are_flagged_and_the_slowest_comes_first() -> None:
    times = [
        kernel_time(0, 1.0, flops=10, size=10),  # far from its roofline, but 1 % of the frame
        kernel_time(1, 59.0, flops=5_000_000, size=10),  # 85 %
        kernel_time(2, 40.0, flops=1_000_000, size=10),  # 25 %
    ]
    rows = make_rows(times, [0, 0, 0], CEILINGS)
    kernels = make_kernels(rows, CEILINGS)
    assert [(k.launches, k.flagged) for k in kernels] == [
        ((1,), False),
        ((2,), True),
        ((0,), False),
    ]
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    # Small launches below half count in the sum.
    assert share_below(rows) == pytest.approx(0.41)


def test_a_kernel_is_judged_by_the_sums_over_its_launches_with_the_median() -> None:
    # 1.9 % of the frame each, none of which would be flagged by itself; 20 % of their roofline.
    small = [kernel_time(n, 1.9, flops=38_000, size=10) for n in range(3)]
    small = [replace(time, name="small", min_ms=time.median_ms / 5) for time in small]
    large = kernel_time(3, 94.3, flops=9_430_000, size=10)
    rows = make_rows([*small, large], [0, 0, 0, 0], CEILINGS)
    big, few = make_kernels(rows, CEILINGS)
    assert (few.name, few.launches, few.flagged) == ("small", (0, 1, 2), True)
    assert few.share == pytest.approx(0.057)
    # The shortest times would be at their roofline.
    assert few.of_roofline == pytest.approx(0.2)
    assert few.gflops == pytest.approx(20.0)
    assert (few.ms, few.min_ms) == pytest.approx((0.0057, 0.00114))
    assert not big.flagged
    assert share_below(rows) == pytest.approx(0.057)


def test_a_rate_over_what_it_is_compared_with_is_explained() -> None:
    # 1.92e6 operations in 20 us are 96 per ns: under the peak of 100, 192 % of sgemm's 50.
    times = [kernel_time(0, 20.0, 1_920_000, 0), kernel_time(1, 20.0, 900_000, 0)]
    rows = make_rows(times, [0, 0], CEILINGS)
    assert rows[0].of_sgemm == pytest.approx(1.92)
    text = " ".join(explain_excess(rows))
    assert "over 100 %: 1 launch " in text
    assert "operations are counted as the model defines them" in text
    assert "Winograd" in text
    assert explain_excess(rows[1:]) == []


def test_quietest_profile_counts_with_the_shortest_times_of_all() -> None:
    busy = [kernel_time(0, 5.0, 1, 1), kernel_time(1, 1.0, 1, 1)]
    quiet = [kernel_time(0, 2.0, 1, 1), kernel_time(1, 3.0, 1, 1)]
    found = quietest([busy, quiet])
    assert [time.median_ms for time in found] == pytest.approx([0.002, 0.003])
    assert [time.min_ms for time in found] == pytest.approx([0.001, 0.0005])


def test_levels_overflow_the_cache_above_and_fit_their_own() -> None:
    l2, l3, cores = 1 << 20, 64 << 20, 2
    levels = {name: (capacity, size) for name, capacity, size in cpu_levels(l2, l3, cores, 1 << 40)}
    assert list(levels) == ["L2", "L3", "DRAM"]
    assert levels["L2"] == (cores * l2, 4 * l2)  # eight pieces of half an L2
    assert cores * l2 < levels["L3"][1] <= l3
    assert levels["DRAM"] == (EVERYTHING, 2 * l3)
    assert [name for name, _, _ in cpu_levels(l2, 0, cores, 1 << 40)] == ["L2", "DRAM"]
    assert cpu_levels(l2, l3, cores, 1 << 24)[-1][2] == 1 << 23
    assert [name for name, _, _ in gpu_levels(1 << 20, 1 << 40)] == ["L2", "DRAM"]
    assert [name for name, _, _ in gpu_levels(0, 1 << 40)] == ["DRAM"]


def test_cache_sizes_are_read_from_the_system(tmp_path: Path) -> None:
    for index, (level, size) in enumerate([(1, "48K"), (2, "2048K"), (3, "260M")]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "level").write_text(f"{level}\n")
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert cache_sizes(tmp_path) == (2 << 20, 260 << 20)
    assert cache_sizes(tmp_path / "nothing") == (1 << 20, 0)


@pytest.mark.slow
@pytest.mark.opencl
def test_probe_measures_every_level() -> None:
    probe = CeilingProbe(choose_device(), caches=(1 << 16, 1 << 22), target_ns=100_000)
    found = probe.measure()
    assert found.gflops > 0
    assert all(level.gbytes_per_s > 0 for level in found.levels)
    assert found.level_of(1).name == "L2"
    assert found.level_of(EVERYTHING).name == "DRAM"
    better = found.best_of(Ceilings(1e9, found.levels, 0.0))
    assert (better.gflops, better.levels) == (1e9, found.levels)
    assert better.sgemm_gflops == found.sgemm_gflops


def test_report_shows_ratios_their_means_and_what_has_none() -> None:
    peer: dict[str, Any] = {"theirs_ms": 2.0, "ratio": 0.5, "ratio_min": 0.4, "ratio_max": 0.6}
    peer |= {"ratio_quiet": 0.55, "max_rel_err": 1.2e-7}
    busy = {**peer, "ratio_max": 0.61, "max_rel_err": None}
    peers = {"openvino": peer, "onnxruntime": busy}
    found = {"ours_ms": 1.0, "launches": 3, **peer, "peers": peers}
    half = {**found, "ratio": 2.0, "ratio_max": 3.0, "peers": {**peers, "file:a/vision.onnx": peer}}
    rows = [
        Row("vision", found, kind="float32"),
        Row("vision_half", half, kind="halves"),
        Row("driving program", {**found, "ratio": 9.0}),
        Row("unet", None, "modeld: error: no", "float32"),
    ]
    lines = table(rows, list(peers))
    rest = "2.00 | 0.50 (0.40-0.60) | 1e-07 | 2.00 | 0.50 (0.40-0.61)~ | - |"
    assert lines[2] == f"| vision | 3 | 1.00 | **0.50** | - | {rest}"
    assert lines[3] == f"| vision_half | 3 | 1.00 | **2.00** | 0.50 | {rest}"
    assert lines[-1] == "- **unet** has no figures: modeld: error: no"
    assert means(rows)[2:] == [
        "| float32 | 1 of 2 | **0.50** | 0 |",
        "| halves | 1 of 1 | **2.00** | 1 |",
        "| all | 2 of 3 | **1.00** | 1 |",
        "",
        "Our models in fp16 take 0.50 of the time of those in float32.",
    ]


def test_report_shows_kernels() -> None:
    rows = make_rows([kernel_time(0, 40.0, 1_000_000, 10)], [0], CEILINGS)
    (kernel,) = (asdict(kernel) for kernel in make_kernels(rows, CEILINGS))
    found = {
        "ceilings": {"gflops": 100.0, "sgemm_gflops": 50.0, "gbytes_per_s": {"L2": 99.6}},
        "kernels": [kernel],
        "launches": [asdict(row) for row in rows],
        "kernels_ms": 0.04,
        "flagged": ["k0"],
        "below_half_share": share_below(rows),
    }
    lines = kernel_lines(found)
    assert lines[0].endswith("100 GB/s from L2, numpy sgemm 50 GFLOP/s.")
    assert lines[1] == (
        "1 kernel in 1 launch, medians, 0.04 ms on the device; over 2 % of the frame below half of "
        "their roofline (!): 1; all launches below half: 100.0%."
    )
    assert lines[-1] == "| 1 | /n0 | 0.040 | 100.0% | 25 | 0.0 | compute | 25% ! | 50% |"
