"""Models that break the rules of the format: one clear line that says where and what."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from scheduler.onnx_import import TRANSLATORS, from_proto
from tests.scheduler.onnx_import.onnx_models import FLOAT, model_of, node, refused, values_of
from tools.cli import main

Array = NDArray[Any]

# --- files that are something else ----------------------------------------------------------------

WRAPPED = {
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS"),
    "html": (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "web page"),
    "tflite": (b"\x1c\0\0\0TFL3" + b"\0" * 40, "TensorFlow Lite"),
    "ort": (b"\x1c\0\0\0ORTM" + b"\0" * 40, "ORT format"),
    "gzip": (b"\x1f\x8b\x08\0" + b"\0" * 40, "gzip"),
    "pickle": (b"\x80\x02}q\x00.", "pickle"),
    "safetensors": (b"\x40\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "safetensors"),
    "json": (b'{"irVersion": "8", "graph": {}}', "JSON"),
    "text": (b'ir_version: 8\ngraph {\n  name: "net"\n}\n', "text format"),
    "onnxtext": (
        b'<\n  ir_version: 8,\n  opset_import: ["" : 17]\n>\nnet (float x)',
        "text syntax",
    ),
    "zeros": (b"\0" * 4096, "zeros"),
    "empty": (b"", "empty file"),
    "words": (b"hello, world", "no valid protobuf"),
}


@pytest.mark.parametrize("kind", WRAPPED)
def test_a_file_of_another_kind_is_called_by_its_name(tmp_path: Path, kind: str) -> None:
    data, what = WRAPPED[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    refused(path, "model.onnx: expected an ONNX model, found", what)


def test_archives_folders_and_pipes_are_no_models(tmp_path: Path) -> None:
    archive = tmp_path / "zipped.onnx"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model.onnx", b"\x08\x08")
    refused(archive, "a zip archive")
    refused(tmp_path, "cannot be read (Is a directory)")
    os.mkfifo(tmp_path / "pipe.onnx")
    refused(tmp_path / "pipe.onnx", "found no plain file")


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"ir_version": 0}, ["IR version 3 to", "found none"]),
        ({"ir_version": 99}, ["found 99", "another version of onnx"]),
        ({"opset_imports": [helper.make_opsetid("vendor", 1)]}, ["one opset", "found none"]),
        (
            {"opset_imports": [helper.make_opsetid("", 13), helper.make_opsetid("ai.onnx", 17)]},
            ["one opset of the default domain", "[13, 17]"],
        ),
        ({"opset_imports": [helper.make_opsetid("", 0)]}, ["opset 1 to", "found 0"]),
        ({"opset_imports": [helper.make_opsetid("", -1)]}, ["opset 1 to", "found -1"]),
        ({"opset_imports": [helper.make_opsetid("", 2**40)]}, ["opset 1 to"]),
    ],
)
def test_a_version_that_is_not_read(options: dict[str, Any], parts: list[str]) -> None:
    refused(model_of([node("Relu", "x", "y")], **options), *parts)


def test_the_default_domain_may_be_listed_under_both_names() -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx", 17)]
    opsets.append(helper.make_opsetid("vendor", 3))
    model = model_of([node("Relu", "x", "y")], opset_imports=opsets)
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [0, 0, 1, 2])


# --- structure ------------------------------------------------------------------------------------


def _attribute_twice() -> onnx.ModelProto:
    broken = node("LeakyRelu", "x", "y", "n", alpha=0.5)
    broken.attribute.append(broken.attribute[0])
    return model_of([broken])


def _functions(count: int, closed: int) -> onnx.ModelProto:
    """Return a model whose functions each call the next one twice; the last calls the first."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = model_of([helper.make_node("f0", ["x"], ["y"], domain="own")], opset_imports=opsets)
    for i in range(count):
        called = f"f{(i + 1) % count}"
        last = i == count - 1 and not closed
        body = [
            helper.make_node("Relu" if last else called, [a], [b], domain="" if last else "own")
            for a, b in (("a", "m"), ("m", "b"))
        ]
        model.functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], body, opsets))
    return model


BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto], list[str]]] = {
    "two makers": (
        lambda: model_of([node("Relu", "x", "y", "a"), node("Abs", "x", "y", "b")]),
        ['node "b" (Abs)', '"y" is already defined'],
    ),
    "maker of an input": (
        lambda: model_of([node("Relu", "x", "x", "a"), node("Abs", "x", "y", "b")]),
        ['node "a"', '"x" is already defined'],
    ),
    "maker of a weight": (
        lambda: model_of([node("Relu", "x", "w", "a"), node("Abs", "w", "y")], weights={"w": [1]}),
        ['node "a"', '"w" is already defined'],
    ),
    "cycle": (
        lambda: model_of(
            [
                node("Add", "x c", "a", "first"),
                node("Relu", "a", "b", "second"),
                node("Abs", "b", "c", "third"),
                node("Neg", "c", "y", "after"),
            ]
        ),
        ["in a cycle", '"first" -> "second"', '"third" -> "first"'],
    ),
    "own output": (
        lambda: model_of([node("Add", "x y", "y", "self")]),
        ["in a cycle", '"self" -> "self"'],
    ),
    "input from nowhere": (
        lambda: model_of([node("Add", "x gone", "y", "sum")]),
        ['node "sum" (Add)', 'input "gone" is computed by no node'],
    ),
    "output from nowhere": (
        lambda: model_of([node("Relu", "x", "z")]),
        ['output "y" is computed by no node'],
    ),
    "output twice": (
        lambda: model_of([node("Relu", "x", "y")], outputs=[("y", [4]), ("y", [4])]),
        ['output "y" is listed twice'],
    ),
    "input twice": (
        lambda: model_of([node("Relu", "x", "y")], inputs=[("x", [4]), ("x", [4])]),
        ['input "x" is listed twice'],
    ),
    "output without a name": (
        lambda: model_of([node("Relu", "x", "y")], outputs=[("", [4])]),
        ["output 0 has no name"],
    ),
    "no outputs": (lambda: model_of([node("Relu", "x", "y")], outputs=[]), ["has no outputs"]),
    "no operator": (lambda: model_of([node("", "x", "y", "n")]), ['node "n"', "no operator"]),
    "attribute twice": (_attribute_twice, ['node "n"', "given twice", "alpha"]),
    "attribute of another type": (
        lambda: model_of([node("LeakyRelu", "x", "y", alpha="steep")]),
        ["alpha", "not a valid ONNX model"],
    ),
    "endless stride": (
        lambda: model_of([node("MaxPool", "x", "y", "p", kernel_shape=[2], strides=[2**62])]),
        ['node "p" (MaxPool)', "strides [4611686018427387904]: expected 1 to 65536"],
    ),
    "endless parts": (
        lambda: model_of([node("Split", "x", "y z", "s", num_outputs=2**62)]),
        ['node "s" (Split)', "num_outputs"],
    ),
    "huge input": (
        lambda: model_of([node("Relu", "x", "y")], inputs=[("x", [2**40, 2**40])]),
        ['input "x"', "takes 4.84e+24 bytes"],
    ),
    "rank": (
        lambda: model_of([node("Relu", "x", "y")], inputs=[("x", [1] * 17)]),
        ['input "x": 17 axes, at most 16'],
    ),
    "ports": (
        lambda: model_of([node("Relu", "i0", "y")], inputs=[(f"i{i}", [1]) for i in range(4097)]),
        ["4097 inputs, at most 4096"],
    ),
    "function calls itself": (lambda: _functions(1, 1), ['"f0" calls itself']),
    "functions in a circle": (lambda: _functions(3, 1), ["calls itself"]),
    "endless functions": (lambda: _functions(30, 0), ["unfold to more than"]),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_graph_is_refused(kind: str) -> None:
    make, parts = BROKEN[kind]
    refused(make(), "net: ", *parts)


def test_nodes_in_any_order_are_sorted() -> None:
    nodes = [node("Neg", "b", "y"), node("Add", "a x", "b"), node("Relu", "x", "a")]
    model = model_of(nodes)
    before = model.SerializeToString()
    loaded = from_proto(model)
    assert [n.op_type for n in loaded.proto.graph.node] == ["Relu", "Add", "Neg"]
    assert loaded.notes == ("nodes were not in the order in which they compute; sorted",)
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [1, 0, -2, -4])
    assert from_proto(model_of(nodes[::-1])).notes == ()


def test_nodes_that_a_branch_reads_come_before_it() -> None:
    def branch(op: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(op, FLOAT, [4])
        return helper.make_graph([node(op, "late", op)], op, [], [output])

    taken = node("If", "flag", "y", then_branch=branch("Neg"), else_branch=branch("Abs"))
    model = model_of([taken, node("Relu", "x", "late")], weights={"flag": np.array(True)})
    assert [n.op_type for n in from_proto(model).proto.graph.node] == ["Relu", "If"]
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [0, 0, -1, -2])


def test_graphs_too_deep_inside_of_others_are_refused() -> None:
    output = helper.make_tensor_value_info("y", FLOAT, [4])
    plain = helper.make_graph([node("Relu", "x", "y")], "g", [], [output])
    graph = plain
    for _ in range(20):
        inner = node("If", "flag", "y", then_branch=graph, else_branch=plain)
        graph = helper.make_graph([inner], "g", [], [output])
    model = model_of([graph.node[0]], weights={"flag": np.array(True)})
    refused(model, "deep inside of others")


# --- initializers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "parts"),
    [
        (
            TensorProto(name="w", data_type=1, dims=[4], raw_data=b"\0" * 12),
            ["needs 16 bytes", "12"],
        ),
        (TensorProto(name="w", data_type=1, dims=[4], float_data=[1.0]), ["needs 4 values", "1"]),
        (TensorProto(name="w", data_type=10, dims=[3], raw_data=b"\0" * 12), ["needs 6 bytes"]),
        (TensorProto(name="w", data_type=16, dims=[3], raw_data=b"\0" * 3), ["needs 6 bytes"]),
        (TensorProto(name="w", data_type=22, dims=[3], raw_data=b"\0" * 3), ["needs 2 bytes"]),
        (TensorProto(name="w", data_type=1, dims=[-1], raw_data=b""), ["negative"]),
        (TensorProto(name="w", data_type=1, dims=[2**62, 4], raw_data=b""), ["takes 7.38e+19"]),
        (TensorProto(name="w", data_type=1, dims=[1] * 65, float_data=[1]), ["65 axes"]),
        (TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]), ["needs 2 texts"]),
        (TensorProto(name="w", data_type=77, dims=[1], raw_data=b"\0"), ["element type 77"]),
        (TensorProto(name="w", data_type=0, dims=[1], raw_data=b"\0"), ["element type"]),
    ],
)
def test_an_initializer_whose_data_does_not_fit(tensor: TensorProto, parts: list[str]) -> None:
    model = model_of([node("Add", "x w", "y")])
    model.graph.initializer.append(tensor)
    refused(model, 'initializer "w"', *parts)
    constant = model_of([node("Constant", "", "w", value=tensor), node("Add", "x w", "y")])
    refused(constant, 'tensor "w"', *parts)


def test_initializers_need_names_of_their_own() -> None:
    model = model_of([node("Add", "x w", "y")], weights={"w": np.ones(4, np.float32)})
    model.graph.initializer.append(model.graph.initializer[0])
    refused(model, 'initializer "w" occurs twice')
    model.graph.initializer[1].name = ""
    refused(model, "has no name")


@pytest.mark.parametrize("linear", [True, False], ids=["linear", "coordinates"])
def test_sparse_initializers_are_made_dense(linear: bool) -> None:
    places = np.array([1, 5]) if linear else np.array([[0, 1], [1, 2]])
    values = numpy_helper.from_array(np.array([7, 9], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "i"), [2, 3])
    model = model_of([node("Add", "x w", "y")], [("x", [2, 3])], [("y", [2, 3])])
    model.graph.sparse_initializer.append(sparse)
    assert [value.name for value in from_proto(model).inputs] == ["x"]
    found = values_of(model, x=np.ones((2, 3)))[0]
    np.testing.assert_array_equal(found, [[1, 8, 1], [1, 1, 10]])


@pytest.mark.parametrize(
    ("dims", "places", "part"),
    [
        ([2, 3], np.array([1, 6]), "outside of shape"),
        ([2, 3], np.array([-1, 5]), "outside of shape"),
        ([2, 3], np.array([1]), "indices of shape [1]"),
        ([2, 3], np.array([[0, 1, 0], [1, 1, 0]]), "for a tensor of 2 axes"),
        ([2, 3], np.array([1.0, 2.0]), "no int64"),
        ([2**20, 2**20], np.array([1, 5]), "made dense"),
    ],
)
def test_sparse_initializers_that_do_not_fit(dims: list[int], places: Array, part: str) -> None:
    values = numpy_helper.from_array(np.array([7, 9], np.float32), "w")
    model = model_of([node("Add", "x w", "y")])
    indices = numpy_helper.from_array(places, "i")
    model.graph.sparse_initializer.append(
        onnx.SparseTensorProto(values=values, indices=indices, dims=dims)
    )
    refused(model, 'initializer "w"', part)


def test_booleans_are_true_or_false_whatever_their_bytes() -> None:
    flags = TensorProto(name="f", data_type=TensorProto.BOOL, dims=[4], raw_data=b"\0\x01\x02\xff")
    model = model_of([node("Where", "f x z", "y")], weights={"z": np.zeros(4, np.float32)})
    model.graph.initializer.append(flags)
    np.testing.assert_array_equal(values_of(model, x=[1, 2, 3, 4])[0], [0, 2, 3, 4])


# --- defects of ours ------------------------------------------------------------------------------


@pytest.mark.parametrize("defect", [AssertionError("no"), AttributeError("shap"), NameError("x")])
def test_a_defect_of_a_translator_is_no_fault_of_the_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    defect: Exception,
) -> None:
    def translate(_: object) -> None:
        raise defect

    monkeypatch.setitem(cast(dict[str, Any], TRANSLATORS), "Relu", translate)
    path = tmp_path / "m.onnx"
    result = helper.make_tensor_value_info("r", FLOAT, [4])
    branch = helper.make_graph([node("Relu", "x", "r", "inside")], "branch", [], [result])
    choose = node("If", "flag", "y", "choose", then_branch=branch, else_branch=branch)
    onnx.save(model_of([choose], weights={"flag": True}), path)
    for command in ("compile", "inspect"):
        options = ["--plain", "-o", str(tmp_path / "m.pkl")] if command == "compile" else []
        assert main([command, str(path), *options]) == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        for part in ('m.onnx: node "choose/branch/inside" (Relu', "defect", str(defect)):
            assert part in message


def test_what_a_model_does_wrong_is_a_fault_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of([node("DepthToSpace", "x", "y", "it", blocksize=2)]), path)
    assert main(["compile", str(path), "--plain", "-o", str(tmp_path / "m.pkl")]) == 4
    message = capsys.readouterr().err
    assert 'node "it"' in message
    assert "do not fit the operator" in message
    assert "defect" not in message
