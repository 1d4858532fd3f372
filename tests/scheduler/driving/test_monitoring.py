"""Driver monitoring: models are recognised, and the program equals numpy and onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import runtime
from runtime.artifact import from_memory
from runtime.monitoring_interface import HEADS, OPTIONAL_HEADS, parse_monitoring_interface
from scheduler.compile import compile_monitoring
from scheduler.driving.monitoring import recognise_monitoring
from scheduler.driving.revisions import FOLDER, load_monitoring
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, load_model
from tools.example_models.interface import model_metadata
from tools.example_models.monitoring import build_monitoring

REVISIONS = load_monitoring()
BY_OPTION = "declared by --interface"
Bytes = NDArray[np.uint8]


def warp(
    frame: Bytes, stride: int, size: tuple[int, int], m: NDArray[np.float32], mode: str
) -> Bytes:
    """The view as the formulas have it, whole arrays at a time.

    Args:
        frame: flat, luma first.
        stride: bytes from row to row.
        size: (width, height) of the frame.
        m: view pixel -> camera pixel.
        mode: "bilinear" in 1/32 pixel with weights of 15 bits, or "nearest".
    """
    width, height = size
    luma = frame[: stride * height].reshape(height, stride)[:, :width].astype(np.int64)
    x = np.arange(1440, dtype=np.float32)[None, :]
    y = np.arange(960, dtype=np.float32)[:, None]
    rows = [m[i, 0] * x + m[i, 1] * y + m[i, 2] for i in range(3)]
    if mode == "nearest":
        column, line = (np.rint(rows[i] / rows[2]).astype(np.int64) for i in range(2))
        picked: Bytes = luma[line.clip(0, height - 1), column.clip(0, width - 1)].astype(np.uint8)
        return picked
    sx, sy = (np.rint(rows[i] * (np.float32(32) / rows[2])).astype(np.int64) for i in range(2))
    total = np.full((960, 1440), 1 << 14, np.int64)
    for dy in (0, 1):
        for dx in (0, 1):
            wx, wy = (f if tap else 32 - f for f, tap in ((sx & 31, dx), (sy & 31, dy)))
            weight = np.minimum(wx * wy * 32, 32767)
            line = ((sy >> 5) + dy).clip(0, height - 1)
            column = ((sx >> 5) + dx).clip(0, width - 1)
            total += weight * luma[line, column]
    return (total >> 15).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("monitoring")
    found = {}
    for name, revision in REVISIONS.items():
        found[name] = directory / f"{name}.onnx"
        onnx.save(build_monitoring(revision, 0)[0], found[name])
    return found


def with_metadata(path: Path, props: dict[str, str]) -> OnnxModel:
    proto = onnx.load(path)
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, props)
    changed = path.with_suffix(".changed.onnx")
    onnx.save(proto, changed)
    return load_model(changed)


def test_each_example_is_recognised(models: dict[str, Path]) -> None:
    expected = {"dmonitoring-2025": ("bilinear", "exp"), "dmonitoring-2026": ("nearest", "clipped")}
    for name, path in models.items():
        found = recognise_monitoring(load_model(path))
        assert found.interface.name == name
        assert (found.interface.image_mode, found.interface.stds) == expected[name]
        assert found.interface.model.checkpoint == f"example-{name}/seed-0"
        assert name in found.notes[-1]
        # What is stored is read back as it was.
        assert parse_monitoring_interface(found.interface.plain()) == found.interface


def test_places_of_the_vector_of_2025() -> None:
    slices = REVISIONS["dmonitoring-2025"].model.slices
    assert REVISIONS["dmonitoring-2025"].model.width == 596
    assert slices["face_descs_lhd"] == (0, 12)
    assert [slices[f"{n}_prob_lhd"] for n in ("face", "left_eye", "right_eye", "left_blink")] == [
        (12, 13),
        (21, 22),
        (30, 31),
        (31, 32),
    ]
    assert slices["not_ready_prob_lhd"] == (39, 41)
    assert slices["face_descs_rhd"] == (41, 53)
    assert slices["not_ready_prob_rhd"] == (80, 82)
    assert slices["poor_vision"] == (82, 83)
    assert slices["wheel_on_right"] == (83, 84)
    assert slices["hidden_state"] == (84, 596)
    others = set(slices) - {*HEADS, *OPTIONAL_HEADS}
    assert all(name.startswith("unused") or name == "hidden_state" for name in others)


def test_a_declared_interface_must_fit(models: dict[str, Path]) -> None:
    model = load_model(models["dmonitoring-2026"])
    assert recognise_monitoring(model, "dmonitoring-2026").interface.reason == BY_OPTION
    with pytest.raises(
        ModelError,
        match=r"dmonitoring-2025 \(declared by --interface\): expected 596 values without slices, "
        "found an output of 556 values with the slices",
    ):
        recognise_monitoring(model, "dmonitoring-2025")
    with pytest.raises(ModelError, match="expected output_slices, found an output of 596 values"):
        recognise_monitoring(load_model(models["dmonitoring-2025"]), "dmonitoring-2026")
    with pytest.raises(ModelError, match="split-2025 declared by --interface is of driving models"):
        recognise_monitoring(model, "split-2025")
    with pytest.raises(ModelError, match=r"'dmonitoring-2062' .*, did you mean dmonitoring-2026"):
        recognise_monitoring(model, "dmonitoring-2062")


def test_missing_heads_are_named_at_once(models: dict[str, Path]) -> None:
    slices = {n: slice(*b) for n, b in REVISIONS["dmonitoring-2026"].model.slices.items()}
    del slices["wheel_on_right"]
    slices["face_descs_rhd"] = slice(12, 20)
    model = with_metadata(models["dmonitoring-2026"], model_metadata("x", slices))
    with pytest.raises(ModelError, match="taken for dmonitoring-2026") as caught:
        recognise_monitoring(model)
    assert "face_descs_rhd: expected 12 values, found 8" in str(caught.value)
    assert "wheel_on_right: expected 1 value, is missing" in str(caught.value)


def test_wrong_slices_are_one_line_with_every_reason(models: dict[str, Path]) -> None:
    slices = {n: slice(*b) for n, b in REVISIONS["dmonitoring-2026"].model.slices.items()}
    start = slices["sleep_prob_lhd"].start
    slices |= {
        "face_prob_lhd": slice(600, 601),
        "using_phone_prob_lhd": slice(start, start + 1),
        "pad": slice(0, None),
    }
    model = with_metadata(models["dmonitoring-2026"], model_metadata("x", slices))
    with pytest.raises(ModelError) as caught:
        recognise_monitoring(model)
    assert str(caught.value) == (
        f"{model.name}: taken for dmonitoring-2026 (the slices of its heads): "
        "output_slices['face_prob_lhd'] = slice(600, 601, None) does not fit the output of width "
        f"556; heads sleep_prob_lhd [{start}, {start + 1}) and using_phone_prob_lhd [{start}, "
        f"{start + 1}) overlap; face_prob_lhd: expected 1 value, is missing; see "
        "docs/formats/monitoring-models.md; declare another with --interface NAME, or interface = "
        '"NAME" in a TOML beside the model'
    )
    with pytest.raises(ModelError, match="does not fit the output of width 556") as caught:
        recognise_monitoring(model, "dmonitoring-2026")
    assert "declare another" not in str(caught.value)
    del slices["face_prob_lhd"], slices["using_phone_prob_lhd"]
    alone = {"face_prob_lhd": slice(600, 601)}
    model = with_metadata(models["dmonitoring-2026"], model_metadata("x", alone))
    with pytest.raises(ModelError, match=r"of no known interface: .* does not fit the output"):
        recognise_monitoring(model)


def test_a_file_beside_the_model_declares_interface_and_rules(
    models: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "driver.onnx"
    path.write_bytes(models["dmonitoring-2026"].read_bytes())
    beside = tmp_path / "driver.toml"
    beside.write_text('interface = "dmonitoring-2026"\n[rules]\nstds = "exp"\n')
    found = recognise_monitoring(load_model(path))
    assert (found.interface.image_mode, found.interface.stds) == ("nearest", "exp")
    assert found.interface.reason == "declared by driver.toml; rules of driver.toml: stds"
    assert "rules of driver.toml: stds): images nearest, deviations exp" in found.notes[-1]
    beside.write_text('[rules]\nimage_mode = "bilinear"\n')
    found = recognise_monitoring(load_model(path), "dmonitoring-2026")
    assert (found.interface.image_mode, found.interface.stds) == ("bilinear", "clipped")
    assert found.interface.reason == f"{BY_OPTION}; rules of driver.toml: image_mode"
    for text, message in (
        ('interface = "dmonitoring-2025"', r"\(declared by driver.toml\): expected 596 values"),
        ('interfaec = "x"', "driver.toml: interfaec: unknown key, did you mean interface?"),
        ("[rules]\nstd = 1", "driver.toml: rules.std: unknown key, did you mean stds?"),
        ('[rules]\nbig = "x"', "driver.toml: rules.big: unknown key, expected one of image_mode"),
        ('[rules]\nstds = "x"', "driver.toml: rules.stds: expected one of exp, clipped"),
    ):
        beside.write_text(text)
        with pytest.raises(ModelError, match=message):
            recognise_monitoring(load_model(path))


def test_an_output_that_fits_no_revision_is_refused(models: dict[str, Path]) -> None:
    model = with_metadata(models["dmonitoring-2026"], {})
    with pytest.raises(ModelError, match=r"of no known interface.*556 values without slices"):
        recognise_monitoring(model)


def test_another_model_is_refused(tmp_path: Path) -> None:
    value = onnx.helper.make_tensor_value_info
    one = value("calib", onnx.TensorProto.FLOAT, (1, 3))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["calib"], ["outputs"])],
        "g",
        [one],
        [value("outputs", onnx.TensorProto.FLOAT, (1, 3))],
    )
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph), path)
    with pytest.raises(ModelError, match="expected the inputs input_img and calib"):
        recognise_monitoring(load_model(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('stds = "exp"', 'stds = "softplus"', "rules.stds: .*exp.*clipped"),
        ('stds = "exp"', 'std = "exp"', "std"),
    ],
)
def test_a_wrong_file_of_the_table_is_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    text = (FOLDER / "dmonitoring-2025.toml").read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "wrong.toml").write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ModelError, match=rf"wrong\.toml: .*{message}"):
        load_monitoring(tmp_path)


@pytest.mark.opencl
@pytest.mark.parametrize("name", REVISIONS)
def test_the_program_equals_numpy_and_onnxruntime(name: str, models: dict[str, Path]) -> None:
    compiled = compile_monitoring(models[name], capacity=2048 * 1216 * 3 // 2)
    assert compiled.manifest["kind"] == "monitoring"
    session = onnxruntime.InferenceSession(models[name], providers=["CPUExecutionProvider"])
    mode = REVISIONS[name].image_mode
    rng = np.random.default_rng(1)
    # Padded, unpadded, and a tilted view that leaves the frame on all sides.
    cameras = [
        ((1928, 1208), 2048, 1216, [[1, 0, 244], [0, 1, 248], [0, 0, 1]]),
        ((1344, 760), 1344, 760, [[0.75, 0, 132], [0, 0.75, 113], [0, 0, 1]]),
        ((640, 480), 640, 480, [[0.9, 0.2, -99], [-0.1, 0.7, -33], [1e-4, -2e-4, 1]]),
    ]
    with runtime.load_program(from_memory(compiled.manifest, compiled.data)) as program:
        for size, stride, rows, matrix in cameras:
            frame = rng.integers(0, 256, stride * rows * 3 // 2, np.uint8)
            transform = np.array(matrix, np.float32)
            calibration = rng.normal(0, 0.1, (1, 3)).astype(np.float32)
            found = program.run(
                {
                    "driver_frame": frame,
                    "driver_geometry": np.array([*size, stride, stride * rows], np.int32),
                    "driver_transform": transform,
                    "calib": calibration,
                }
            )["monitoring_outputs"]
            view = warp(frame, stride, size, transform, mode)
            (expected,) = session.run(
                None, {"input_img": view.reshape(1, -1), "calib": calibration}
            )
            np.testing.assert_allclose(found, expected, atol=1e-4)
