import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.errors import ModelInterfaceError
from modeld.parse_outputs import HEADS, OutputParser, check_heads, safe_exp, sigmoid, softmax
from runtime.driving_interface import Interface, ModelPart
from tests.modeld.fake_program import make_interface


def f32(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def make_layout(*, meta: int = 55, **widths: int) -> Interface:
    """All heads one after the other in one vector, at their plain width unless told otherwise."""
    wanted = (
        {head.name: head.widths[0] for head in HEADS if head.required} | {"meta": meta} | widths
    )
    slices, start = {}, 0
    for name, width in wanted.items():
        slices[name] = (start, start + width)
        start += width
    return make_interface(models=(ModelPart("model", "", start, slices, {}),), meta=meta)


def raw_for(layout: Interface, **values: NDArray[np.float32]) -> NDArray[np.float32]:
    (part,) = layout.models
    raw = np.zeros((1, part.width), np.float32)
    for name, value in values.items():
        raw[0, slice(*part.slices[name])] = value
    return raw


def test_safe_exp_clips_at_11_and_leaves_its_input() -> None:
    values, out = f32(0.0, math.log(2.0), 11.0, 50.0, -200.0), np.zeros(5, np.float32)
    safe_exp(values, out)
    np.testing.assert_allclose(out, [1.0, 2.0, 59874.14, 59874.14, 0.0], rtol=1e-5)
    assert values[3] == 50.0


def test_sigmoid_clips_small_probabilities() -> None:
    values, out = f32(0.0, math.log(3.0), 100.0, -11.0, -100.0), np.zeros(5, np.float32)
    sigmoid(values, out)
    # The lowest is 1 / (1 + e^11) = 1.67014e-05.
    np.testing.assert_allclose(out, [0.5, 0.75, 1.0, 1.67014e-05, 1.67014e-05], rtol=1e-5)
    assert values[2] == 100.0


def test_softmax_is_stable_for_large_values() -> None:
    values, out = f32(1000.0, 1000.0 + math.log(3.0)), np.zeros(2, np.float32)
    softmax(values, out)
    np.testing.assert_allclose(out, [0.25, 0.75], rtol=1e-4)


def test_gaussian_has_means_then_log_deviations() -> None:
    layout = make_layout()
    raw = raw_for(layout, pose=f32(1, 2, 3, 4, 5, 6, *[math.log(2.0)] * 5, 20.0))
    outputs = OutputParser(layout).parse({"model": raw})
    assert outputs.pose.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(outputs.pose_stds, [2, 2, 2, 2, 2, 59874.14], rtol=1e-5)


@pytest.mark.parametrize("interface", ["supercombo-0.9.7", "split-2025", "supercombo-2026"])
def test_deviations_are_clipped_for_models_of_every_year(interface: str) -> None:
    # Upstream's parser of 2025 has a plain exp: 100 overflows float32, which ends at e^88.7.
    # Ours says e^11 = 59874.14, for mixtures as well.
    layout = replace(make_layout(plan=4955), name=interface)
    rows = np.zeros((5, 991), np.float32)
    rows[:, 495:990] = 100.0
    pose = f32(*[0.0] * 6, 10.9, 11.0, 11.1, 88.0, 89.0, np.inf)
    outputs = OutputParser(layout).parse({"model": raw_for(layout, pose=pose, plan=rows.ravel())})
    # e^10.9 = 54176.36.
    np.testing.assert_allclose(outputs.pose_stds, [54176.36, *[59874.14] * 5], rtol=1e-5)
    np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 59874.14), rtol=1e-5)


def test_gaussian_shapes_are_row_major() -> None:
    layout = make_layout()
    means = np.arange(4 * 33 * 2, dtype=np.float32)
    raw = raw_for(layout, lane_lines=np.concatenate([means, np.zeros_like(means)]))
    outputs = OutputParser(layout).parse({"model": raw})
    assert outputs.lane_lines.shape == (4, 33, 2)
    # Line 2, point 5, height: (2*33 + 5)*2 + 1.
    assert outputs.lane_lines[2, 5, 1] == 143.0
    assert (outputs.lane_lines_stds == 1.0).all()


def test_categorical_rows_are_separate_distributions() -> None:
    layout = make_layout()
    logits = np.zeros((4, 8), np.float32)
    logits[1, 3] = math.log(9.0)
    raw = raw_for(layout, desire_pred=logits.reshape(-1))
    outputs = OutputParser(layout).parse({"model": raw})
    np.testing.assert_allclose(outputs.desire_pred[0], [0.125] * 8)
    # Nine against seven ones: 9 of 16 parts.
    assert outputs.desire_pred[1, 3] == pytest.approx(0.5625)
    assert outputs.desire_pred[1, 0] == pytest.approx(0.0625)


def test_parsing_never_writes_to_the_raw_vector() -> None:
    layout = make_layout(plan=4955, lead=102, action=4)
    raw = np.random.default_rng(1).normal(size=(1, layout.models[0].width)).astype(np.float32)
    before = raw.copy()
    raw.flags.writeable = False
    OutputParser(layout).parse({"model": raw})
    np.testing.assert_array_equal(raw, before)


def test_parsing_reuses_its_arrays() -> None:
    layout = make_layout()
    parser = OutputParser(layout)
    first = parser.parse({"model": raw_for(layout, lead_prob=f32(0, 0, 0))})
    kept = first.lead_prob
    parser.parse({"model": raw_for(layout, lead_prob=f32(100, 0, 0))})
    assert kept.tolist() == [1.0, 0.5, 0.5]


def test_plan_mixture_takes_the_likeliest_hypothesis_and_sorts() -> None:
    layout = make_layout(plan=4955)
    rows = np.zeros((5, 991), np.float32)
    rows[:, :495] = np.arange(5)[:, None]
    rows[:, 495:990] = np.log(np.arange(1, 6))[:, None]
    # Weights 1, 4, 2, 0.5, 0.5 over their sum 8.
    rows[:, 990] = np.log([1.0, 4.0, 2.0, 0.5, 0.5])
    parser = OutputParser(layout)
    outputs = parser.parse({"model": raw_for(layout, plan=rows.reshape(-1))})
    assert outputs.plan.shape == (33, 15)
    assert (outputs.plan == 1.0).all()
    np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 2.0), rtol=1e-6)
    np.testing.assert_allclose(
        outputs.mixtures["plan_weights"][:, 0], [0.5, 0.25, 0.125, 0.0625, 0.0625], rtol=1e-5
    )
    assert outputs.mixtures["plan_hypotheses"].shape == (5, 33, 15)
    assert outputs.mixtures["plan_hypotheses"][:, 0, 0].tolist() == [1, 2, 0, 3, 4]
    np.testing.assert_allclose(
        outputs.mixtures["plan_stds_hypotheses"][:, 0, 0], [2, 3, 1, 4, 5], rtol=1e-6
    )


def test_lead_mixture_selects_per_time_without_sorting() -> None:
    layout = make_layout(lead=102)
    rows = np.zeros((2, 51), np.float32)
    rows[0, :24], rows[1, :24] = 10.0, 20.0
    rows[1, 24:48] = math.log(3.0)
    rows[0, 48:], rows[1, 48:] = (1.0, 0.0, 1.0), (0.0, math.log(3.0), 0.0)
    outputs = OutputParser(layout).parse({"model": raw_for(layout, lead=rows.reshape(-1))})
    assert outputs.lead.shape == (3, 6, 4)
    assert outputs.lead[:, 0, 0].tolist() == [10.0, 20.0, 10.0]
    np.testing.assert_allclose(outputs.lead_stds[:, 5, 3], [1.0, 3.0, 1.0], rtol=1e-6)
    # Weights are over the hypotheses: 1/(1+3) and 3/(1+3) for the second selection.
    np.testing.assert_allclose(outputs.mixtures["lead_weights"][:, 1], [0.25, 0.75], rtol=1e-6)
    assert outputs.mixtures["lead_hypotheses"].shape == (2, 6, 4)


def test_action_is_read_where_the_model_has_it() -> None:
    plain, layout = make_layout(), make_layout(action=4)
    assert OutputParser(plain).outputs.action is None
    outputs = OutputParser(layout).parse({"model": raw_for(layout, action=f32(1, 2, 0, 0))})
    assert outputs.action is not None
    assert outputs.action.tolist() == [1.0, 2.0]


def test_planplus_is_added_to_the_means_of_the_plan_after_the_choice() -> None:
    layout = make_layout(plan=4955, planplus=990)
    rows = np.zeros((5, 991), np.float32)
    # The second hypothesis wins: 10 with deviation 2. planplus is 0.5 with deviation 3.
    rows[1, :495], rows[1, 495:990], rows[1, 990] = 10.0, math.log(2.0), 1.0
    plus = np.concatenate([np.full(495, 0.5), np.full(495, math.log(3.0))])
    raw = raw_for(layout, plan=rows.reshape(-1), planplus=plus.astype(np.float32))
    parser = OutputParser(layout)
    for _ in range(2):  # not added up from frame to frame
        outputs = parser.parse({"model": raw})
        assert (outputs.plan == 10.5).all()
        np.testing.assert_allclose(outputs.plan_stds, np.full((33, 15), 2.0), rtol=1e-6)
        assert outputs.planplus is not None
        assert (outputs.planplus == 0.5).all()
        assert outputs.mixtures["plan_hypotheses"][0, 0, 0] == 10.0


@pytest.mark.parametrize(("name", "size"), [("desired_curvature", 1), ("sim_pose", 6)])
def test_heads_of_old_generations(name: str, size: int) -> None:
    assert getattr(OutputParser(make_layout()).outputs, name) is None
    assert getattr(OutputParser(make_layout()).outputs, f"{name}_stds") is None
    layout = make_layout(**{name: 2 * size})
    value = np.concatenate([np.arange(size), np.full(size, math.log(2.0))]).astype(np.float32)
    outputs = OutputParser(layout).parse({"model": raw_for(layout, **{name: value})})
    assert getattr(outputs, name).tolist() == list(range(size))
    np.testing.assert_allclose(getattr(outputs, f"{name}_stds"), [2.0] * size, rtol=1e-6)


@pytest.mark.parametrize("width", [48, 53, 55])
def test_meta_has_the_width_of_its_layout(width: int) -> None:
    layout = make_layout(meta=width)
    logits = np.zeros(width, np.float32)
    logits[-1] = math.log(3.0)
    outputs = OutputParser(layout).parse({"model": raw_for(layout, meta=logits)})
    assert outputs.meta.shape == (width,)
    assert outputs.meta[-1] == pytest.approx(0.75)
    assert (outputs.meta[:-1] == 0.5).all()


def test_a_head_in_two_models_is_that_of_the_later_one() -> None:
    interface = make_interface()
    later = ModelPart("on_policy", "", 990, {"plan": (0, 990)}, {})
    interface = replace(interface, models=(*interface.models, later))
    raw = {part.role: np.zeros((1, part.width), np.float32) for part in interface.models}
    raw["policy"][0, :495], raw["on_policy"][0, :495] = 1.0, 2.0
    assert (OutputParser(interface).parse(raw).plan == 2.0).all()


def test_heads_are_found_in_whatever_model_has_them() -> None:
    # The lead in the policy: July 2025 had it there.
    vision, policy = make_interface().models
    slices = {n: b for n, b in vision.slices.items() if n != "lead"}
    parts = (
        replace(vision, slices=slices),
        replace(policy, width=1144, slices={**policy.slices, "lead": (1000, 1144)}),
    )
    raw = {"vision": np.zeros((1, 1576), np.float32), "policy": np.zeros((1, 1144), np.float32)}
    raw["policy"][0, 1000:1072] = 7.0
    assert (OutputParser(make_interface(models=parts)).parse(raw).lead == 7.0).all()


def test_all_missing_and_misfit_outputs_are_named() -> None:
    layout = make_layout(plan=991)
    (part,) = layout.models
    slices = {n: b for n, b in part.slices.items() if n not in ("meta", "pose")}
    with pytest.raises(
        ModelInterfaceError,
        match=r"'split-2025'.* plan: expected 990 or 4955 wide, got 991; pose: missing; "
        "meta: missing",
    ):
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
