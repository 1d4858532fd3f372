"""The heads of driving models: which widths each may have, and which the daemon cannot do without.

docs/formats/driving-models.md describes the values; tests compare its table and the daemon's parser
with this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Final

from runtime.format.interfaces import META_WIDTHS, ActionRule, ModelPart

# Means, then logs of deviations; where there are two widths, the second one is a mixture of
# hypotheses: of 5 for plans (5 x (990 + 1)), of 2 for leads (2 x (48 + 3)).
HEADS: Final[Mapping[str, tuple[int, ...]]] = {
    "plan": (990, 4955),
    "lane_lines": (528,),
    "lane_lines_prob": (8,),
    "road_edges": (264,),
    "lead": (144, 102),
    "lead_prob": (3,),
    "desire_state": (8,),
    "desire_pred": (32,),
    "meta": META_WIDTHS,
    "pose": (12,),
    "wide_from_device_euler": (6,),
    "road_transform": (12,),
    "sim_pose": (12,),
    "desired_curvature": (2,),
    "planplus": (990,),
    "action": (4,),
}
REQUIRED: Final = tuple(HEADS)[:12]
HIDDEN_STATE: Final = "hidden_state"
PAD: Final = "pad"  # a second name for values that another head has, or for those that none has
SEES: Final = ("lane_lines", "lead", "road_edges")  # what tells an off-policy from an on-policy


def head_problems(models: Sequence[ModelPart], action: ActionRule) -> dict[str, str]:
    """Return what is wrong with the heads of models (in run order), head -> phrase.

    A head in two models counts in the later one. Heads that nobody reads may have any width; those
    of `action` are needed.
    """
    widths = {n: stop - start for m in models for n, (start, stop) in m.slices.items()}
    expected = {name: allowed for name, allowed in HEADS.items() if name in widths}
    needed = [*REQUIRED, *(r for r in (action.lateral, action.longitudinal) if r in HEADS)]
    if any("prev_desired_curv" in m.inputs for m in models):
        needed.append("desired_curvature")
    expected |= {name: HEADS[name] for name in needed}
    row = next((m.inputs["features_buffer"] for m in models if "features_buffer" in m.inputs), None)
    if row is not None:
        expected[HIDDEN_STATE] = (prod(row[0][2:]),)
    problems = {}
    for name, allowed in expected.items():
        why = " (a row of features_buffer)" if name == HIDDEN_STATE else ""
        if widths.get(name) not in allowed:
            problems[name] = width_text(name, allowed, widths.get(name), why)
    return problems


def width_text(name: str, allowed: Sequence[int], found: int | None, why: str = "") -> str:
    """Return what is wrong with the width of a head; None for one that is missing."""
    wanted = f"head {name}: expected {' or '.join(map(str, allowed))} values{why}"
    return f"{wanted}, is missing" if found is None else f"{wanted}, found {found}"


def overlaps(slices: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return which heads of one model overlap, a phrase each; `pad` may."""
    ordered = sorted((bounds, name) for name, bounds in slices.items() if name != PAD)
    return [
        f"heads {first} [{a}, {b}) and {second} [{c}, {d}) overlap"
        for ((a, b), first), ((c, d), second) in pairwise(ordered)
        if c < b
    ]
