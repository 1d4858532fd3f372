"""The comparison finds what is planted: each wrong fact about a revision makes messages differ."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.reference_loop import warps
from tests.reference_loop.compare import differences
from tests.reference_loop.conftest import Example
from tests.reference_loop.drive import CAR, Drive
from tests.reference_loop.loop import Loop
from tests.reference_loop.product import play
from tests.reference_loop.revisions import TABLE, Facts

pytestmark = pytest.mark.opencl
Messages = Sequence[Any]
# Mutation -> part of a field in which it must show.
SPLIT: dict[str, tuple[Callable[[Facts], Facts], str]] = {
    "images 50 ms apart": (lambda f: replace(f, image_gap=1), "position.x"),
    "images by nearest neighbour": (lambda f: replace(f, image_mode="nearest"), "trans"),
    "features a frame late": (
        lambda f: replace(f, features=tuple(age - 1 for age in f.features)), "position.x",
    ),
    "features without this frame's": (
        lambda f: replace(f, features=tuple(age - 4 for age in f.features)), "position.x",
    ),
    "desires not pooled": (lambda f: replace(f, desire=(25, 1)), "position.x"),
    "half a frame more delay": (lambda f: replace(f, frame_delay=0.075), "desiredCurvature"),
    "no smoothing of curvature": (lambda f: replace(f, lat_tau=0.0), "desiredCurvature"),
    "other smoothing of acceleration": (
        lambda f: replace(f, long_tau=0.25), "desiredAcceleration",
    ),
    "delay of the car instead of the measured one": (
        lambda f: replace(f, delay="steerActuatorDelay", extra_delay=0.2), "desiredCurvature",
    ),
    "curvature not held at standstill": (
        lambda f: replace(f, hold_below=0.0), "desiredCurvature",
    ),
    "machine B": (lambda f: replace(f, machine="B"), "laneChangeState"),
    "runs after a drop": (lambda f: replace(f, drop="run"), "published by one"),
    "another flag": (lambda f: replace(f, big=True), "big"),
}  # fmt: skip
COMBO: dict[str, tuple[Callable[[Facts], Facts], str]] = {
    "machine A": (lambda f: replace(f, machine="A"), "laneChangeState"),
    "features of this frame": (
        lambda f: replace(f, features=tuple(age + 3 for age in f.features)), "position.x",
    ),
    "half a frame less delay": (lambda f: replace(f, frame_delay=0.05), "desiredCurvature"),
    "skips after a drop": (lambda f: replace(f, drop="skip"), "published by one"),
    "images bilinear": (lambda f: replace(f, image_mode="bilinear"), "trans"),
}  # fmt: skip


class Recorded:
    """The product's messages of a drive, and reference loops of the same models."""

    def __init__(self, name: str, example: Callable[[str], Example], drive: Drive) -> None:
        self.facts, self.made, self.drive = TABLE[name], example(name), drive
        self.found = play(self.made.program, CAR, drive)

    def differences(
        self, facts: Facts, views: dict[Any, Any], kind: type[Loop] = Loop
    ) -> list[str]:
        """What a reference with other facts makes differ; other pictures show in a few frames."""
        warped = facts.image_mode != self.facts.image_mode or kind is _SwapsViews or not views
        frames = 20 if warped else len(self.found)
        loop = kind(facts, self.made.models, CAR, views)
        expected = [loop.step(now) for now in self.drive.moments[:frames]]
        return differences(expected, self.found[:frames])


class _LosesEdges(Loop):
    """A desire that begins on a dropped frame is lost, as upstream's early 2026 loses it."""

    def _count_drops(self, frame_id: int) -> tuple[int, float]:
        self.gap, percent = super()._count_drops(frame_id)
        return self.gap, percent

    def _pulse(self) -> Any:
        pulse = super()._pulse()
        return pulse * (self.gap == 0)


class _SwapsViews(Loop):
    """Each camera's matrix is the other's."""

    def _push_images(self, now: Any) -> None:
        self.matrices = {"road": self.matrices["wide"], "wide": self.matrices["road"]}
        super()._push_images(now)
        self.matrices = {"road": self.matrices["wide"], "wide": self.matrices["road"]}


@pytest.fixture(scope="module")
def short(drive: Drive) -> Drive:
    """As many frames as fill every history once."""
    return Drive(drive.moments[:130], drive.stamps_ns[:130])


def test_planted_faults_of_a_split_model_show(
    example: Callable[[str], Example], short: Drive, views: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    recorded = Recorded("split-2025", example, short)
    assert recorded.differences(recorded.facts, views) == []
    for name, (mutate, field) in SPLIT.items():
        shown = recorded.differences(mutate(recorded.facts), views)
        assert any(field in line for line in shown), (name, shown)
    for kind in (_LosesEdges, _SwapsViews):
        assert recorded.differences(recorded.facts, views, kind), kind.__name__
    with monkeypatch.context() as patch:
        patch.setattr(warps, "half_of_bilinear", warps.half_of_nearest)
        assert recorded.differences(recorded.facts, {}), "chroma half a pixel off"


def test_planted_faults_of_a_supercombo_show(
    example: Callable[[str], Example], short: Drive, views: dict[Any, Any]
) -> None:
    recorded = Recorded("supercombo-2026", example, short)
    for name, (mutate, field) in COMBO.items():
        shown = recorded.differences(mutate(recorded.facts), views)
        assert any(field in line for line in shown), (name, shown)


def test_planted_layout_of_curvatures_shows(
    example: Callable[[str], Example], short: Drive, views: dict[Any, Any]
) -> None:
    recorded = Recorded("split-2025-03", example, short)
    late = replace(recorded.facts, curvatures=tuple(age - 3 for age in recorded.facts.curvatures))
    for facts in (late, replace(recorded.facts, curvature_scale=0.0)):
        assert recorded.differences(facts, views)
