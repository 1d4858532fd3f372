"""Bad files: one clear line each, nothing read from outside the model's directory."""

import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scheduler.errors import ModelError, UnsupportedOpError
from scheduler.onnx_import import (
    OnnxModel,
    check_supported,
    from_proto,
    import_model,
    load_model,
    unsupported_nodes,
)
from scheduler.onnx_import.support import CUSTOM_HINT, nearest_form
from scheduler.tensor.tensor import evaluate
from tests.scheduler.onnx_import.onnx_models import model_of, node, parsed, refused, values_of


def add_model(**options: Any) -> onnx.ModelProto:
    weights = {"w": np.arange(4, dtype=np.float32)}
    return model_of([node("Add", "x w", "y", "add")], weights=weights, **options)


def written(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def external_model(directory: Path, **entries: str) -> Path:
    """Write a model whose weight lies in another file; entries override the reference to it."""
    (directory / "w.bin").write_bytes(b"\0" * 8 + np.arange(4, dtype=np.float32).tobytes())
    model = add_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    reference = {"location": "w.bin", "offset": "8", "length": "16"} | entries
    for key, value in reference.items():
        weight.external_data.add(key=key, value=value)
    return written(model, directory / "model.onnx")


def test_load_keeps_the_files_digest_and_constants(tmp_path: Path) -> None:
    model = load_model(written(add_model(), tmp_path / "add.onnx"))
    assert (model.name, model.opset, len(model.sha256)) == ("add.onnx", 17, 64)
    assert [i.name for i in model.inputs] == ["x"]
    np.testing.assert_array_equal(model.constants["w"], [0, 1, 2, 3])


def test_missing_file(tmp_path: Path) -> None:
    refused(lambda: load_model(tmp_path / "no.onnx"), "no.onnx", "No such file")


def test_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    data = add_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        refused(path, "cut.onnx")


# Opset 1 to 6 broadcast along an axis that is named.
OLD = "y = Add <axis = 0, broadcast = 1> (x, w)"


@pytest.mark.parametrize("listed", [True, False])
def test_a_model_of_an_old_opset_is_converted_with_a_note(listed: bool) -> None:
    inputs = "float[2,3] x" + (", float[2] w" if listed else "")
    text = f"({inputs}) => (float[2,3] y) {{ {OLD} }}"
    old = parsed(text, 6, 3 if listed else 4, w=np.array([10, 20], np.float32))
    old.metadata_props.add(key="model_checkpoint", value="kept")
    imported = import_model(old)
    assert imported.notes == ("converted from opset 6 to 13 by onnx",)
    assert imported.metadata.checkpoint == "kept"
    (found,) = evaluate(list(imported.outputs.values()), {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(found, [[10] * 3, [20] * 3])


def test_what_cannot_be_converted_is_refused() -> None:
    pad = "y = Pad <paddings = [0, 0, 0, 0, 0, 0, 0, 0]> (x)"
    old = parsed(f"(float[1,2,3,4] x) => (float[1,2,3,4] y) {{ {pad} }}", 1, 3)
    refused(lambda: from_proto(old), "opset 1 is older than 7", "for Pad")


def test_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    data = add_model().SerializeToString().replace(b"Add", b"A\xc7d")
    path = tmp_path / "name.onnx"
    path.write_bytes(data)
    refused(lambda: load_model(path), "name.onnx: a name in it is not UTF-8")


def test_external_data_beside_the_model_is_read(tmp_path: Path) -> None:
    model = load_model(external_model(tmp_path))
    np.testing.assert_array_equal(model.constants["w"], [0, 1, 2, 3])
    assert not model.constants["w"].flags.writeable  # a window of the file
    assert not model.proto.graph.initializer[0].external_data


def test_external_data_in_a_subdirectory_is_read(tmp_path: Path) -> None:
    path = external_model(tmp_path, location="data/w.bin")
    (tmp_path / "data").mkdir()
    (tmp_path / "w.bin").rename(tmp_path / "data" / "w.bin")
    np.testing.assert_array_equal(load_model(path).constants["w"], [0, 1, 2, 3])


OUTSIDE = (
    "../secret.bin",
    "sub/../../secret.bin",
    "{root}/secret.bin",
    "link.bin",
    "",
    "..\\s.bin",
)


@pytest.mark.parametrize(
    ("entries", "parts"),
    [
        *(({"location": where}, ["external data location"]) for where in OUTSIDE),
        ({"location": "other.bin"}, ["other.bin", "is missing"]),
        ({"location": "x" * 5000}, ["x...", "cannot be resolved"]),
        ({"location": "a\nb\x1b[1m"}, ["a?b?[1m", "is missing"]),
        ({"location": "."}, ["is missing"]),
        ({"location": "pipe"}, ["pipe", "is missing"]),
        ({"offset": "9"}, ["w.bin ends too early", "expected at least 25 bytes, found 24"]),
        ({"offset": "-8"}, ["offset must be a size in bytes"]),
        ({"offset": "9" * 30}, ["offset must be a size in bytes"]),
        ({"length": "12"}, ["needs 16 bytes", "found length 12"]),
        ({"length": "-1"}, ["length must be a size in bytes"]),
        ({"offset": str(2**62)}, ["offset must be a size in bytes"]),
        ({"offset": "1" + "0" * 17}, ["ends too early"]),
    ],
)
def test_external_data_that_does_not_fit_is_refused(
    tmp_path: Path, entries: dict[str, str], parts: list[str]
) -> None:
    for secret in ("secret.bin", "s.bin"):
        (tmp_path / secret).write_bytes(b"\0" * 64)
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    os.mkfifo(inside / "pipe")  # which nobody waits for
    placed = {key: text.format(root=tmp_path) for key, text in entries.items()}
    path = external_model(inside, **placed)
    refused(lambda: load_model(path), 'tensor "w"', *parts)


def test_external_data_of_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    path = external_model(tmp_path)
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].dims[:] = [2**40, 2**40]
    written(model, path)
    refused(lambda: load_model(path), "shape [1099511627776, 1099511627776] takes")


def test_external_data_at_an_odd_place_and_of_packed_elements_is_read(tmp_path: Path) -> None:
    model = onnx.load(external_model(tmp_path, offset="5"), load_external_data=False)
    values = np.array([[1, -2, 3]], np.float32).astype(ml_dtypes.int4)
    packed = numpy_helper.from_array(values, "packed")
    (tmp_path / "p.bin").write_bytes(packed.raw_data)
    packed.ClearField("raw_data")
    packed.data_location = TensorProto.EXTERNAL
    packed.external_data.add(key="location", value="p.bin")
    model.graph.initializer.append(packed)
    constants = load_model(written(model, tmp_path / "model.onnx")).constants
    expected = np.frombuffer((tmp_path / "w.bin").read_bytes()[5:21], np.float32)
    assert constants["w"].tobytes() == expected.tobytes()
    assert constants["w"].flags.aligned
    assert constants["packed"].astype(int).tolist() == [[1, -2, 3]]


def test_external_data_of_a_constant_node_is_read(tmp_path: Path) -> None:
    model = onnx.load(external_model(tmp_path), load_external_data=False)
    weight = model.graph.initializer.pop()
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], "value"))
    model.graph.node[0].attribute.append(helper.make_attribute("value", weight))
    path = written(model, tmp_path / "model.onnx")
    np.testing.assert_array_equal(values_of(path, x=np.ones(4))[0], [1, 2, 3, 4])


def test_external_data_of_a_model_in_memory_is_refused(tmp_path: Path) -> None:
    model = onnx.load(external_model(tmp_path), load_external_data=False)
    refused(lambda: from_proto(model), "load it by path")


UNSUPPORTED = f"""(float[5,1,3] x) => (float[n] y) <int64[1] k = {{1}}, float[1] w = {{0}}> {{
  ["/temporal/wobble"] "", h = Wobble(x, w)
  ["/head/odd"] a = Softmaxx(h)
  b, i = Qqqqqq(a, k)
  ["/head/fine"] c = Relu(b)
  ["/fused"] d = vendor.FusedMatMull(c, c)
  {" ".join(f"[top{i}] t{i}, u{i} = Qqqqqq(d, k)" for i in range(9))}
  ["/gelu"] y = vendor.Gelu(d)
}}"""


def test_all_unsupported_operators_are_named_at_once() -> None:
    model = from_proto(parsed(UNSUPPORTED), "odd.onnx")
    assert len(unsupported_nodes(model)) == 14
    with pytest.raises(UnsupportedOpError) as caught:
        import_model(model)
    text = str(caught.value)
    assert text.startswith("odd.onnx: 5 operators are not supported at opset 17: ")
    assert text.endswith("; replace them and export again")
    for part in (
        'Wobble (node "/temporal/wobble")',
        'Softmaxx (node "/head/odd"; nearest supported: Softmax)',
        'Qqqqqq (nodes "-> b", "top0", "top1", "top2", "top3", "top4", "top5", "top6" and 2 more)',
        f'vendor:FusedMatMull (node "/fused"; nearest supported: {CUSTOM_HINT})',
        'vendor:Gelu (node "/gelu"; nearest supported: Gelu of the default domain)',
    ):
        assert part in text


@pytest.mark.parametrize(
    ("op", "nearest"),
    [
        ("Softmaxx", "Softmax"),
        ("relu", "Relu"),
        ("Foo", ""),  # three letters of five are not Floor
        ("Bernoulli", ""),
        ("Unique", ""),  # an operator of ONNX: no other one does what it does
        ("acme:Foo", CUSTOM_HINT),
        ("acme:Floors", CUSTOM_HINT),  # of another domain: whatever it does, its name does not say
        ("acme:Gelu", "Gelu of the default domain"),
        ("acme:FusedMatMul", "com.microsoft:FusedMatMul"),
        ("SequenceMap", "Loop, or the operator written out for each element"),
    ],
)
def test_only_what_is_near_is_named_as_near(op: str, nearest: str) -> None:
    assert nearest_form(op) == nearest


def test_random_operator_is_not_a_constant() -> None:
    text = "() => (float[4] y) { [noise] y = RandomNormal <shape = [4]> () }"
    with pytest.raises(UnsupportedOpError, match=r'RandomNormal \(node "noise"'):
        import_model(parsed(text))


def test_unsupported_operators_of_several_models_are_listed_together() -> None:
    def model(name: str, op: str) -> OnnxModel:
        text = f"(float[4] x) => (float[4] y) {{ [{name}_node] y = vendor.{op}(x) }}"
        return from_proto(parsed(text), name)

    with pytest.raises(UnsupportedOpError) as caught:
        check_supported(model("first", "Frob"), model("second", "Twist"))
    parts = ("first", "Frob", "first_node", "second", "Twist", "second_node")
    assert all(part in str(caught.value) for part in parts)


def test_endless_range_is_refused() -> None:
    weights = "<int64 a = {0}, int64 b = {400000000}, int64 c = {1}>"
    with pytest.raises(ModelError, match=r"count.*400000000 elements"):
        import_model(parsed(f"() => (int64[n] r) {weights} {{ [count] r = Range(a, b, c) }}"))
