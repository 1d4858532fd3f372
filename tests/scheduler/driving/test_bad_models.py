"""Models that are no driving model, or not the one declared: one line with all that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations

import pytest

from scheduler.compile import compile_driving
from scheduler.driving.recognise import recognise_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, from_proto
from tests.scheduler.driving.edited_models import edited, pair, parts_of
from tests.scheduler.onnx_import.tiny_models import mixer


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


SPLIT = parts_of("split-2025")
VISION, POLICY = SPLIT["vision"], SPLIT["policy"]
ON_POLICY = parts_of("on-off-2026")["on_policy"]
SUPER = parts_of("supercombo-2026")["supercombo"]


def test_all_that_is_wrong_is_said_at_once() -> None:
    text = refused(
        edited(VISION, slices={"hidden_state": (1064, 1320), "meta": None}),
        edited(POLICY, slices={"plan": (0, 100), "desire_state": (90, 98)}),
    )
    for part in (
        "taken for split-2025 (",
        "policy.onnx: heads plan [0, 100) and desire_state [90, 98) overlap",
        "head meta: expected 48 or 53 or 55 values, is missing",
        "head plan: expected 990 or 4955 values, found 100",
        "head hidden_state: expected 512 values (a row of features_buffer), found 256",
        "docs/formats/driving-models.md",
        "declare another with --interface NAME",
    ):
        assert part in text


def test_a_policy_with_two_heads_only_is_refused_with_all_that_is_missing() -> None:
    text = refused(edited(VISION, slices=dict.fromkeys(VISION.slices)), edited(POLICY))
    for head in [*VISION.slices]:
        assert f"head {head}: expected " in text
    assert "head plan" not in text


def test_slices_beyond_the_output_are_named() -> None:
    text = refused(edited(VISION), edited(POLICY, slices={"plan": (11, 1001)}))
    assert "output_slices['plan'] = slice(11, 1001, None) does not fit the output of width" in text
    assert "head plan: expected 990 or 4955 values, is missing" in text


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"img": (1, 12, 64, 128)},
            'vision.onnx: input "img": expected (1, 12, 128, 256), found (1, 12, 64, 128)',
        ),
        ({"more": (1, 3)}, 'vision.onnx: input "more": is not known'),
    ],
    ids=str,
)
def test_other_inputs_of_vision_are_named(inputs: dict[str, tuple[int, ...]], message: str) -> None:
    models = [edited(VISION, inputs=inputs), edited(POLICY)]
    if "more" in inputs:
        assert message in refused(*models, declared="split-2025")
    else:
        assert message in refused(*models)


def test_inputs_that_no_revision_has_are_named() -> None:
    odd = edited(POLICY, inputs={"features_buffer": (1, 50, 512), "traffic_convention": None})
    text = refused(edited(VISION), odd)
    assert 'input "features_buffer": expected (1, 25, 512), found (1, 50, 512)' in text
    assert 'input "traffic_convention" (1, 2): is missing' in text


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("split-2025-08-11", 'input "lateral_control_params" (1, 2): is missing'),
        ("split-2025-08-11", "head lead: expected 102 values, found 144"),
        ("supercombo-2026", "interface supercombo-2026 (declared by --interface) has the models "),
        ("split-2052", "unknown interface 'split-2052' declared by --interface, did you mean spl"),
    ],
)
def test_a_declared_interface_that_contradicts_the_models(declared: str, message: str) -> None:
    assert message in refused(*pair(), declared=declared)


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
    (names,) = re.findall(
        "found vision, policy; declare one that has these: (.*)",
        refused(*pair(), declared="supercombo-2026"),
    )
    assert names.split(", ")[-2:] == ["split-2025", "split-2025-11"]
    assert all(name.startswith("split-") for name in names.split(", "))


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("split-2052", "unknown interface 'split-2052' declared by --interface, did you mean spl"),
        (
            "split-2025-07-16",
            "found a vision model; expected also the policy model with the inputs desire, traffic_",
        ),
        ("split-2025-07-16", "prev_desired_curv, features_buffer for split-2025-07-16"),
        ("on-off-2026", "expected also the off_policy model with the inputs "),
        ("supercombo-2026", "found a vision model; expected the supercombo of supercombo-2026"),
    ],
)
def test_half_of_a_declared_interface_is_told_what_that_needs(declared: str, message: str) -> None:
    assert message in refused(edited(VISION), declared=declared)


def named(name: str, inputs: dict[str, tuple[int, ...]]) -> OnnxModel:
    return from_proto(mixer(inputs, 8), name)


IMAGES = (1, 12, 128, 256)
OLD = {"input_imgs": IMAGES, "big_input_imgs": IMAGES, "traffic_convention": (1, 2)}
MONITOR = named("dm.onnx", {"input_img": (1, 1382400), "calib": (1, 3)})
RECURRENT = named("old.onnx", {**OLD, "desire": (1, 8), "initial_state": (1, 512)})
NAVIGATION = named(
    "nav.onnx",
    {**OLD, "desire": (1, 100, 8), "features_buffer": (1, 99, 512), "nav_features": (1, 256)},
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [edited(POLICY)], "found a policy; expected also a vision model with two image"),
        (lambda: [edited(VISION)], "found a vision model; expected also a policy with the inputs"),
        (lambda: [edited(POLICY)] * 2, "found two policies; expected also a vision model"),
        (lambda: [edited(VISION)] * 2, "found two vision models; expected also a policy"),
        (
            lambda: [edited(VISION), edited(POLICY), edited(VISION)],
            "found two vision models; expected one",
        ),
        (
            lambda: [edited(VISION), edited(POLICY), edited(ON_POLICY)],
            "found two policies, neither with heads such as lane_lines; expected an off-policy, ",
        ),
        (
            lambda: [edited(SUPER), edited(POLICY)],
            "found a supercombo, which has no second half; compile it alone: modeld compile",
        ),
        (
            lambda: [edited(VISION), MONITOR],
            "expected driving models, found a driver monitoring model, which has no second half",
        ),
        (lambda: [RECURRENT], "(until 2022), which no driving program runs; compile it with: mod"),
        (lambda: [NAVIGATION], "(2023), which no driving program runs; compile it with: modeld c"),
        (lambda: [edited(VISION), named("m", {"x": (1, 2)})], "of another kind with the inputs ["),
        (list, "a driving model is 1 to 3 ONNX files, found 0"),
        (lambda: [edited(POLICY)] * 4, "a driving model is 1 to 3 ONNX files, found 4"),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)
def test_files_that_are_no_complete_driving_model(
    make: Callable[[], list[OnnxModel]], message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        recognise_driving(make())
    assert message in str(caught.value)
    with pytest.raises(ModelError, match=re.escape(message)):
        compile_driving(make())
