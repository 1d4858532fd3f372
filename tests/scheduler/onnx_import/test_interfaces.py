"""Which driving model it is, told by names and shapes; and what is said of two wrong ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from onnx import TensorProto
from scheduler.onnx_import.interfaces import MEANINGS, check_driving, recognise

from scheduler.compile import compile_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, from_proto
from tests.scheduler.onnx_import.tiny_models import mixer, model_of, value

IMAGES = (1, 12, 128, 256)
OLD_EYES = {"input_imgs": IMAGES, "big_input_imgs": IMAGES}
EYES = {"img": IMAGES, "big_img": IMAGES}
TRAFFIC = {"traffic_convention": (1, 2)}
MEMORY = {"desire": (1, 100, 8), "features_buffer": (1, 99, 512)}
CURVES = {"lateral_control_params": (1, 2), "prev_desired_curv": (1, 100, 1)}
CONTEXT = {"desire_pulse": (1, 25, 8), "features_buffer": (1, 25, 512)}
POLICY = {**CONTEXT, **TRAFFIC}
TIMES = {"action_t": (1, 2)}
Inputs = Mapping[str, Sequence[int]]


def named(name: str, inputs: Inputs, width: int = 8, code: int = TensorProto.FLOAT) -> OnnxModel:
    return from_proto(mixer(inputs, width, codes=dict.fromkeys(inputs, code)), name)


KNOWN: list[tuple[str, str, Inputs]] = [
    (
        "monolithic supercombo with a recurrent state (until 2022)",
        "monolithic",
        {"input_imgs": IMAGES, "desire": (1, 8), "initial_state": (1, 512), **TRAFFIC},
    ),
    (
        "monolithic supercombo with navigation (2023)",
        "monolithic",
        {**OLD_EYES, **MEMORY, **TRAFFIC, "nav_features": (1, 256), "nav_instructions": (1, 150)},
    ),
    (
        "monolithic supercombo (2023 to 2024)",
        "monolithic",
        {**OLD_EYES, **MEMORY, **TRAFFIC, **CURVES},
    ),
    (
        "monolithic supercombo (2026)",
        "monolithic",
        {
            **EYES,
            **TRAFFIC,
            "features_buffer": (1, 24, 512),
            "desire_pulse": (1, 25, 8),
            **TIMES,
        },
    ),
    (
        "big monolithic supercombo (2026)",
        "monolithic",
        {
            **EYES,
            **TRAFFIC,
            "features_buffer": (1, 32, 32, 512),
            "desire_pulse": (1, 33, 8),
            **TIMES,
        },
    ),
    ("split vision, first names (2025)", "vision", OLD_EYES),
    ("split vision (2025 to 2026)", "vision", EYES),
    (
        "split policy with past curvatures (2025)",
        "policy",
        {
            "desire": (1, 25, 8),
            "features_buffer": (1, 25, 512),
            **TRAFFIC,
            "lateral_control_params": (1, 2),
            "prev_desired_curv": (1, 25, 1),
        },
    ),
    ("split policy with action times (2026)", "policy", {**POLICY, **TIMES}),
    ("split policy (2025 to 2026)", "policy", POLICY),
    (
        "split policy (2025 to 2026)",
        "policy",
        {"desire": (1, 25, 8), "features_buffer": (1, 25, 512), **TRAFFIC},
    ),
    ("driver monitoring", "driver monitoring", {"input_img": (1, 1382400), "calib": (1, 3)}),
]


@pytest.mark.parametrize("code", [TensorProto.FLOAT, TensorProto.FLOAT16], ids=["float", "half"])
@pytest.mark.parametrize(("title", "role", "inputs"), KNOWN, ids=[k[0] for k in KNOWN])
def test_every_generation_is_recognised(title: str, role: str, inputs: Inputs, code: int) -> None:
    found = recognise(named("m", inputs, code=code))
    assert found is not None
    assert (found.title, found.role, found.odd) == (title, role, ())
    assert found.inputs == {name: MEANINGS[name] for name in inputs}
    assert found.half == (tuple(inputs) if code == TensorProto.FLOAT16 else ())


def test_states_inside_the_model_are_told_by_their_next_values() -> None:
    inputs = [
        value("new_img", (2, 6, 128, 256), TensorProto.UINT8),
        value("desire", (8,)),
        value("traffic_convention", (1, 2)),
        value("action_t", (1, 2)),
        value("state_features", (96, 1, 512)),
    ]
    named_next = [value("outputs", (1, 8)), value("next_state_features", (96, 1, 512))]
    nodes = mixer({i.name: (1,) for i in inputs}, 8).graph.node
    for outputs, known in ((named_next, True), (named_next[:1], False)):
        proto = model_of(nodes, inputs, outputs)
        found = recognise(OnnxModel(proto, "m", 17, "", {}))
        assert (found is not None) is known
        if found is not None:
            assert found.inputs["state_features"] == "state"
            assert found.role == "monolithic"


@pytest.mark.parametrize(
    "inputs",
    [{"x": (1, 3)}, {"img": IMAGES}, {**POLICY, "more": (1,)}, {"features_buffer": (1, 25, 512)}],
    ids=" ".join,
)
def test_other_models_are_not_recognised(inputs: Inputs) -> None:
    assert recognise(named("m", inputs)) is None


def test_sizes_that_differ_are_reported() -> None:
    found = recognise(named("m", {**POLICY, "features_buffer": (1, 50, 512)}))
    assert found is not None
    assert found.role == "policy"
    assert found.odd == ('input "features_buffer" is (1, 50, 512) instead of (1, 25, 512)',)


@pytest.mark.parametrize(
    ("slices", "variant"),
    [
        (["plan", "action"], "on-policy"),
        (["plan"], "on-policy"),
        (["plan", "desire_state", "pad"], ""),
        (["lane_lines", "lead"], "off-policy"),
        (["plan", "lane_lines"], ""),
        ([], ""),
    ],
    ids=str,
)
def test_halves_of_a_policy_are_told_by_their_slices(slices: list[str], variant: str) -> None:
    found = recognise(named("m", POLICY), dict.fromkeys(slices))
    assert found is not None
    assert found.variant == variant


VISION_MODEL = named("v.onnx", EYES)
POLICY_MODEL = named("p.onnx", POLICY)
MONOLITH = named("super.onnx", {**OLD_EYES, **MEMORY, **TRAFFIC})


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ((POLICY_MODEL, VISION_MODEL), "expected the vision model first, found the policy"),
        ((POLICY_MODEL, POLICY_MODEL), "a policy model was given twice; expected also a vision"),
        ((VISION_MODEL, VISION_MODEL), "a vision model was given twice; expected also a policy"),
        (
            (MONOLITH, POLICY_MODEL),
            r"super.onnx: .* found a monolithic supercombo \(2023 to 2024\)",
        ),
        ((VISION_MODEL, MONOLITH), "super.onnx: .* compile --plain"),
        (
            (VISION_MODEL, named("dm.onnx", {"input_img": (1, 1382400), "calib": (1, 3)})),
            "dm.onnx: .* found a driver monitoring",
        ),
        (
            (VISION_MODEL, named("new.onnx", {**POLICY, **TIMES})),
            r"new.onnx: found a split policy with action times .*'action_t'.* --plain",
        ),
    ],
    ids=lambda x: None if isinstance(x, str) else "+".join(m.name for m in x),
)
def test_two_wrong_models_are_refused(pair: tuple[OnnxModel, OnnxModel], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_driving(*pair)
    with pytest.raises(ModelError, match=message):
        compile_driving(pair)


def test_the_right_pair_and_unknown_models_pass() -> None:
    check_driving(VISION_MODEL, POLICY_MODEL)
    check_driving(named("a", {"x": (1, 2)}), named("b", {"x": (1, 2)}))


@pytest.mark.parametrize("code", [TensorProto.FLOAT16, TensorProto.FLOAT], ids=["half", "float"])
def test_driving_models_may_have_float_images_and_half_inputs(code: int) -> None:
    vision = mixer(EYES, 1576, {"hidden_state": slice(1064, 1576)}, dict.fromkeys(EYES, code))
    policy = mixer(POLICY, 1000, {"plan": slice(0, 990)}, dict.fromkeys(POLICY, code))
    compiled = compile_driving([from_proto(vision), from_proto(policy)])
    name = "float16" if code == TensorProto.FLOAT16 else "float32"
    vision_part, policy_part = compiled.manifest["metadata"]["interface"]["models"]
    assert vision_part["inputs"]["img"][1] == name
    assert policy_part["inputs"]["features_buffer"] == [[1, 25, 512], name]


def test_symbolic_sizes_of_driving_models_are_those_of_the_program() -> None:
    policy = mixer(POLICY, 1000, {"plan": slice(0, 990)})
    for item in policy.graph.input:
        item.type.tensor_type.shape.dim[0].dim_param = "batch"
        item.type.tensor_type.shape.dim[1].dim_param = f"{item.name}_steps"
    vision = mixer(EYES, 1576, {"hidden_state": slice(1064, 1576)})
    compiled = compile_driving([from_proto(vision), from_proto(policy)])
    shapes = compiled.manifest["metadata"]["interface"]["models"][1]["inputs"]
    assert [shapes[name][0] for name in POLICY] == [list(shape) for shape in POLICY.values()]
