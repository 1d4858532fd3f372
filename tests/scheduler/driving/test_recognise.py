"""Which interface models have: declared, known or fitting; and what is said of other models."""

import re
from functools import partial
from itertools import dropwhile, permutations, takewhile
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from runtime.format.interfaces import Interface
from scheduler.compile import compile_driving
from scheduler.driving.derive import HEADS, REQUIRED
from scheduler.driving.recognise import recognise_driving
from scheduler.onnx_import import OnnxModel, from_proto, load_model
from tests.scheduler.driving.conftest import Refusals, refusal
from tests.scheduler.driving.edited_models import edited, parts_of, proto_of, revisions
from tests.scheduler.onnx_import.tiny_models import mixer
from tests.support.built import example_models, interface_models
from tests.support.selection import quick_cases

# Told by inputs and heads alone, where it is another one.
TAKEN = {
    "supercombo-0.9.7": "supercombo-2025-01",
    "supercombo-2024-09": "supercombo-2024-10",
    "mlsim-2024-10": "mlsim-2024-12-13",
    "split-2025-03": "split-0.9.9",
    "split-2025-04-17": "split-2025-07-02",
    "split-2025-04-23": "split-2025-07-02",
    "split-2025-05-24": "split-2025-07-02",
    "split-2025-11": "split-2025",
}


def examples(name: str, **changes: str) -> list[OnnxModel]:
    """Return the example of a revision, with other metadata."""
    protos = {path.name: onnx.load(path) for path in interface_models(name)}
    for proto in protos.values():
        for prop in proto.metadata_props:
            prop.value = changes.get(prop.key, prop.value)
    return [from_proto(proto, file) for file, proto in protos.items()]


# One, two and three models; taken for another revision or for no other.
QUICK = ("supercombo-0.9.7", "supercombo-2026", "split-2025", "split-2025-11", "on-off-2026")


@pytest.mark.parametrize("name", quick_cases(revisions(), *QUICK))
def test_every_example_is_recognised_in_any_order(name: str) -> None:
    models = examples(name)
    for order in permutations(models):
        interface, ordered, notes = recognise_driving(order)
        assert (interface.name, list(ordered), notes) == (name, models, ())
        assert "known by the checkpoint 'example-" in interface.reason
    others = examples(name, model_checkpoint="unknown")
    interface, _, notes = recognise_driving(others)
    assert interface.name == TAKEN.get(name, name)
    fit = [n for n in revisions() if TAKEN.get(n, n) == interface.name]
    assert len(notes) == (len(fit) > 1)
    for other in set(fit) - {interface.name}:
        assert other in notes[0]
        assert "--interface" in notes[0]
    declared, _, notes = recognise_driving(others, name)
    assert (declared.name, declared.reason, notes) == (name, "declared by --interface", ())


def test_the_default_examples_need_no_option() -> None:
    paths = example_models("policy", "vision")
    interface, ordered, notes = recognise_driving([load_model(path) for path in paths.values()])
    assert (interface.name, notes) == ("split-2025", ())
    assert [m.name for m in ordered] == ["vision.onnx", "policy.onnx"]


@pytest.mark.parametrize(
    ("checkpoint", "name"),
    [
        ("TR14/seed", "split-2025-07-02"),
        ("tr3_final", "split-2025-04-23"),
        ("tr2", "split-2025-04-17"),
        ("tr22", None),
        ("b9c1f0d2-44a1/700", None),
    ],
)
def test_known_checkpoints_name_their_revision(checkpoint: str, name: str | None) -> None:
    parts = parts_of("split-2025-07-02")
    models = [edited(part, checkpoint=checkpoint) for part in parts.values()]
    interface, _, notes = recognise_driving(models)
    assert interface.name == (name or "split-2025-07-02")
    assert bool(notes) is (name is None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for role, part in parts_of("split-2025").items():
        onnx.save(proto_of(part), tmp_path / f"{role}.onnx")
    return tmp_path


def recognised(folder: Path, declared: str | None = None) -> Interface:
    models = [load_model(folder / f"{role}.onnx") for role in ("policy", "vision")]
    return recognise_driving(models, declared)[0]


def test_a_file_beside_a_model_declares_interface_and_rules(folder: Path) -> None:
    assert recognised(folder).name == "split-2025"
    (folder / "vision.toml").write_text('interface = "split-2025-11"')
    found = recognised(folder)
    assert (found.name, found.reason) == ("split-2025-11", "declared by vision.toml")
    assert found.image.mode == "nearest"
    (folder / "policy.toml").write_text("[rules.action]\nlat_smooth_s = 0.25")
    found = recognised(folder)
    assert found.reason == "declared by vision.toml; rules of policy.toml: action.lat_smooth_s"
    assert (found.image.mode, found.action.lat_smooth_s) == ("nearest", 0.25)
    assert found.action.long_smooth_s == 0.3
    (folder / "vision.toml").unlink()
    found = recognised(folder, "split-2025")
    assert found.reason == "declared by --interface; rules of policy.toml: action.lat_smooth_s"
    assert (found.image.mode, found.action.lat_smooth_s) == ("bilinear", 0.25)


def test_the_option_may_not_contradict_a_file_beside_a_model(folder: Path) -> None:
    (folder / "vision.toml").write_text('interface = "split-2025-11"')
    assert refusal(partial(recognised, folder, "split-2025")) == (
        "vision.onnx, policy.onnx: interfaces contradict each other: split-2025 declared by "
        "--interface; split-2025-11 declared by vision.toml; declare one only"
    )
    found = recognised(folder, "split-2025-11")
    assert (found.name, found.reason) == ("split-2025-11", "declared by --interface")


# The files beside the vision and the policy model.
WRONG = (
    ('interfaec = "x"', ""),
    ("", "[rules]\ndrop_polcy = 1"),
    ("[rules.action]\nstop = 3", ""),
    ('interface = "split-2052"', ""),
    ('interface = "split-2025"', 'interface = "split-2025-11"'),
    ('[rules]\nlane_change = "A"', '[rules]\nlane_change = "B"'),
    ("interface = ", ""),
    ('[rules.action]\nlateral = "action"', ""),
)


def test_what_is_wrong_with_a_model_or_beside_it(folder: Path, refusals: Refusals) -> None:
    path = folder / "vision.toml"

    def beside(vision: str, policy: str) -> Interface:
        path.write_text(vision)
        (folder / "policy.toml").write_text(policy)
        return recognised(folder)

    refusals("beside", {f"{texts}": partial(beside, *texts) for texts in WRONG})
    said = "vision.toml: expected a TOML file that declares vision.onnx, found "
    path.unlink()
    twice = [load_model(folder / "vision.onnx")] * 2
    assert "the same vision model was given twice" in refusal(partial(recognise_driving, twice))
    why = "dmonitoring-2026 declared by --interface is of driver monitoring; expected one of superc"
    assert why in refusal(partial(recognised, folder, "dmonitoring-2026"))
    path.mkdir()
    assert f"{said}a directory" in refusal(partial(recognised, folder))
    path.rmdir()
    path.symlink_to(folder / "none.toml")
    assert f"{said}a link to nothing" in refusal(partial(recognised, folder))


VISION, POLICY = parts_of("split-2025").values()


def test_pad_may_be_a_second_name() -> None:
    models = [edited(VISION, slices={"pad": (0, None)}), edited(POLICY, slices={"pad": (-2, None)})]
    interface, _, _ = recognise_driving(models)
    assert "pad" not in interface.heads


def test_other_heads_with_the_inputs_of_a_revision_are_noted() -> None:
    """A plan of five hypotheses under the inputs of August 2025: no revision, but well defined."""
    policy = edited(POLICY, slices={"plan": (8, 4963), "desire_state": (0, 8)}, width=4964)
    interface, _, (note,) = recognise_driving([edited(VISION), policy])
    assert interface.heads["plan"] == ("policy", 8, 4963)
    assert interface.name == "split-2025"
    assert "where it differs: policy.onnx: head plan: expected 990 values, found 4955" in note


@pytest.mark.parametrize(
    ("dtype", "code"), [("float16", TensorProto.FLOAT16), ("float32", TensorProto.FLOAT)]
)
def test_driving_models_may_have_float_images_and_half_inputs(dtype: str, code: int) -> None:
    models = []
    for part in (VISION, POLICY):
        shapes = {name: shape for name, (shape, _) in part.inputs.items()}
        slices = {name: slice(*bounds) for name, bounds in part.slices.items()}
        models.append(from_proto(mixer(shapes, part.width, slices, dict.fromkeys(shapes, code))))
    interface, _, _ = recognise_driving(models)
    assert {k for part in interface.models for _, k in part.inputs.values()} == {dtype}


def test_symbolic_sizes_are_those_of_the_interface() -> None:
    proto = proto_of(POLICY)
    for item in proto.graph.input:
        item.type.tensor_type.shape.dim[0].dim_param = "batch"
        item.type.tensor_type.shape.dim[1].dim_param = f"{item.name}_steps"
    interface, _, _ = recognise_driving([edited(VISION), from_proto(proto)])
    assert interface.models[1].inputs == POLICY.inputs
    assert interface.features is not None
    assert interface.features.length == 25


DOCUMENT = Path(__file__).parents[3] / "docs/formats/driving-models.md"


def table(title: str) -> list[list[str]]:
    """Return the cells of the rows of the first table after a heading of the document."""
    lines = DOCUMENT.read_text(encoding="utf-8").split(f"{title}\n", 1)[1].splitlines()
    rows = dropwhile(lambda line: not line.startswith("|"), lines)
    listed = list(takewhile(lambda line: line.startswith("|"), rows))[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in listed]


def whole_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


@pytest.mark.slow
def test_a_pair_built_from_the_document_alone_is_valid() -> None:
    models = []
    for file in ("vision", "policy"):
        rows = [row for row in table("### A valid pair") if row[0] == file]
        shapes = {name.strip("`"): whole_numbers(shape) for _, name, shape, _ in rows}
        slices, start = {}, 0
        for name, widths, _, owner, *_ in table("## Outputs"):
            if owner == file:
                width = whole_numbers(widths)[-1 if name == "`meta`" else 0]
                slices[name.strip("`")] = slice(start, start + width)
                start += width
        models.append(from_proto(mixer(shapes, start, slices), f"{file}.onnx"))
    interface = compile_driving(models).manifest["metadata"]["interface"]
    assert interface["name"] == "split-2025"
    assert "inputs and heads fit" in interface["reason"]


def test_the_document_has_each_head_with_its_widths() -> None:
    rows = {row[0].strip("`"): row for row in table("## Outputs")}
    widths = {name: whole_numbers(row[1]) for name, row in rows.items()}
    assert widths == {**HEADS, "hidden_state": (512,)}
    assert [name for name, row in rows.items() if row[2] == "yes"] == list(REQUIRED)
