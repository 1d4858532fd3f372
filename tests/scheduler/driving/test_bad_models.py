"""Models that are no driving model, or not that of an interface: one line says all of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import pytest

from runtime.format.interfaces import HistoryRule, Interface
from scheduler.compile import compile_driving
from scheduler.driving.program import driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, from_proto, load_model
from tests.scheduler.driving.conftest import Refusals, refusal
from tests.scheduler.driving.edited_models import edited, pair, parts_of
from tests.scheduler.onnx_import.tiny_models import mixer
from tests.support.built import interface_models

SPLIT = parts_of("split-2025")
VISION, POLICY = SPLIT["vision"], SPLIT["policy"]
ON_POLICY = parts_of("on-off-2026")["on_policy"]
SUPER = parts_of("supercombo-2026")["supercombo"]


def refused(*models: OnnxModel, declared: str | None = None) -> str:
    lines = {refusal(partial(recognise_driving, o, declared)) for o in permutations(models)}
    texts = {line.split(": ", 1)[1] if len(models) > 1 else line for line in lines}
    assert len(models) > 2 or len(texts) == 1, texts
    return texts.pop()


# What of the vision and of the policy model is changed, and what is declared.
EDITS: dict[str, tuple[dict[str, Any], dict[str, Any], str | None]] = {
    "slices that overlap, are missing or too short": (
        {"slices": {"hidden_state": (1064, 1320), "meta": None}},
        {"slices": {"plan": (0, 100), "desire_state": (90, 98)}},
        None,
    ),
    "no heads of vision": ({"slices": dict.fromkeys(VISION.slices)}, {}, None),
    "a slice beyond the output": ({}, {"slices": {"plan": (11, 1001)}}, None),
    "small images": ({"inputs": {"img": (1, 12, 64, 128)}}, {}, None),
    "one input more": ({"inputs": {"more": (1, 3)}}, {}, "split-2025"),
    "inputs that no revision has": (
        {},
        {"inputs": {"features_buffer": (1, 50, 512), "traffic_convention": None}},
        None,
    ),
    "checkpoints of two interfaces": (
        {"checkpoint": "steam powered/1"},
        {"checkpoint": "example-split-2025-11-policy/0"},
        None,
    ),
    "another checkpoint": ({"checkpoint": "TR14/seed"}, {}, None),
    "another checkpoint, declared": ({"checkpoint": "TR14/seed"}, {}, "split-2025-07-02"),
}


def test_all_that_is_wrong_is_said_at_once(refusals: Refusals) -> None:
    calls = {}
    for name, (vision, policy, declared) in EDITS.items():
        models = [edited(VISION, **vision), edited(POLICY, **policy)]
        assert refused(*models, declared=declared)
        calls[name] = partial(recognise_driving, models, declared)
    refusals("edits", calls)


def test_a_declared_interface_that_contradicts_the_models(refusals: Refusals) -> None:
    calls = {}
    for models, names in (
        (pair(), "split-2025-08-11 supercombo-2026 split-2052"),
        ([edited(VISION)], "split-2052 split-2025-07-16 on-off-2026 supercombo-2026"),
    ):
        for name in names.split():
            assert refused(*models, declared=name)
            calls[f"{len(models)} as {name}"] = partial(recognise_driving, models, name)
    refusals("declared", calls)


def test_an_interface_may_be_declared_against_the_checkpoints() -> None:
    changes = EDITS["checkpoints of two interfaces"][:2]
    models = [
        edited(part, **change) for part, change in zip((VISION, POLICY), changes, strict=True)
    ]
    assert recognise_driving(models, "split-2025")[0].name == "split-2025"


def named(name: str, inputs: Mapping[str, tuple[int, ...]]) -> OnnxModel:
    return from_proto(mixer(inputs, 8), name)


IMAGES = (1, 12, 128, 256)
OLD = {"input_imgs": IMAGES, "big_input_imgs": IMAGES, "traffic_convention": (1, 2)}
BUFFERS = {"desire": (1, 100, 8), "features_buffer": (1, 99, 512), "nav_features": (1, 256)}
OTHERS = {
    "monitor": named("dm.onnx", {"input_img": (1, 1382400), "calib": (1, 3)}),
    "recurrent": named("old.onnx", {**OLD, "desire": (1, 8), "initial_state": (1, 512)}),
    "navigation": named("nav.onnx", {**OLD, **BUFFERS}),
    "unknown": named("m", {"x": (1, 2)}),
    "vision": edited(VISION),
    "policy": edited(POLICY),
    "on_policy": edited(ON_POLICY),
    "supercombo": edited(SUPER),
}
INCOMPLETE = (
    *("policy", "vision", "policy policy", "vision vision", "vision policy vision"),
    *("vision policy on_policy", "supercombo policy", "vision monitor", "recurrent", "navigation"),
    *("vision unknown", "", "policy policy policy policy"),
)


def test_files_that_are_no_complete_driving_model(refusals: Refusals) -> None:
    calls = {}
    for files in INCOMPLETE:
        models = [replace(OTHERS[name]) for name in files.split()]
        calls[files or "nothing"] = partial(recognise_driving, models)
        with pytest.raises(ModelError, match=re.escape(refusal(calls[files or "nothing"]))):
            compile_driving(models)
    refusals("files", calls)


@cache
def known(name: str) -> tuple[Interface, tuple[OnnxModel, ...]]:
    """Return the interface of an example, and its models."""
    models = [load_model(path) for path in interface_models(name)]
    return recognise_driving(models, name)[:2]


def without_slice(interface: Interface, head: str) -> Interface:
    parts = tuple(
        replace(part, slices={n: b for n, b in part.slices.items() if n != head})
        for part in interface.models
    )
    return replace(interface, models=parts)


def with_slice(interface: Interface, head: str, stop: int) -> Interface:
    first, *others = interface.models
    first = replace(first, slices={**first.slices, head: (0, stop)})
    return replace(interface, models=(first, *others))


def wider(interface: Interface) -> Interface:
    first, *others = interface.models
    return replace(interface, models=(replace(first, width=first.width + 1), *others))


ODD = HistoryRule(7, 4, current=True, newest=True)
HISTORY, SUPERCOMBO = "history-2026", "supercombo-0.9.7"
MISFITS: dict[str, tuple[str, Callable[[Interface], Interface]]] = {
    "no queues": (HISTORY, lambda i: replace(i, drop_policy="skip")),
    "one state more": (HISTORY, lambda i: replace(i, states=(*i.states, "state_more"))),
    "one state less": (HISTORY, lambda i: replace(i, states=i.states[1:])),
    "seven features": ("split-2025", lambda i: replace(i, features=ODD)),
    "seven desires": ("split-2025", lambda i: replace(i, desire=ODD)),
    "nothing of the host": ("split-2025", lambda i: replace(i, host_inputs=())),
    "no features": ("split-2025", lambda i: without_slice(i, "hidden_state")),
    "short features": ("split-2025", lambda i: with_slice(i, "hidden_state", 500)),
    "a wider output": ("split-2025", wider),
    "no curvature": (SUPERCOMBO, lambda i: without_slice(i, "desired_curvature")),
    "five curvatures": (SUPERCOMBO, lambda i: with_slice(i, "desired_curvature", 5)),
}


def test_an_interface_that_does_not_fit_is_one_line(refusals: Refusals) -> None:
    calls = {}
    for what, (name, edit) in MISFITS.items():
        interface, models = known(name)
        calls[what] = partial(driving_entries, edit(interface), models, 1 << 20)
    refusals("misfits", calls)
