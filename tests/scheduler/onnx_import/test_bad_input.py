"""Models that break the rules of the format: one clear line that says where and what."""

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from scheduler.onnx_import import TRANSLATORS, from_proto
from tests.scheduler.onnx_import.onnx_models import (
    FLOAT,
    Array,
    Port,
    model_of,
    node,
    parsed,
    refused,
    values_of,
)
from tools.cli import main

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
    "onnxtext": (b'<\n  ir_version: 8, opset_import: ["" : 17]\n>\nnet (float x)', "text syntax"),
    "zeros": (b"\0" * 4096, "zeros"),
    "empty": (b"", "empty file"),
    "words": (b"hello, world", "invalid protobuf"),
    "pickle of protocol 5": (b"\x80\x05}\x94.", ""),
    "graph missing": (b"\x08\x08", ""),
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
    refused(tmp_path / "pipe.onnx", "found no regular file")


def opsets(*listed: tuple[str, int]) -> dict[str, Any]:
    return {"opset_imports": [helper.make_opsetid(*one) for one in listed]}


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"ir_version": 0}, ["IR version 3 to", "found none"]),
        ({"ir_version": 99}, ["found 99", "another version of onnx"]),
        (opsets(("vendor", 1)), ["one opset", "found none"]),
        (opsets(("", 13), ("ai.onnx", 17)), ["one opset of the default domain", "[13, 17]"]),
        (opsets(("", 0)), ["expected opset 1 to", "found 0"]),
        (opsets(("", -1)), ["opset 1 to", "found -1"]),
        (opsets(("", 1000)), ["expected opset 1 to", "found 1000"]),
        (opsets(("", 2**40)), ["opset 1 to"]),
    ],
)
def test_a_version_that_is_not_read(options: dict[str, Any], parts: list[str]) -> None:
    refused(model_of([node("Relu", "x", "y")], **options), *parts)


def test_the_default_domain_may_be_listed_under_both_names() -> None:
    both = opsets(("", 17), ("ai.onnx", 17), ("vendor", 3))
    model = model_of([node("Relu", "x", "y")], **both)
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [0, 0, 1, 2])


def _attribute_twice() -> onnx.ModelProto:
    broken = node("LeakyRelu", "x", "y", "n", alpha=0.5)
    broken.attribute.append(broken.attribute[0])
    return model_of([broken])


def _functions(count: int, closed: int) -> onnx.ModelProto:
    """Return a model whose functions each call the next one twice; the last calls the first."""
    own = opsets(("", 17), ("own", 1))
    model = model_of([helper.make_node("f0", ["x"], ["y"], domain="own")], **own)
    for i in range(count):
        called = f"f{(i + 1) % count}"
        last = i == count - 1 and not closed
        body = [
            helper.make_node("Relu" if last else called, [a], [b], domain="" if last else "own")
            for a, b in (("a", "m"), ("m", "b"))
        ]
        listed = own["opset_imports"]
        model.functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], body, listed))
    return model


def _relu(
    inputs: Sequence[Port] = (("x", [4]),), outputs: Sequence[Port] = (("y", [4]),)
) -> onnx.ModelProto:
    return model_of([node("Relu", inputs[0][0], "y")], inputs, outputs)


# Nodes in text, between x and y, and what is said of them.
BROKEN_NODES = {
    "two makers": ("[a] y = Relu(x) [b] y = Abs(x)", 'node "b" (Abs) ... "y" is already defined'),
    "maker of an input": ("[a] x = Relu(x) y = Abs(x)", 'node "a" ... "x" is already defined'),
    "maker of a weight": ("[a] w = Relu(x) y = Abs(w)", 'node "a" ... "w" is already defined'),
    "cycle": (
        "[first] a = Add(x, c) [second] b = Relu(a) [third] c = Abs(b) [after] y = Neg(c)",
        'in a cycle ... "first" -> "second" ... "third" -> "first"',
    ),
    "own output": ("[self] y = Add(x, y)", 'in a cycle ... "self" -> "self"'),
    "gone": ("[sum] y = Add(x, gone)", '"sum" (Add) ... input "gone" is not a node output'),
    "output from nowhere": ("z = Relu(x)", 'output "y" is computed by no node'),
    "unknown attribute": ("y = Relu <colour = 3> (x)", "net: not a valid ONNX model ... colour"),
    "text": ('y = LeakyRelu <alpha = "steep"> (x)', "not a valid ONNX model ... alpha"),
    "endless stride": (
        "[p] y = MaxPool <kernel_shape = [2], strides = [4611686018427387904]> (x)",
        'node "p" (MaxPool) ... strides [4611686018427387904]: expected 1 to 65536',
    ),
    "scale of 0": (
        "s = Constant <value_float = 0.0> () [q] y = QuantizeLinear(x, s)",
        'node "q" (QuantizeLinear ... scale (input 1): expected finite ... found 0; quantize',
    ),
    "scale that is no number": (
        """s = Constant <value = float[2] {1, inf}> () z = Constant <value = int8[2] {0, 1}> ()
        q = Constant <value = int8[2,2] {1, 2, 3, 4}> () [d] y = DequantizeLinear(q, s, z)""",
        'node "d" ... expected finite numbers, found inf; quantize',
    ),
    "scale of integers": (
        "s = Constant <value_int = 1> () [q] y = QuantizeLinear(x, s)",
        'node "q" ... scale (input 1): expected floats, found int64',
    ),
    "zero point of wide integers": (
        """s = Constant <value_float = 1.0> () z = Constant <value = int32 {3}> ()
        [q] y = QuantizeLinear(x, s, z)""",
        'node "q" ... zero point (input 2): expected integers of 16 bits or less, found int32',
    ),
    "zero point of another type": (
        """q, s, z = DynamicQuantizeLinear(x) b = Constant <value = int8 {1}> ()
        [d] y = MatMulInteger(q, q, b)""",
        'node "d" (MatMulInteger ... (input 2): expected uint8 as input 0 has, found int8',
    ),
    "scales of another count": (
        "s = Constant <value_floats = [1.0, 2.0]> () [q] y = QuantizeLinear <axis = -1> (x, s)",
        'node "q" ... or one for each of 4 along axis 0, found 2',
    ),
    "axis of scales": (
        "s = Constant <value_floats = [1.0, 2.0]> () [q] y = QuantizeLinear <axis = -2> (x, s)",
        'node "q" ... axis -2 is out of range for a tensor of 1 axes',
    ),
    "endless parts": (
        "[s] y, z = Split <num_outputs = 4611686018427387904> (x)",
        'node "s" (Split) ... num_outputs',
    ),
}
BROKEN: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "output twice": (lambda: _relu(outputs=[("y", [4])] * 2), 'output "y" is listed twice'),
    "input twice": (lambda: _relu([("x", [4])] * 2), 'input "x" is listed twice'),
    "output without a name": (lambda: _relu(outputs=[("", [4])]), "output 0 has no name"),
    "no outputs": (lambda: _relu(outputs=[]), "has no outputs"),
    "no operator": (lambda: model_of([node("", "x", "y", "n")]), 'node "n" ... no operator'),
    "attribute twice": (_attribute_twice, 'node "n" ... given twice ... alpha'),
    "huge input": (lambda: _relu([("x", [2**40] * 2)]), 'input "x" ... takes 4.84e+24 bytes'),
    "rank": (lambda: _relu([("x", [1] * 17)]), 'input "x": 17 axes, at most 16'),
    "ports": (lambda: _relu([(f"i{i}", [1]) for i in range(4097)]), "4097 inputs, at most 4096"),
    "function calls itself": (lambda: _functions(1, 1), '"f0" calls itself'),
    "functions in a circle": (lambda: _functions(3, 1), "calls itself"),
    "endless functions": (lambda: _functions(30, 0), "expand to more than"),
}
IO = "(float[4] x) => (float[4] y)"


@pytest.mark.parametrize("kind", [*BROKEN, *BROKEN_NODES])
def test_a_broken_graph_is_refused(kind: str) -> None:
    if kind in BROKEN:
        make, says = BROKEN[kind]
        model = make()
    else:
        nodes, says = BROKEN_NODES[kind]
        weight = "<float[1] w = {1}>" if kind == "maker of a weight" else ""
        model = parsed(f"{IO} {weight} {{ {nodes} }}")
    refused(model, "net: ", *says.split(" ... "))


def test_nodes_in_any_order_are_sorted() -> None:
    nodes = [node("Neg", "b", "y"), node("Add", "a x", "b"), node("Relu", "x", "a")]
    model = model_of(nodes)
    before = model.SerializeToString()
    loaded = from_proto(model)
    assert [n.op_type for n in loaded.proto.graph.node] == ["Relu", "Add", "Neg"]
    assert loaded.notes == ("nodes were not in topological order; sorted",)
    assert model.SerializeToString() == before
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [1, 0, -2, -4])
    assert from_proto(model_of(nodes[::-1])).notes == ()


def test_nodes_that_a_branch_reads_come_before_it() -> None:
    then, otherwise = (f"g () => (float[4] r) {{ r = {op}(late) }}" for op in ("Neg", "Abs"))
    taken = f"y = If <then_branch = {then}, else_branch = {otherwise}> (flag)"
    model = parsed(f"{IO} <bool flag = {{1}}> {{ {taken} late = Relu(x) }}")
    assert [n.op_type for n in from_proto(model).proto.graph.node] == ["Relu", "If"]
    np.testing.assert_array_equal(values_of(model, x=[-1, 0, 1, 2])[0], [0, 0, -1, -2])


def test_graphs_too_deep_inside_of_others_are_refused() -> None:
    output = helper.make_tensor_value_info("y", FLOAT, [4])
    graph = plain = helper.make_graph([node("Relu", "x", "y")], "g", [], [output])
    for _ in range(20):
        inner = node("If", "flag", "y", then_branch=graph, else_branch=plain)
        graph = helper.make_graph([inner], "g", [], [output])
    model = model_of([graph.node[0]], weights={"flag": np.array(True)})
    refused(model, "graphs are nested more than")


def floats(*dims: int, **data: Any) -> TensorProto:
    given: dict[str, Any] = {"data_type": 1, "dims": dims} | data
    return TensorProto(name="w", **given)


@pytest.mark.parametrize(
    ("tensor", "parts"),
    [
        (floats(4, raw_data=b"\0" * 12), ["needs 16 bytes", "12"]),
        (floats(4, float_data=[1.0]), ["needs 4 values", "1"]),
        (floats(3, data_type=10, raw_data=b"\0" * 12), ["needs 6 bytes"]),
        (floats(3, data_type=16, raw_data=b"\0" * 3), ["needs 6 bytes"]),
        (floats(3, data_type=22, raw_data=b"\0" * 3), ["needs 2 bytes"]),
        (floats(-1, raw_data=b""), ["negative"]),
        (floats(2**62, 4, raw_data=b""), ["takes 7.38e+19"]),
        (floats(*[1] * 65, float_data=[1]), ["65 axes"]),
        (floats(2, data_type=8, string_data=[b"a"]), ["needs 2 texts"]),
        (floats(1, data_type=77, raw_data=b"\0"), ["element type 77"]),
        (floats(1, data_type=0, raw_data=b"\0"), ["element type"]),
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


SEVEN_NINE = numpy_helper.from_array(np.array([7, 9], np.float32), "w")


def with_sparse(shape: list[int], dims: list[int], places: Array) -> onnx.ModelProto:
    """Return x + w, w of two elements at places."""
    model = model_of([node("Add", "x w", "y")], [("x", shape)], [("y", shape)])
    indices = numpy_helper.from_array(places, "i")
    sparse = onnx.SparseTensorProto(values=SEVEN_NINE, indices=indices, dims=dims)
    model.graph.sparse_initializer.append(sparse)
    return model


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]], ids=["linear", "coordinates"])
def test_sparse_initializers_are_made_dense(places: Any) -> None:
    model = with_sparse([2, 3], [2, 3], np.array(places))
    assert [value.name for value in from_proto(model).inputs] == ["x"]
    np.testing.assert_array_equal(values_of(model, x=np.ones((2, 3)))[0], [[1, 8, 1], [1, 1, 10]])


@pytest.mark.parametrize(
    ("dims", "places", "part"),
    [
        ([2, 3], [1, 6], "outside shape"),
        ([2, 3], [-1, 5], "outside shape"),
        ([2, 3], [1], "indices of shape [1]"),
        ([2, 3], [[0, 1, 0], [1, 1, 0]], "for a tensor of 2 axes"),
        ([2, 3], [1.0, 2.0], "not int64"),
        ([2**20, 2**20], [1, 5], "made dense"),
    ],
)
def test_sparse_initializers_that_do_not_fit(dims: list[int], places: Any, part: str) -> None:
    refused(with_sparse([4], dims, np.array(places)), 'initializer "w"', part)


def test_booleans_are_true_or_false_whatever_their_bytes() -> None:
    flags = TensorProto(name="f", data_type=TensorProto.BOOL, dims=[4], raw_data=b"\0\x01\x02\xff")
    model = model_of([node("Where", "f x z", "y")], weights={"z": np.zeros(4, np.float32)})
    model.graph.initializer.append(flags)
    np.testing.assert_array_equal(values_of(model, x=[1, 2, 3, 4])[0], [0, 2, 3, 4])


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
    path = str(tmp_path / "m.onnx")
    branch = "branch () => (float[4] r) { [inside] r = Relu(x) }"
    choose = f"[choose] y = If <then_branch = {branch}, else_branch = {branch}> (flag)"
    onnx.save(parsed(f"{IO} <bool flag = {{1}}> {{ {choose} }}"), path)
    for command in (["compile", path, "--plain", "-o", f"{tmp_path}/m.pkl"], ["inspect", path]):
        assert main(command) == 1
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
