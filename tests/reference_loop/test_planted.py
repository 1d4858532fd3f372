"""The comparison finds what is planted: each wrong fact about a revision makes messages differ."""

from collections.abc import Callable
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

pytestmark = [pytest.mark.opencl, pytest.mark.slow]


def later(ages: tuple[int, ...], frames: int) -> tuple[int, ...]:
    return tuple(age + frames for age in ages)


# Wrong facts, and a part of a field in which they must show.
Planted = tuple[dict[str, Any] | Callable[[Facts], dict[str, Any]], str]
SPLIT: dict[str, Planted] = {
    "images 50 ms apart": ({"image_gap": 1}, "position.x"),
    "images by nearest neighbour": ({"image_mode": "nearest"}, "trans"),
    "features a frame late": (lambda f: {"features": later(f.features, -1)}, "position.x"),
    "no features of this frame": (lambda f: {"features": later(f.features, -4)}, "position.x"),
    "desires not pooled": ({"desire": (25, 1)}, "position.x"),
    "half a frame more delay": ({"frame_delay": 0.075}, "desiredCurvature"),
    "no smoothing of curvature": ({"lat_tau": 0.0}, "desiredCurvature"),
    "other smoothing of acceleration": ({"long_tau": 0.25}, "desiredAcceleration"),
    "delay of the car instead of the measured one": (
        {"delay": "steerActuatorDelay", "extra_delay": 0.2},
        "desiredCurvature",
    ),
    "curvature not held at standstill": ({"hold_below": 0.0}, "desiredCurvature"),
    "machine B": ({"machine": "B"}, "laneChangeState"),
    "runs after a drop": ({"drop": "run"}, "published by one"),
    "another flag": ({"big": True}, "big"),
}
COMBO: dict[str, Planted] = {
    "machine A": ({"machine": "A"}, "laneChangeState"),
    "features of this frame": (lambda f: {"features": later(f.features, 3)}, "position.x"),
    "half a frame less delay": ({"frame_delay": 0.05}, "desiredCurvature"),
    "skips after a drop": ({"drop": "skip"}, "published by one"),
    "images bilinear": ({"image_mode": "bilinear"}, "trans"),
}
CURVATURES: dict[str, Planted] = {
    "three frames late": (lambda f: {"curvatures": later(f.curvatures, -3)}, ""),
    "not stored": ({"curvature_scale": 0.0}, ""),
}


class Recorded:
    """The product's messages of a drive, and reference loops of the same models."""

    def __init__(self, name: str, example: Callable[[str], Example], drive: Drive) -> None:
        # As many frames as fill every history once.
        self.facts, self.made, self.drive = TABLE[name], example(name), drive
        short = Drive(drive.moments[:130], drive.stamps_ns[:130])
        self.found = play(self.made.program, CAR, short)

    def differences(
        self,
        facts: Facts,
        views: dict[Any, Any],
        kind: type[Loop] = Loop,
        *,
        warped: bool = False,
    ) -> list[str]:
        """What a reference with other facts makes differ; pictures `warped` in another way show in
        a few frames.
        """
        warped |= facts.image_mode != self.facts.image_mode or kind is _SwapsViews
        frames = 20 if warped else len(self.found)
        loop = kind(facts, self.made.models, CAR, views)
        expected = [loop.step(now) for now in self.drive.moments[:frames]]
        return differences(expected, self.found[:frames])

    def check(self, planted: dict[str, Planted], views: dict[Any, Any]) -> None:
        """Each planted fact shows where it must."""
        for name, (wrong, field) in planted.items():
            facts = replace(self.facts, **(wrong(self.facts) if callable(wrong) else wrong))
            shown = self.differences(facts, views)
            assert any(field in line for line in shown), (name, shown)


class _LosesEdges(Loop):
    """A desire that begins on a dropped frame is lost, as upstream's early 2026 loses it."""

    def _count_drops(self, frame_id: int) -> tuple[int, float]:
        self.gap, percent = super()._count_drops(frame_id)
        return self.gap, percent

    def _pulse(self) -> Any:
        return super()._pulse() * (self.gap == 0)


class _SwapsViews(Loop):
    """Each camera's matrix is the other's."""

    def _push_images(self, now: Any) -> None:
        right = self.matrices
        self.matrices = {"road": right["wide"], "wide": right["road"]}
        super()._push_images(now)
        self.matrices = right


def test_planted_faults_of_a_split_model_show(
    example: Callable[[str], Example],
    drive: Drive,
    views: dict[Any, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Recorded("split-2025", example, drive)
    assert recorded.differences(recorded.facts, views) == []
    recorded.check(SPLIT, views)
    for kind in (_LosesEdges, _SwapsViews):
        assert recorded.differences(recorded.facts, views, kind), kind.__name__
    with monkeypatch.context() as patch:
        patch.setattr(warps, "half_of_bilinear", warps.half_of_nearest)
        assert recorded.differences(recorded.facts, {}, warped=True), "chroma half a pixel off"


@pytest.mark.parametrize(
    ("name", "planted"), [("supercombo-2026", COMBO), ("split-2025-03", CURVATURES)]
)
def test_planted_faults_of_other_revisions_show(
    name: str,
    planted: dict[str, Planted],
    example: Callable[[str], Example],
    drive: Drive,
    views: dict[Any, Any],
) -> None:
    Recorded(name, example, drive).check(planted, views)
