"""What the daemon publishes for the dashcam clip, for an example of each revision.

All fields of all messages equal those of the reference, which shares no code with the packages.
"""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.driving.revisions import load_revisions
from tests.reference_loop.compare import differences, states_that_differ
from tests.reference_loop.conftest import Example
from tests.reference_loop.drive import CAR, Drive, make_drive
from tests.reference_loop.loop import Loop
from tests.reference_loop.product import play
from tests.reference_loop.revisions import TABLE
from tests.reference_loop.warps import Picture
from tests.support.selection import quick_cases

pytestmark = pytest.mark.opencl
Make = Callable[[str], Example]
# With rawPredictions as well: one, two and three vectors a frame.
RAW = ("supercombo-2026", "split-2025", "on-off-2026")


def test_the_reference_knows_every_revision() -> None:
    revisions = load_revisions()
    driving = [n for n, r in revisions.items() if r.models[0].role != "monitoring"]
    assert sorted(driving) == sorted(TABLE)


def check_messages(name: str, made: Example, drive: Drive, views: dict[Any, Any]) -> None:
    """Play a drive through both and compare all messages, and the histories at its end."""
    raw = name in RAW
    loop = Loop(TABLE[name], made.models, CAR, views, raw=raw)
    expected = [loop.step(now) for now in drive.moments]
    found = play(made.program, CAR, drive, raw=raw)
    assert all(bool(m["modelV2"]["rawPredictions"]) == raw for m in found if m)
    assert sum(message is not None for message in found) >= len(drive.moments) - 4
    assert differences(expected, found) == []
    assert states_that_differ(loop, made.program.state) == []


def test_messages_of_the_first_frames_equal_the_reference(
    example: Make, pictures: list[Picture], views: dict[Any, Any]
) -> None:
    check_messages("supercombo-2026", example("supercombo-2026"), make_drive(pictures, 34), views)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_messages_of_the_clip_equal_the_reference(
    name: str, example: Make, drive: Drive, views: dict[Any, Any]
) -> None:
    made = example(name)
    check_messages(name, made, drive, views)
    # The last desire of machine A is older than the history when the clip ends.
    facts = TABLE[name]
    assert facts.desire is None or facts.machine == "A" or made.program.state("desire").any()


@pytest.mark.parametrize("name", quick_cases(["split-2025", "supercombo-2026"], "split-2025"))
def test_a_single_camera_feeds_both_views(
    name: str, example: Make, pictures: list[Picture], views: dict[Any, Any]
) -> None:
    drive = make_drive(pictures, 40, single=True)
    car = CAR.with_one_camera()
    made = example(name)
    loop = Loop(TABLE[name], made.models, car, views)
    expected = [loop.step(now) for now in drive.moments]
    assert differences(expected, play(made.program, car, drive, single=True)) == []


@pytest.mark.slow
def test_histories_in_the_graph_are_those_of_the_device(example: Make, drive: Drive) -> None:
    # Both examples have the same weights: only who keeps the histories differs.
    outside, inside = example("supercombo-2026"), example("history-2026")
    found = [play(made.program, CAR, drive) for made in (outside, inside)]
    assert differences(found[0], found[1]) == []
