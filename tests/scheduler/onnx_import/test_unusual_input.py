"""Models that are unusual but right: no elements, no nodes, strange names, special values."""

import re
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from scheduler.compile import compile_plain
from scheduler.onnx_import import from_proto, import_model
from tests.scheduler.onnx_import.onnx_models import (
    compiled,
    model_of,
    node,
    ort_results,
    parsed,
    values_of,
)
from tests.support.selection import quick_cases
from tools.cli import main

SPECIAL = np.array([np.nan, np.inf, -np.inf, 1e-42, -0.0, 3e38], np.float32)


@pytest.mark.opencl
def test_outputs_may_be_inputs_initializers_and_one_value_twice() -> None:
    model = model_of(
        [node("Relu", "x", "r"), node("Identity", "r", "again"), node("Identity", "x", "same")],
        [("x", [4]), ("unused", [3])],
        [(n, None) for n in ("x", "w", "r", "again", "same", "scalar")],
        {"w": SPECIAL, "scalar": np.float32(3)},
    )
    model.graph.output[3].ClearField("type")
    x = np.array([-1, 0, 1, 2], np.float32)
    found = compiled(model, x=x, unused=np.zeros(3))
    expected = {"x": x, "w": SPECIAL, "r": np.maximum(x, 0), "again": np.maximum(x, 0), "same": x}
    assert list(found) == [*expected, "scalar"]
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)
    assert found["scalar"].shape == ()
    assert found["scalar"] == 3


@pytest.mark.opencl
def test_a_graph_without_nodes_passes_its_inputs_on() -> None:
    found = compiled(model_of([], [("x", [])], [("x", [])]), x=5.0)
    assert found["x"].shape == ()
    assert found["x"] == 5


def test_outputs_that_nobody_wants_have_no_name() -> None:
    model = model_of([node("Split", "x", " y", axis=0)], outputs=[("y", [2])])
    np.testing.assert_array_equal(values_of(model, x=[1, 2, 3, 4])[0], [3, 4])


NOTHING = {
    "part of a join": "(float[0,3] a, float[2,3] b) => (float[2,3] y) { y = Concat<axis=0>(a, b) }",
    "middle": """(float[2,3] b) => (float[2,3] y, float[0,3] still) <int64[1] one = {1}> {
      none = Slice(b, one, one)
      still = Relu(none)
      y = Concat <axis = 0> (still, b)
    }""",
    "other shape": """(float[0,4] a) => (float[0,3] y) <int64[2] s = {0, 3}> {
      y = Reshape(a, s)
    }""",
    "sum and largest": """(float[0,4] a) => (float[4] y, float[1,4] z) <int64[1] s = {0}> {
      y = ReduceSum <keepdims = 0> (a, s)
      z = ReduceProd <axes = [0]> (a)
    }""",
    "product over nothing": """(float[3,0] a, float[0,4] b, float[4] c) => (float[3,4] y) {
      p = MatMul(a, b)
      y = Add(p, c)
    }""",
    "product of nothing": "(float[0,3] a, float[3,4] b) => (float[0,4] y) { y = MatMul(a, b) }",
    "padding only": """(float[0,4] a) => (float[2,4] y)
    <int64[4] p = {1, 0, 1, 0}, float v = {7}> { y = Pad(a, p, v) }""",
    "some outputs": """(float[0,4] a, float[2] b)
    => (float[0,4] y, float[2] z, float[0,2] w, float[0,4] a) <float[0,2] w = {}> {
      y = Relu(a)
      z = Neg(b)
    }""",
    "nothing at all": "(float[0,4] a) => (float[0,4] y) { y = Relu(a) }",
    "convolution": """(float[0,3,8,8] a) => (float[0,4,6,6] y) <int64[4] s = {4, 3, 3, 3}> {
      w = ConstantOfShape <value = float[1] {1}> (s)
      y = Conv(a, w)
    }""",
    "softmax": "(float[0,3] a) => (float[0,3] y) { y = Softmax(a) }",
}


@pytest.mark.opencl
@pytest.mark.parametrize("kind", quick_cases(NOTHING, "middle", "some outputs"))
def test_tensors_without_elements_are_computed(kind: str) -> None:
    model = parsed(NOTHING[kind])
    rng = np.random.default_rng(5)
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
    found = compiled(model, **feeds)
    # onnxruntime refuses to return what it was given.
    asked = [o.name for o in model.graph.output if o.name not in feeds and o.name != "w"]
    for name, want in zip(asked, ort_results(model, feeds, asked), strict=True):
        assert found[name].shape == want.shape
        np.testing.assert_allclose(found[name], want, rtol=1e-5)
    assert list(found) == [o.name for o in model.graph.output]


@pytest.mark.slow
@pytest.mark.opencl
def test_a_symbolic_size_may_be_nothing() -> None:
    model = model_of([node("ReduceSum", "x", "y")], [("x", [0, "n"])], [("y", [1, 1])])
    assert import_model(model).inputs["x"].shape == (0, 1)
    assert compiled(model, x=np.zeros((0, 1)))["y"].tolist() == [[0.0]]


@pytest.mark.opencl
def test_exec_reads_and_writes_arrays_without_elements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, artifact, arrays = (tmp_path / n for n in ("m.onnx", "m.pkl", "in.npz"))
    model.write_bytes(parsed(NOTHING["some outputs"]).SerializeToString())
    assert main(["compile", str(model), "-o", str(artifact)]) == 0
    np.savez(arrays, a=np.zeros((0, 4), np.float32), b=np.array([1, 2], np.float32))
    command = ["exec", str(artifact), "--inputs", str(arrays), "--outputs"]
    assert main([*command, str(tmp_path / "out.npz")]) == 0
    found = np.load(tmp_path / "out.npz")
    assert {n: found[n].shape for n in found} == {"y": (0, 4), "z": (2,), "w": (0, 2), "a": (0, 4)}
    assert found["z"].tolist() == [-1, -2]
    capsys.readouterr()


# What would end a comment, a line or a literal of OpenCL C, were it to get there as it is.
NAMES = (
    "*/ #error escaped /*",
    "*\\\n/ #error spliced",
    "*??/\n/ #error trigraph",
    "line\n#error line",
    'quote" \'"; #error',
    "nul\0nul",
    "%s%n{}{0}",
    "\u202e\u4f60\u597d \U0001f600",
    "// line comment \\",
    "a" * 70_000,
    "a" * 70_001,
    "../../etc/passwd",
)


@pytest.mark.opencl
def test_names_never_reach_the_compiler_of_kernels_as_code() -> None:
    nodes, previous = [], "x"
    for i, name in enumerate(NAMES):
        # Tanh cannot be merged with its like: each node has a share in some kernel.
        nodes.append(helper.make_node("Tanh", [previous], [f"{name}.{i}"], name=name))
        previous = f"{name}.{i}"
    nodes.append(helper.make_node("ReduceSum", [previous], ["sum\n*/"], name="*/", keepdims=1))
    model = model_of(nodes, [("x", [4])], [(f"{NAMES[0]}.0", [4]), ("sum\n*/", [1])])
    loaded = from_proto(model)
    made = compile_plain(loaded)
    for program in made.manifest["programs"]:
        bare = re.sub(r"/\*.*?\*/", "", program["source"], flags=re.DOTALL)
        assert not re.search(r"escaped|spliced|trigraph|#error|passwd", bare)
        assert not any("#error" in line.split("/*")[0] for line in bare.splitlines())
    assert all(len(o) < 200 for k in made.manifest["kernels"] for o in k["origin"])
    x = np.array([0.5, -1, 2, 0], np.float32)
    found = compiled(model, x=x)
    want = x.astype(np.float64)
    for _ in NAMES:
        want = np.tanh(want)
    np.testing.assert_allclose(found[f"{NAMES[0]}.0"], np.tanh(x), rtol=1e-5)
    np.testing.assert_allclose(found["sum\n*/"], [want.sum()], rtol=1e-4)


@pytest.mark.opencl
def test_names_that_look_the_same_in_messages_are_different_values() -> None:
    model = model_of(
        [
            helper.make_node("Relu", ["a\n"], ["y\n"], name="n\n"),
            helper.make_node("Neg", ["a\t"], ["y\t"], name="n\t"),
        ],
        [("a\n", [2]), ("a\t", [2])],
        [("y\n", [2]), ("y\t", [2])],
    )
    found = compiled(model, **{"a\n": [-1, 2], "a\t": [-1, 2]})
    assert found["y\n"].tolist() == [0, 2]
    assert found["y\t"].tolist() == [1, -2]


@pytest.mark.opencl
def test_weights_that_are_no_numbers_give_what_they_should() -> None:
    model = model_of(
        [node("Mul", "x w", "y"), node("Add", "x w", "z"), node("Relu", "w", "r")],
        [("x", [6])],
        [("y", [6]), ("z", [6]), ("r", [6])],
        {"w": SPECIAL},
    )
    x = np.array([1, 0, -1, 2, 3, 10], np.float32)
    found = compiled(model, x=x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found["y"], x * SPECIAL)
        np.testing.assert_array_equal(found["z"], x + SPECIAL)
    assert np.isnan(found["r"][0])
    np.testing.assert_array_equal(found["r"][1:], np.maximum(SPECIAL[1:], 0))


@pytest.mark.slow
@pytest.mark.opencl
def test_a_model_of_2000_inputs_runs() -> None:
    names = [f"i{i}" for i in range(2000)]
    joined = helper.make_node("Concat", names, ["y"], axis=0)
    model = model_of([joined], [(name, [1]) for name in names], [("y", [2000])])
    found = compiled(model, **{name: [i] for i, name in enumerate(names)})
    np.testing.assert_array_equal(found["y"], np.arange(2000))


@pytest.mark.parametrize("length", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_nodes_in_any_order_are_read(length: int) -> None:
    ops = ("Relu", "Tanh", "Neg", "Sigmoid")
    nodes = [node(ops[i % 4], f"v{i}", f"v{i + 1}") for i in range(length)]
    loaded = from_proto(model_of(nodes[::-1], [("v0", [8])], [(f"v{length}", [8])]))
    names = [n.output[0] for n in loaded.proto.graph.node]
    assert names == [f"v{i + 1}" for i in range(length)]
    assert import_model(loaded).outputs[f"v{length}"].shape == (8,)
