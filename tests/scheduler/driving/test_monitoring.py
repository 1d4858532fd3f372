"""Driver monitoring: models are recognised, and the program equals numpy and onnxruntime."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import runtime
from runtime.format.artifact import from_memory
from runtime.format.interfaces import (
    MONITORING_HEADS,
    OPTIONAL_MONITORING_HEADS,
    parse_monitoring_interface,
)
from scheduler.compile import compile_monitoring
from scheduler.driving.monitoring import recognise_monitoring
from scheduler.driving.revisions import FOLDER, load_monitoring
from scheduler.onnx_import import OnnxModel, from_proto, load_model
from tests.reference_loop.warps import Picture, driver_view
from tests.scheduler.driving.conftest import Refusals, refusal
from tests.scheduler.onnx_import.onnx_models import model_of, node
from tests.support.built import interface_models
from tools.example_models.outputs import model_metadata

REVISIONS = load_monitoring()
OLD, NEW = "dmonitoring-2025", "dmonitoring-2026"
BY_OPTION = "declared by --interface"


def path_of(name: str) -> Path:
    (path,) = interface_models(name)
    return path


def example(name: str) -> OnnxModel:
    return load_model(path_of(name))


def with_slices(slices: dict[str, slice] | None) -> OnnxModel:
    """Return the example of 2026 with other slices, or without metadata."""
    proto = onnx.load(path_of(NEW))
    del proto.metadata_props[:]
    helper.set_model_props(proto, {} if slices is None else model_metadata("x", slices))
    return from_proto(proto, "changed.onnx")


def slices_of(name: str) -> dict[str, slice]:
    return {n: slice(*bounds) for n, bounds in REVISIONS[name].model.slices.items()}


def test_each_example_is_recognised() -> None:
    expected = {OLD: ("bilinear", "exp"), NEW: ("nearest", "clipped")}
    assert set(expected) == set(REVISIONS)
    for name, rules in expected.items():
        found = recognise_monitoring(example(name))
        assert found.interface.name == name
        assert (found.interface.image_mode, found.interface.stds) == rules
        assert found.interface.model.checkpoint == f"example-{name}/seed-0"
        assert name in found.notes[-1]
        # What is stored is read back as it was.
        assert parse_monitoring_interface(found.interface.plain()) == found.interface


def test_places_of_the_vector_of_2025() -> None:
    slices = REVISIONS[OLD].model.slices
    assert REVISIONS[OLD].model.width == 596
    places = "face_descs 0 12, face_prob 12 13, left_eye_prob 21 22, right_eye_prob 30 31, "
    places += "left_blink_prob 31 32, not_ready_prob 39 41"
    for name, start, stop in (place.split() for place in places.split(", ")):
        assert slices[f"{name}_lhd"] == (int(start), int(stop))
    rhd = [slices[f"{name}_rhd"] for name in ("face_descs", "not_ready_prob")]
    assert rhd == [(41, 53), (80, 82)]
    last = [slices[name] for name in ("poor_vision", "wheel_on_right", "hidden_state")]
    assert last == [(82, 83), (83, 84), (84, 596)]
    others = set(slices) - {*MONITORING_HEADS, *OPTIONAL_MONITORING_HEADS}
    assert all(name.startswith("unused") or name == "hidden_state" for name in others)


def test_a_declared_interface_must_fit(refusals: Refusals) -> None:
    assert recognise_monitoring(example(NEW), NEW).interface.reason == BY_OPTION
    declared = ((NEW, OLD), (OLD, NEW), (NEW, "split-2025"), (NEW, "dmonitoring-2062"))
    calls = {f"{n} as {d}": partial(recognise_monitoring, example(n), d) for n, d in declared}
    refusals("monitoring", calls)


def test_slices_that_no_revision_has_are_refused_with_every_reason(refusals: Refusals) -> None:
    slices = slices_of(NEW)
    start = slices["sleep_prob_lhd"].start
    less = {name: where for name, where in slices.items() if name != "wheel_on_right"}
    wrong = slices | {
        "face_prob_lhd": slice(600, 601),
        "using_phone_prob_lhd": slice(start, start + 1),
        "pad": slice(0, None),
    }
    models = {
        "a head less, and a short one": with_slices(less | {"face_descs_rhd": slice(12, 20)}),
        "outside, overlapping": with_slices(wrong),
        "one head outside": with_slices({"face_prob_lhd": slice(600, 601)}),
        "no slices": with_slices(None),
        "other inputs": from_proto(model_of([node("Identity", "calib", "y")], [("calib", (1, 3))])),
    }
    calls = {name: partial(recognise_monitoring, model) for name, model in models.items()}
    calls["declared"] = partial(recognise_monitoring, with_slices(wrong), NEW)
    refusals("slices_of_monitoring", calls)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """Return a TOML beside a copy of the model of 2026."""
    (tmp_path / "driver.onnx").write_bytes(path_of(NEW).read_bytes())
    return tmp_path / "driver.toml"


@pytest.mark.parametrize(
    ("text", "declared", "rules", "reason"),
    [
        (
            f'interface = "{NEW}"\n[rules]\nstds = "exp"\n',
            None,
            ("nearest", "exp"),
            "declared by driver.toml; rules of driver.toml: stds",
        ),
        (
            '[rules]\nimage_mode = "bilinear"\n',
            NEW,
            ("bilinear", "clipped"),
            f"{BY_OPTION}; rules of driver.toml: image_mode",
        ),
    ],
)
def test_a_file_beside_the_model_declares_interface_and_rules(
    beside: Path, text: str, declared: str | None, rules: tuple[str, str], reason: str
) -> None:
    beside.write_text(text)
    found = recognise_monitoring(load_model(beside.with_suffix(".onnx")), declared)
    assert (found.interface.image_mode, found.interface.stds) == rules
    assert found.interface.reason == reason
    assert f"{reason}): images {rules[0]}, deviations {rules[1]}" in found.notes[-1]


WRONG = (
    *(f'interface = "{OLD}"', 'interfaec = "x"', "[rules]\nstd = 1", '[rules]\nbig = "x"'),
    '[rules]\nstds = "x"',
)


def test_a_wrong_file_beside_the_model_or_of_the_table_is_named(
    beside: Path, tmp_path: Path, refusals: Refusals
) -> None:
    def recognise(text: str) -> object:
        beside.write_text(text)
        return recognise_monitoring(load_model(beside.with_suffix(".onnx")))

    refusals("beside_monitoring", {repr(text): partial(recognise, text) for text in WRONG})
    text = (FOLDER / f"{OLD}.toml").read_text(encoding="utf-8")
    assert 'stds = "exp"' in text
    (tmp_path / "table").mkdir()
    wrong = tmp_path / "table" / "wrong.toml"
    for new, message in (
        ('stds = "softplus"', "rules.stds: .*exp.*clipped"),
        ('std = "exp"', "std"),
    ):
        wrong.write_text(text.replace('stds = "exp"', new, 1), encoding="utf-8")
        line = refusal(partial(load_monitoring, wrong.parent))
        assert re.search(rf"wrong\.toml: .*{message}", line)


# Padded, unpadded, and a tilted view that leaves the frame on all sides: size, stride, rows.
CAMERAS: list[tuple[tuple[int, int], int, int, Any]] = [
    ((1928, 1208), 2048, 1216, [[1, 0, 244], [0, 1, 248], [0, 0, 1]]),
    ((1344, 760), 1344, 760, [[0.75, 0, 132], [0, 0.75, 113], [0, 0, 1]]),
    ((640, 480), 640, 480, [[0.9, 0.2, -99], [-0.1, 0.7, -33], [1e-4, -2e-4, 1]]),
]


@pytest.mark.opencl
@pytest.mark.slow
@pytest.mark.parametrize("name", REVISIONS)
def test_the_program_equals_numpy_and_onnxruntime(name: str) -> None:
    compiled = compile_monitoring(path_of(name), capacity=2048 * 1216 * 3 // 2)
    assert compiled.manifest["kind"] == "monitoring"
    session = onnxruntime.InferenceSession(path_of(name), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    with runtime.load_program(from_memory(compiled.manifest, compiled.data)) as program:
        for size, stride, rows, matrix in CAMERAS:
            frame = rng.integers(0, 256, stride * rows * 3 // 2, np.uint8)
            transform = np.array(matrix, np.float32)
            calibration = rng.normal(0, 0.1, (1, 3)).astype(np.float32)
            geometry = (*size, stride, stride * rows)
            given = {
                "driver_frame": frame,
                "driver_geometry": np.array(geometry, np.int32),
                "driver_transform": transform,
                "calib": calibration,
            }
            found = program.run(given)["monitoring_outputs"]
            view = driver_view(Picture(frame, *geometry, 0), transform, REVISIONS[name].image_mode)
            inputs = {"input_img": view.reshape(1, -1), "calib": calibration}
            (expected,) = session.run(None, inputs)
            np.testing.assert_allclose(found, expected, atol=1e-4)
