"""Small systematic differences, drift, and what must not be found."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.selection import quick_cases
from tests.tools.compare.made_logs import drive
from tools.compare.compare import CompareOptions, compare_events
from tools.compare.findings import Comparison, FieldStatistics
from tools.compare.running import BatchMeans, Series, Slope, is_shift
from tools.compare.tolerances import Tolerance, Tolerances

# One tolerance for all, coarse enough for float32 to hold what is added.
ALLOWED = 1e-2
TABLE = Tolerances([(["*"], Tolerance(absolute=ALLOWED, reason="a round number"))])
FRAMES = 80
Floats = NDArray[np.float64]
SEEDS = 40


def moved(offset: Any, frames: int = FRAMES) -> Comparison:
    """Compare a drive with itself, every position moved by offset(frame)."""

    def change(service: str, frame_id: int, event: Any) -> None:
        if service == "modelV2":
            x = np.array(event.modelV2.position.x)
            event.modelV2.position.x = (x + offset(frame_id)).tolist()

    right = drive(range(frames), change, ["modelV2"])
    return compare_events(
        drive(range(frames), services=["modelV2"]), right, CompareOptions(tolerances=TABLE)
    )


def statistics(comparison: Comparison, field: str = "position.x") -> FieldStatistics:
    return next(one for one in comparison.statistics if one.field == field)


@pytest.mark.parametrize("seed", quick_cases(range(SEEDS), *range(8)))
def test_symmetric_noise_within_the_tolerance_is_never_found(seed: int) -> None:
    """Of any size, of any number of frames, alike in neighbouring frames or not."""
    rng = np.random.default_rng(seed)
    size = ALLOWED * rng.choice([1e-5, 0.1, 0.5, 0.99])
    frames = int(rng.integers(1, 100))
    kept = rng.choice([0.0, 0.5, 0.9])  # how much of it the next frame keeps
    noise = rng.uniform(-1, 1, (frames, 33))
    for frame in range(1, frames):
        noise[frame] = kept * noise[frame - 1] + (1 - kept) * noise[frame]
    comparison = moved(lambda frame_id: size * noise[frame_id], frames)
    assert comparison.passed, comparison.findings


@pytest.mark.parametrize("seed", range(4))
def test_a_constant_bias_of_half_the_tolerance_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    comparison = moved(lambda _: 0.5 * ALLOWED + 0.3 * ALLOWED * rng.uniform(-1, 1, 33))
    (finding,) = comparison.findings
    assert (finding.kind, finding.field, finding.frames) == ("shift", "position.x", FRAMES)
    assert "50% of it" in finding.limit or "49% of it" in finding.limit or "51%" in finding.limit


@pytest.mark.parametrize(
    ("offset", "frames", "kinds"),
    [
        # All on one side, but nothing beside what is allowed.
        (0.1 * ALLOWED, FRAMES, []),
        (1e-5, FRAMES, []),
        # Few frames say nothing of a bias.
        (0.5 * ALLOWED, 20, []),
        # What is beyond the tolerance is not also a shift.
        (1.5 * ALLOWED, FRAMES, ["value"]),
    ],
)
def test_a_bias_that_is_no_shift(offset: float, frames: int, kinds: list[str]) -> None:
    findings = moved(lambda _: offset, frames).findings
    assert [finding.kind for finding in findings] == kinds


def test_statistics_by_hand() -> None:
    """Differences of 1/256 in even and 3/256 in odd frames, all representable."""
    comparison = moved(lambda frame_id: np.full(33, (1 + 2 * (frame_id % 2)) / 256), frames=40)
    found = statistics(comparison)
    assert found.values == found.differing == 40 * 33
    assert found.mean_difference == pytest.approx(2 / 256, rel=1e-3)
    assert found.rms_difference == pytest.approx(math.sqrt(5) / 256, rel=1e-3)
    assert found.largest == pytest.approx(3 / 256, rel=1e-3)
    # Standard deviation of n/2 times -1 and +1: sqrt(n / (n - 1)); over sqrt(n): 1 / sqrt(39).
    assert found.standard_error == pytest.approx(1 / 256 / math.sqrt(39), rel=1e-3)
    # Each pair of frames adds 1/256 to the covariance: 20 / 256, over n (n^2 - 1) / 12.
    assert found.drift_per_frame == pytest.approx(20 / 256 / 5330, rel=1e-2)
    comparison = moved(lambda frame_id: np.full(33, 1e-4 * frame_id))
    assert statistics(comparison).drift_per_frame == pytest.approx(1e-4, rel=1e-2)
    assert statistics(comparison, "position.y").drift_per_frame == 0.0


def test_series_show_both_logs() -> None:
    comparison = moved(lambda frame_id: np.full(33, 1.0 if frame_id == 7 else 0.0))
    (series,) = comparison.series
    assert (series.field, series.frames.tolist()) == ("position.x", list(range(FRAMES)))
    assert np.flatnonzero(series.largest).tolist() == [7]
    assert series.right[7] - series.left[7] == pytest.approx(1.0, abs=1e-5)


def batched(values: Floats, place: int) -> BatchMeans:
    """Return what is known of values that came one by one, at a place of as many as are needed."""
    batches = BatchMeans(1)
    batches.grow(place + 1)
    for value in values:
        batches.add(np.array([place]), np.array([[value]]))
    return batches


@pytest.mark.parametrize("frames", [2, 63, 64, 65, 500, 5000])
def test_batches_keep_the_mean_and_a_fair_error(frames: int) -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, frames)
    mean, error, count = batched(values, 1).means()
    assert (count.tolist(), mean[1, 0]) == ([0, frames], pytest.approx(values.mean()))
    assert np.isnan(error[0, 0])
    if frames >= 63:
        assert error[1, 0] == pytest.approx(2.0 / math.sqrt(frames), rel=0.35)


def test_slopes_of_large_frame_numbers() -> None:
    slope = Slope()
    slope.grow(1)
    for frame in range(4_000_000_000, 4_000_000_100):
        slope.add(np.array([0]), frame, np.array([2.5 * (frame - 4_000_000_000)]))
    assert slope.slopes()[0] == pytest.approx(2.5)
    # Alike over 50 frames: the frames' own spread would promise seven times too much.
    values = np.repeat(np.random.default_rng(2).normal(size=100), 50)
    assert batched(values, 0).means()[1][0, 0] == pytest.approx(0.1, rel=0.4)


def test_long_series_are_thinned_and_keep_their_peaks() -> None:
    series = Series(most=16)
    series.grow(1)
    for frame in range(1000):
        peak = 9.0 if frame == 777 else 0.0
        series.add(np.array([0]), frame, np.array([[float(frame), float(frame), peak]]))
    frames, columns = series.of(0)
    assert 16 <= len(frames) < 32
    assert columns[:, 2].max() == 9.0
    assert (columns[:, 0] == frames).all()


@pytest.mark.parametrize(
    ("mean", "error", "frames", "expected"),
    [
        (0.5, 0.0, 30, True),
        (-0.5, 0.05, 30, True),
        (0.5, 0.0, 29, False),
        (0.201, 0.0, 1000, True),
        (0.199, 0.0, 1000, False),
        (0.5, 0.062, 1000, True),
        (0.5, 0.063, 1000, False),
        (0.5, math.nan, 1000, False),
    ],
)
def test_a_shift_needs_size_certainty_and_frames(
    mean: float, error: float, frames: int, expected: bool
) -> None:
    assert is_shift(mean, error, frames) is expected
