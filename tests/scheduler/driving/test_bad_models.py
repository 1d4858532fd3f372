"""Models that are no driving model, or not that of an interface: one line says all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import pytest

from runtime.driving_interface import HistoryRule, Interface
from scheduler.compile import compile_driving
from scheduler.driving.program import driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, from_proto, load_model
from tests.scheduler.driving.edited_models import edited, pair, parts_of
from tests.scheduler.onnx_import.tiny_models import mixer
from tests.support.built import interface_models

SPLIT = parts_of("split-2025")
VISION, POLICY = SPLIT["vision"], SPLIT["policy"]
ON_POLICY = parts_of("on-off-2026")["on_policy"]
SUPER = parts_of("supercombo-2026")["supercombo"]


def refused(*models: OnnxModel, declared: str | None = None) -> str:
    """Return why models are refused, in any order."""
    texts = set()
    for order in permutations(models):
        with pytest.raises(ModelError) as caught:
            recognise_driving(order, declared)
        assert "\n" not in str(caught.value)
        texts.add(str(caught.value).split(": ", 1)[1] if len(models) > 1 else str(caught.value))
    assert len(models) > 2 or len(texts) == 1, texts
    return texts.pop()


# --- heads and inputs ---------------------------------------------------------------------------

MORE = {"more": (1, 3)}
NO_PLAN = {"plan": (11, 1001)}
ODD_INPUTS: Any = {"features_buffer": (1, 50, 512), "traffic_convention": None}


@pytest.mark.parametrize(
    ("vision", "policy", "declared", "messages"),
    [
        (
            {"slices": {"hidden_state": (1064, 1320), "meta": None}},
            {"slices": {"plan": (0, 100), "desire_state": (90, 98)}},
            None,
            [
                "taken for split-2025 (",
                "policy.onnx: heads plan [0, 100) and desire_state [90, 98) overlap",
                "head meta: expected 48 or 53 or 55 values, is missing",
                "head plan: expected 990 or 4955 values, found 100",
                "head hidden_state: expected 512 values (a row of features_buffer), found 256",
                "docs/formats/driving-models.md",
                "declare another with --interface NAME",
            ],
        ),
        (
            {"slices": dict.fromkeys(VISION.slices)},
            {},
            None,
            [f"head {head}: expected " for head in VISION.slices],
        ),
        (
            {},
            {"slices": NO_PLAN},
            None,
            [
                "output_slices['plan'] = slice(11, 1001, None) does not fit the output of width",
                "head plan: expected 990 or 4955 values, is missing",
            ],
        ),
        (
            {"inputs": {"img": (1, 12, 64, 128)}},
            {},
            None,
            ['vision.onnx: input "img": expected (1, 12, 128, 256), found (1, 12, 64, 128)'],
        ),
        ({"inputs": MORE}, {}, "split-2025", ['vision.onnx: input "more": is not known']),
        (
            {},
            {"inputs": ODD_INPUTS},
            None,
            [
                'input "features_buffer": expected (1, 25, 512), found (1, 50, 512)',
                'input "traffic_convention" (1, 2): is missing',
            ],
        ),
    ],
)
def test_all_that_is_wrong_is_said_at_once(
    vision: dict[str, Any], policy: dict[str, Any], declared: str | None, messages: list[str]
) -> None:
    text = refused(edited(VISION, **vision), edited(POLICY, **policy), declared=declared)
    assert [message for message in messages if message not in text] == []
    assert ("head plan" in text) == ("plan" in policy.get("slices", {}))


# --- what is declared ---------------------------------------------------------------------------

UNKNOWN = "unknown interface 'split-2052' declared by --interface, did you mean spl"


@pytest.mark.parametrize(
    ("whole", "declared", "message"),
    [
        (True, "split-2025-08-11", 'input "lateral_control_params" (1, 2): is missing'),
        (True, "split-2025-08-11", "head lead: expected 102 values, found 144"),
        (True, "supercombo-2026", "interface supercombo-2026 (declared by --interface) has the mo"),
        (True, "split-2052", UNKNOWN),
        (False, "split-2052", UNKNOWN),
        (False, "split-2025-07-16", "found a vision model; expected also the policy model with t"),
        (False, "split-2025-07-16", "policy model with the inputs desire, traffic_"),
        (False, "split-2025-07-16", "prev_desired_curv, features_buffer for split-2025-07-16"),
        (False, "on-off-2026", "expected also the off_policy model with the inputs "),
        (False, "supercombo-2026", "found a vision model; expected the supercombo of supercombo-"),
    ],
)
def test_a_declared_interface_that_contradicts_the_models(
    whole: bool, declared: str, message: str
) -> None:
    assert message in refused(*(pair() if whole else [edited(VISION)]), declared=declared)


def test_checkpoints_of_two_interfaces_must_be_declared() -> None:
    models = [
        edited(VISION, checkpoint="steam powered/1"),
        edited(POLICY, checkpoint="example-split-2025-11-policy/0"),
    ]
    assert "the checkpoints are of different interfaces: " in refused(*models)
    assert recognise_driving(models, "split-2025")[0].name == "split-2025"


def test_what_to_declare_is_said_unless_a_person_declared() -> None:
    advice = "declare another with --interface NAME"
    models = [edited(VISION, checkpoint="TR14/seed"), edited(POLICY)]
    text = refused(*models)
    assert "taken for split-2025-07-02 (known by the checkpoint 'TR14/seed'" in text
    assert advice in text
    assert advice not in refused(*models, declared="split-2025-07-02")


def test_the_revisions_that_have_the_roles_of_the_models_are_named() -> None:
    text = refused(*pair(), declared="supercombo-2026")
    (names,) = re.findall("found vision, policy; declare one that has these: (.*)", text)
    assert names.split(", ")[-2:] == ["split-2025", "split-2025-11"]
    assert all(name.startswith("split-") for name in names.split(", "))


# --- other files --------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("policy", "found a policy; expected also a vision model with two image"),
        ("vision", "found a vision model; expected also a policy with the inputs"),
        ("policy policy", "found two policies; expected also a vision model"),
        ("vision vision", "found two vision models; expected also a policy"),
        ("vision policy vision", "found two vision models; expected one"),
        (
            "vision policy on_policy",
            "found two policies, neither with heads such as lane_lines; expected an off-policy, ",
        ),
        (
            "supercombo policy",
            "found a supercombo, which has no second half; compile it alone: modeld compile",
        ),
        (
            "vision monitor",
            "expected driving models, found a driver monitoring model, which has no second half",
        ),
        ("recurrent", "(until 2022), which no driving program runs; compile it with: mod"),
        ("navigation", "(2023), which no driving program runs; compile it with: modeld c"),
        ("vision unknown", "of another kind with the inputs ["),
        ("", "a driving model is 1 to 3 ONNX files, found 0"),
        ("policy policy policy policy", "a driving model is 1 to 3 ONNX files, found 4"),
    ],
)
def test_files_that_are_no_complete_driving_model(files: str, message: str) -> None:
    models = [replace(OTHERS[name]) for name in files.split()]
    for tried in (recognise_driving, compile_driving):
        with pytest.raises(ModelError, match=re.escape(message)):
            tried(models)


# --- interfaces that do not fit -----------------------------------------------------------------


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


def with_slice(interface: Interface, head: str, start: int, stop: int) -> Interface:
    first, *others = interface.models
    first = replace(first, slices={**first.slices, head: (start, stop)})
    return replace(interface, models=(first, *others))


def wider(interface: Interface) -> Interface:
    first, *others = interface.models
    return replace(interface, models=(replace(first, width=first.width + 1), *others))


ODD = HistoryRule(7, 4, current=True, newest=True)
Edit = Callable[[Interface], Interface]
MISFITS: dict[str, list[tuple[Edit, str]]] = {
    "history-2026": [
        (
            lambda i: replace(i, drop_policy="skip"),
            r'drop policy "skip" needs queues .* declare drop_policy = "run"',
        ),
        (
            lambda i: replace(i, states=(*i.states, "state_more")),
            r'state "state_more": expected one model with this input, found none',
        ),
        (
            lambda i: replace(i, states=i.states[1:]),
            r"supercombo.onnx: no value for the inputs \['state_img_q'\]",
        ),
    ],
    "split-2025": [
        (
            lambda i: replace(i, features=ODD),
            r"features: expected an input features_buffer \(1, 7, ...\), found \(1, 25, 512\)",
        ),
        (
            lambda i: replace(i, desire=ODD),
            r'policy.onnx: input "desire_pulse": expected float32 \[1, 25, 8\], .*\[1, 7, 8\]',
        ),
        (
            lambda i: replace(i, host_inputs=()),
            r"policy.onnx: no value for the inputs \['traffic_convention'\] when the policy model",
        ),
        (
            lambda i: without_slice(i, "hidden_state"),
            "features: expected a model with the output slice hidden_state, found none",
        ),
        (
            lambda i: with_slice(i, "hidden_state", 0, 500),
            r"vision model: hidden_state: expected 512 values, a row .* found 500",
        ),
        (wider, r"vision.onnx: expected one output, .* of shape \(1, \d+\); found"),
    ],
    "supercombo-0.9.7": [
        (
            lambda i: without_slice(i, "desired_curvature"),
            "curvature: expected a model with the output slice desired_curvature, found none",
        ),
        (
            lambda i: with_slice(i, "desired_curvature", 0, 5),
            r"desired_curvature: expected 1 or 2 values, .* found 5",
        ),
    ],
}


@pytest.mark.parametrize(
    ("name", "edit", "message"), [(n, *row) for n, rows in MISFITS.items() for row in rows]
)
def test_an_interface_that_does_not_fit_is_one_line(name: str, edit: Edit, message: str) -> None:
    interface, models = known(name)
    with pytest.raises(ModelError, match=message) as failed:
        driving_entries(edit(interface), models, 1 << 20)
    assert "\n" not in str(failed.value)
