"""What the daemon publishes for the dashcam clip, for an example of each revision.

All fields of all messages equal those of the reference, which shares no code with the packages.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scheduler.driving.revisions import load_revisions
from tests.reference_loop.compare import differences
from tests.reference_loop.conftest import Example
from tests.reference_loop.drive import CAR, Drive, make_drive
from tests.reference_loop.loop import Loop
from tests.reference_loop.product import play
from tests.reference_loop.revisions import TABLE
from tests.reference_loop.warps import Picture

pytestmark = pytest.mark.opencl
Make = Callable[[str], Example]
# With rawPredictions as well: one, two and three vectors a frame.
RAW = ("supercombo-2026", "split-2025", "on-off-2026")


def test_the_reference_knows_every_revision() -> None:
    revisions = load_revisions()
    driving = [n for n, r in revisions.items() if r.models[0].role != "monitoring"]
    assert sorted(driving) == sorted(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_messages_of_the_clip_equal_the_reference(
    name: str, example: Make, drive: Drive, views: dict[Any, Any]
) -> None:
    made = example(name)
    raw = name in RAW
    loop = Loop(TABLE[name], made.models, CAR, views, raw=raw)
    expected = [loop.step(now) for now in drive.moments]
    found = play(made.program, CAR, drive, raw=raw)
    assert all(bool(m["modelV2"]["rawPredictions"]) == raw for m in found if m)
    assert sum(message is not None for message in found) >= len(drive.moments) - 4
    assert differences(expected, found) == []
    check_states(made, loop)


def check_states(made: Example, loop: Loop) -> None:
    """What the device keeps after the last frame is, bit by bit, what the reference keeps."""
    facts = loop.facts
    if facts.image_gap:
        for name, images in loop.images.items():
            rows = images.recent[-1 - facts.image_gap :]
            assert np.array_equal(made.program.state(f"{name}_images"), np.stack(rows)), name
    if facts.desire is not None:
        kept = made.program.state("desire")
        assert np.array_equal(kept, loop.desires.at(range(1 - len(kept), 1)))
        # The last desire of machine A is older than the history when the clip ends.
        assert kept.any() or facts.machine == "A"
    for model in loop.models:
        for name, state in model.states.items():
            if state.dtype == np.uint8 or "desire" in name:
                assert np.array_equal(made.program.state(name), state), name


@pytest.mark.parametrize("name", ["split-2025", "supercombo-2026"])
def test_a_single_camera_feeds_both_views(
    name: str, example: Make, pictures: list[Picture], views: dict[Any, Any]
) -> None:
    drive = make_drive(pictures, 40, single=True)
    car = CAR.with_one_camera()
    made = example(name)
    loop = Loop(TABLE[name], made.models, car, views)
    expected = [loop.step(now) for now in drive.moments]
    assert differences(expected, play(made.program, car, drive, single=True)) == []


def test_histories_in_the_graph_are_those_of_the_device(example: Make, drive: Drive) -> None:
    # Both examples have the same weights: only who keeps the histories differs.
    outside, inside = example("supercombo-2026"), example("history-2026")
    found = [play(made.program, CAR, drive) for made in (outside, inside)]
    assert differences(found[0], found[1]) == []
