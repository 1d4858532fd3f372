import pytest

from modeld.drop_filter import DropFilter


def run(ids: list[int]) -> list[tuple[int, float]]:
    drops = DropFilter()
    return [(status.dropped, status.percent) for status in map(drops.update, ids)]


def test_first_frame_of_any_id_drops_nothing() -> None:
    assert run([5000, 5001]) == [(0, 0.0), (0, 0.0)]


def test_drops_are_the_missing_ids() -> None:
    assert [dropped for dropped, _ in run([1, 2, 4, 5, 9])] == [0, 0, 1, 0, 3]


def test_repeated_or_restarted_ids_drop_nothing() -> None:
    assert [dropped for dropped, _ in run([7, 7, 3, 4])] == [0, 0, 0, 0]


def test_filter_stays_zero_for_ten_frames() -> None:
    assert run([2 * index for index in range(10)])[-1] == (1, 0.0)


def test_filter_moves_by_alpha_after_warm_up() -> None:
    # alpha = 0.05 / 10.05; one dropped frame: f = alpha, percent = 100 alpha / (1 + alpha).
    dropped, percent = run([*range(10), 11])[-1]
    alpha = 0.05 / 10.05
    assert dropped == 1
    assert percent == pytest.approx(100 * alpha / (1 + alpha))
    assert percent == pytest.approx(0.495050, abs=1e-6)


def test_filter_decays_without_drops() -> None:
    alpha = 0.05 / 10.05
    left = alpha * (1 - alpha)
    assert run([*range(10), 11, 12])[-1][1] == pytest.approx(100 * left / (1 + left))


def test_long_gap_counts_as_ten() -> None:
    filtered = 10 * 0.05 / 10.05
    dropped, percent = run([*range(10), 1000])[-1]
    assert dropped == 990
    assert percent == pytest.approx(100 * filtered / (1 + filtered))
