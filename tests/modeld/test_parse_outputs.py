"""Outputs of all generations become means, deviations and probabilities, by numbers by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.errors import ModelInterfaceError
from modeld.outputs.parse_outputs import (
    HEADS,
    DrivingOutputs,
    OutputParser,
    check_heads,
    safe_exp,
    sigmoid,
    softmax,
)
from runtime.format.interfaces import Interface, ModelPart
from tests.modeld.fake_program import make_interface

LN2, LN3 = math.log(2.0), math.log(3.0)


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def make_layout(*, meta: int = 55, **widths: int) -> Interface:
    """All heads one after the other in one vector, at their plain width unless told otherwise."""
    required = {head.name: head.widths[0] for head in HEADS if head.required}
    slices, start = {}, 0
    for name, width in (required | {"meta": meta} | widths).items():
        slices[name] = (start, start + width)
        start += width
    return make_interface(models=(ModelPart("model", "", start, slices, {}),), meta=meta)


def raw_for(layout: Interface, **values: NDArray[Any]) -> NDArray[np.float32]:
    (part,) = layout.models
    raw = np.zeros((1, part.width), np.float32)
    for name, value in values.items():
        raw[0, slice(*part.slices[name])] = value.reshape(-1)
    return raw


def parse(layout: Interface, **values: NDArray[Any]) -> DrivingOutputs:
    return OutputParser(layout).parse({"model": raw_for(layout, **values)})


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        # Clipped at 11.
        (safe_exp, f32(0, LN2, 11, 50, -200), [1.0, 2.0, 59874.14, 59874.14, 0.0]),
        # The lowest is 1 / (1 + e^11) = 1.67014e-05.
        (sigmoid, f32(0, LN3, 100, -11, -100), [0.5, 0.75, 1.0, 1.67014e-05, 1.67014e-05]),
        # Stable for large values.
        (softmax, f32(1000, 1000 + LN3), [0.25, 0.75]),
    ],
)
def test_functions_leave_their_input(
    function: Any, values: NDArray[np.float32], expected: list[float]
) -> None:
    before, out = values.copy(), np.zeros_like(values)
    function(values, out)
    np.testing.assert_allclose(out, expected, rtol=1e-4 if function is softmax else 1e-5)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize("interface", ["supercombo-0.9.7", "split-2025", "supercombo-2026"])
def test_deviations_are_clipped_for_models_of_every_year(interface: str) -> None:
    # Upstream's parser of 2025 has a plain exp: 100 overflows float32, which ends at e^88.7.
    # Ours says e^11 = 59874.14, for mixtures as well; e^10.9 = 54176.36.
    layout = replace(make_layout(plan=4955), name=interface)
    rows = np.zeros((5, 991), np.float32)
    rows[:, 495:990] = 100.0
    pose = f32(*range(1, 7), LN2, 10.9, 11.0, 88.0, 89.0, np.inf)
    outputs = parse(layout, pose=pose, plan=rows)
    assert outputs.pose.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(outputs.pose_stds, [2, 54176.36, *[59874.14] * 4], rtol=1e-5)
    np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 59874.14), rtol=1e-5)


def test_gaussian_shapes_are_row_major() -> None:
    means = np.arange(4 * 33 * 2, dtype=np.float32)
    outputs = parse(make_layout(), lane_lines=np.concatenate([means, np.zeros_like(means)]))
    np.testing.assert_array_equal(outputs.lane_lines, means.reshape(4, 33, 2))
    assert (outputs.lane_lines_stds == 1.0).all()


def test_categorical_rows_are_separate_distributions() -> None:
    logits = np.zeros((4, 8), np.float32)
    logits[1, 3] = math.log(9.0)
    outputs = parse(make_layout(), desire_pred=logits)
    # Nine against seven ones: 9 of 16 parts.
    expected = np.full((4, 8), 0.125)
    expected[1] = 0.0625
    expected[1, 3] = 0.5625
    np.testing.assert_allclose(outputs.desire_pred, expected, rtol=1e-5)


def test_parsing_never_writes_to_the_raw_vector_and_reuses_its_arrays() -> None:
    layout = make_layout(plan=4955, lead=102, action=4)
    raw = np.random.default_rng(1).normal(size=(1, layout.models[0].width)).astype(np.float32)
    before = raw.copy()
    raw.flags.writeable = False
    parser = OutputParser(layout)
    kept = parser.parse({"model": raw}).lead_prob
    np.testing.assert_array_equal(raw, before)
    parser.parse({"model": raw_for(layout, lead_prob=f32(100, 0, 0))})
    assert kept.tolist() == [1.0, 0.5, 0.5]


def test_plan_mixture_takes_the_likeliest_hypothesis_and_sorts() -> None:
    rows = np.zeros((5, 991), np.float32)
    rows[:, :495] = np.arange(5)[:, None]
    rows[:, 495:990] = np.log(np.arange(1, 6))[:, None]
    # Weights 1, 4, 2, 0.5, 0.5 over their sum 8.
    rows[:, 990] = np.log([1.0, 4.0, 2.0, 0.5, 0.5])
    outputs = parse(make_layout(plan=4955), plan=rows)
    np.testing.assert_array_equal(outputs.plan, np.ones((33, 15)))
    np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 2.0), rtol=1e-6)
    mixtures = outputs.mixtures
    weights = [0.5, 0.25, 0.125, 0.0625, 0.0625]
    np.testing.assert_allclose(mixtures["plan_weights"][:, 0], weights, rtol=1e-5)
    assert mixtures["plan_hypotheses"].shape == (5, 33, 15)
    assert mixtures["plan_hypotheses"][:, 0, 0].tolist() == [1, 2, 0, 3, 4]
    stds = mixtures["plan_stds_hypotheses"][:, 0, 0]
    np.testing.assert_allclose(stds, [2, 3, 1, 4, 5], rtol=1e-6)


def test_lead_mixture_selects_per_time_without_sorting() -> None:
    rows = np.zeros((2, 51), np.float32)
    rows[0, :24], rows[1, :24] = 10.0, 20.0
    rows[1, 24:48] = LN3
    rows[0, 48:], rows[1, 48:] = (1.0, 0.0, 1.0), (0.0, LN3, 0.0)
    outputs = parse(make_layout(lead=102), lead=rows)
    assert outputs.lead.shape == (3, 6, 4)
    assert outputs.lead[:, 0, 0].tolist() == [10.0, 20.0, 10.0]
    np.testing.assert_allclose(outputs.lead_stds[:, 5, 3], [1.0, 3.0, 1.0], rtol=1e-6)
    # Weights are over the hypotheses: 1/(1+3) and 3/(1+3) for the second selection.
    np.testing.assert_allclose(outputs.mixtures["lead_weights"][:, 1], [0.25, 0.75], rtol=1e-6)
    assert outputs.mixtures["lead_hypotheses"].shape == (2, 6, 4)


def test_planplus_is_added_to_the_means_of_the_plan_after_the_choice() -> None:
    layout = make_layout(plan=4955, planplus=990)
    rows = np.zeros((5, 991), np.float32)
    # The second hypothesis wins: 10 with deviation 2. planplus is 0.5 with deviation 3.
    rows[1, :495], rows[1, 495:990], rows[1, 990] = 10.0, LN2, 1.0
    raw = raw_for(layout, plan=rows, planplus=np.repeat(f32(0.5, LN3), 495))
    parser = OutputParser(layout)
    for _ in range(2):  # not added up from frame to frame
        outputs = parser.parse({"model": raw})
        assert (outputs.plan == 10.5).all()
        np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 2.0), rtol=1e-6)
        assert outputs.planplus is not None
        assert (outputs.planplus == 0.5).all()
        assert outputs.mixtures["plan_hypotheses"][0, 0, 0] == 10.0


@pytest.mark.parametrize(
    ("name", "size"), [("desired_curvature", 1), ("sim_pose", 6), ("action", 2)]
)
def test_heads_that_only_some_generations_have(name: str, size: int) -> None:
    without = OutputParser(make_layout()).outputs
    assert getattr(without, name) is None
    value = np.concatenate([np.arange(size), np.full(size, LN2)])
    outputs = parse(make_layout(**{name: 2 * size}), **{name: value})
    assert getattr(outputs, name).tolist() == list(range(size))
    if name != "action":
        assert getattr(without, f"{name}_stds") is None
        np.testing.assert_allclose(getattr(outputs, f"{name}_stds"), [2.0] * size, rtol=1e-6)


@pytest.mark.parametrize("width", [48, 53, 55])
def test_meta_has_the_width_of_its_layout(width: int) -> None:
    logits = np.zeros(width, np.float32)
    logits[-1] = LN3
    found = parse(make_layout(meta=width), meta=logits).meta
    np.testing.assert_allclose(found, [0.5] * (width - 1) + [0.75], rtol=1e-6)


def test_heads_are_found_in_whatever_model_has_them() -> None:
    # The lead in the policy: July 2025 had it there. A head in two models is that of the later one.
    vision, policy = make_interface().models
    slices = {n: b for n, b in vision.slices.items() if n != "lead"}
    parts = (
        replace(vision, slices=slices),
        replace(policy, width=1144, slices={**policy.slices, "lead": (1000, 1144)}),
        ModelPart("on_policy", "", 990, {"plan": (0, 990)}, {}),
    )
    raw = {part.role: np.zeros((1, part.width), np.float32) for part in parts}
    raw["policy"][0, 1000:1072] = 7.0
    raw["policy"][0, :495], raw["on_policy"][0, :495] = 1.0, 2.0
    outputs = OutputParser(make_interface(models=parts)).parse(raw)
    assert (outputs.lead == 7.0).all()
    assert (outputs.plan == 2.0).all()


def test_all_missing_and_misfit_outputs_are_named() -> None:
    (part,) = make_layout(plan=991).models
    slices = {n: b for n, b in part.slices.items() if n not in ("meta", "pose")}
    wanted = (
        r"'split-2025'.* plan: expected 990 or 4955 wide, got 991; pose: missing; meta: missing"
    )
    with pytest.raises(ModelInterfaceError, match=wanted):
        OutputParser(make_interface(models=(replace(part, slices=slices),)))


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        ({"lateral": "desired_curvature"}, "desired_curvature"),
        ({"lateral": "action"}, "action"),
        ({"longitudinal": "action"}, "action"),
    ],
)
def test_the_head_of_the_action_rule_is_required(rule: dict[str, Any], missing: str) -> None:
    layout = make_layout()
    check_heads(layout)
    layout = replace(layout, action=replace(layout.action, **rule))
    with pytest.raises(ModelInterfaceError, match=f"heads: {missing}: missing; compile"):
        check_heads(layout)
