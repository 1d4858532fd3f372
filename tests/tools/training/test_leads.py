"""Cars ahead in drives brake gently and hard, several times in a drive."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tools.training.leads import random_lead

LIMIT_MPS, DURATION_S = 25.0, 35.0


def test_cars_ahead_brake_gently_and_hard_several_times_in_a_drive() -> None:
    rng = np.random.default_rng(0)
    leads = [random_lead(LIMIT_MPS, rng, DURATION_S) for _ in range(400)]
    drawn = [lead for lead in leads if lead is not None]
    # Seven drives in ten have one; four standard deviations are 9 %.
    assert abs(len(drawn) / len(leads) - 0.7) < 0.09
    strengths, stops, times = [], 0, []
    for lead in drawn:
        assert 8.0 <= lead.gap_m <= 150.0
        assert lead.speeds[0][0] == 0.0
        assert lead.speeds[-1][0] >= DURATION_S
        falls = [
            (before - after) / (end - begin)
            for (begin, before), (end, after) in pairwise(lead.speeds)
            if after < before
        ]
        assert all(begin < end for (begin, _), (end, _) in pairwise(lead.speeds))
        assert min(speed for _, speed in lead.speeds) >= 0.0
        assert max(speed for _, speed in lead.speeds) <= LIMIT_MPS
        strengths += falls
        stops += any(speed == 0.0 for _, speed in lead.speeds)
        times.append(len(falls))
    assert 0.0 < min(strengths) < 1.0
    assert 4.5 < max(strengths) <= 6.0
    assert stops > 0.6 * len(drawn)
    assert np.mean(times) > 1.3


def test_drives_without_time_to_brake_have_a_car_that_drives() -> None:
    rng = np.random.default_rng(1)
    leads = [random_lead(LIMIT_MPS, rng, 0.0) for _ in range(20)]
    assert {len(lead.speeds) for lead in leads if lead is not None} == {1}
