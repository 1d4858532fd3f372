"""Models that are unusual but right: no elements, no nodes, strange names, special values."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from scheduler.compile import compile_plain
from scheduler.onnx_import import from_proto, import_model
from tests.scheduler.onnx_import.onnx_models import compiled, model_of, node, values_of
from tools.cli import main

# --- inputs and outputs that no node computes -----------------------------------------------------


@pytest.mark.opencl
def test_outputs_may_be_inputs_initializers_and_one_value_twice() -> None:
    model = model_of(
        [node("Relu", "x", "r"), node("Identity", "r", "again"), node("Identity", "x", "same")],
        [("x", [4]), ("unused", [3])],
        [(n, None) for n in ("x", "w", "r", "again", "same", "scalar")],
        {"w": np.array([1, np.nan, np.inf, 1e-42], np.float32), "scalar": np.float32(3)},
    )
    model.graph.output[3].ClearField("type")
    x = np.array([-1, 0, 1, 2], np.float32)
    found = compiled(model, x=x, unused=np.zeros(3))
    assert list(found) == ["x", "w", "r", "again", "same", "scalar"]
    np.testing.assert_array_equal(found["x"], x)
    np.testing.assert_array_equal(found["w"], np.array([1, np.nan, np.inf, 1e-42], np.float32))
    np.testing.assert_array_equal(found["r"], np.maximum(x, 0))
    np.testing.assert_array_equal(found["again"], np.maximum(x, 0))
    np.testing.assert_array_equal(found["same"], x)
    assert found["scalar"].shape == ()
    assert found["scalar"] == 3


@pytest.mark.opencl
def test_a_graph_without_nodes_passes_its_inputs_on() -> None:
    found = compiled(model_of([], [("x", [])], [("x", [])]), x=5.0)
    assert found["x"].shape == ()
    assert found["x"] == 5


def test_initializers_listed_as_inputs_are_none_of_the_old_way() -> None:
    weights = {"w": np.ones(4, np.float32)}
    nodes = [node("Add", "x w", "y"), node("Add", "y unread", "_")]
    model = model_of(nodes[:1], [("x", [4]), ("w", [4])], weights=weights, ir_version=3)
    assert list(import_model(model).inputs) == ["x"]
    np.testing.assert_array_equal(values_of(model, x=np.zeros(4))[0], np.ones(4))


def test_outputs_that_nobody_wants_have_no_name() -> None:
    model = model_of([node("Split", "x", " y", axis=0)], outputs=[("y", [2])])
    np.testing.assert_array_equal(values_of(model, x=[1, 2, 3, 4])[0], [3, 4])


# --- tensors without elements ---------------------------------------------------------------------

NOTHING = {
    "part of a join": model_of(
        [node("Concat", "a b", "y", axis=0)], [("a", [0, 3]), ("b", [2, 3])], [("y", [2, 3])]
    ),
    "middle": model_of(
        [
            node("Slice", "b one one", "none"),
            node("Relu", "none", "still"),
            node("Concat", "still b", "y", axis=0),
        ],
        [("b", [2, 3])],
        [("y", [2, 3]), ("still", [0, 3])],
        {"one": [1]},
    ),
    "other shape": model_of(
        [node("Reshape", "a s", "y")], [("a", [0, 4])], [("y", [0, 3])], {"s": [0, 3]}
    ),
    "sum and largest": model_of(
        [node("ReduceSum", "a s", "y", keepdims=0), node("ReduceProd", "a", "z", axes=[0])],
        [("a", [0, 4])],
        [("y", [4]), ("z", [1, 4])],
        {"s": [0]},
    ),
    "product over nothing": model_of(
        [node("MatMul", "a b", "p"), node("Add", "p c", "y")],
        [("a", [3, 0]), ("b", [0, 4]), ("c", [4])],
        [("y", [3, 4])],
    ),
    "product of nothing": model_of(
        [node("MatMul", "a b", "y")], [("a", [0, 3]), ("b", [3, 4])], [("y", [0, 4])]
    ),
    "padding only": model_of(
        [node("Pad", "a p v", "y")],
        [("a", [0, 4])],
        [("y", [2, 4])],
        {"p": [1, 0, 1, 0], "v": np.float32(7)},
    ),
    "some outputs": model_of(
        [node("Relu", "a", "y"), node("Neg", "b", "z")],
        [("a", [0, 4]), ("b", [2])],
        [("y", [0, 4]), ("z", [2]), ("w", [0, 2]), ("a", [0, 4])],
        {"w": np.zeros((0, 2), np.float32)},
    ),
    "nothing at all": model_of([node("Relu", "a", "y")], [("a", [0, 4])], [("y", [0, 4])]),
    "convolution": model_of(
        [node("Conv", "a w", "y")],
        [("a", [0, 3, 8, 8])],
        [("y", [0, 4, 6, 6])],
        {"w": np.ones((4, 3, 3, 3), np.float32)},
    ),
    "softmax": model_of([node("Softmax", "a", "y")], [("a", [0, 3])], [("y", [0, 3])]),
}


@pytest.mark.opencl
@pytest.mark.parametrize("kind", NOTHING)
def test_tensors_without_elements_are_computed(kind: str) -> None:
    model = NOTHING[kind]
    rng = np.random.default_rng(5)
    feeds = {
        value.name: rng.standard_normal(
            [d.dim_value for d in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }
    found = compiled(model, **feeds)
    # onnxruntime refuses to return what it was given.
    asked = [o.name for o in model.graph.output if o.name not in feeds and o.name != "w"]
    wanted = ort.InferenceSession(model.SerializeToString()).run(asked, feeds)
    for name, want in zip(asked, wanted, strict=True):
        assert found[name].shape == want.shape
        np.testing.assert_allclose(found[name], want, rtol=1e-5)
    assert list(found) == [o.name for o in model.graph.output]


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
    model.write_bytes(NOTHING["some outputs"].SerializeToString())
    assert main(["compile", str(model), "-o", str(artifact)]) == 0
    np.savez(arrays, a=np.zeros((0, 4), np.float32), b=np.array([1, 2], np.float32))
    command = ["exec", str(artifact), "--inputs", str(arrays), "--outputs"]
    assert main([*command, str(tmp_path / "out.npz")]) == 0
    found = np.load(tmp_path / "out.npz")
    assert {n: found[n].shape for n in found} == {"y": (0, 4), "z": (2,), "w": (0, 2), "a": (0, 4)}
    assert found["z"].tolist() == [-1, -2]
    capsys.readouterr()


# --- names ----------------------------------------------------------------------------------------

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


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.opencl
def test_weights_that_are_no_numbers_give_what_they_should() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1e-42, -0.0, 3e38], np.float32)
    model = model_of(
        [node("Mul", "x w", "y"), node("Add", "x w", "z"), node("Relu", "w", "r")],
        [("x", [6])],
        [("y", [6]), ("z", [6]), ("r", [6])],
        {"w": special},
    )
    x = np.array([1, 0, -1, 2, 3, 10], np.float32)
    found = compiled(model, x=x)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found["y"], x * special)
        np.testing.assert_array_equal(found["z"], x + special)
    assert np.isnan(found["r"][0])
    np.testing.assert_array_equal(found["r"][1:], np.maximum(special[1:], 0))


# --- large graphs ---------------------------------------------------------------------------------


@pytest.mark.opencl
def test_a_model_of_2000_inputs_runs() -> None:
    names = [f"i{i}" for i in range(2000)]
    model = model_of(
        [helper.make_node("Concat", names, ["y"], axis=0)],
        [(name, [1]) for name in names],
        [("y", [2000])],
    )
    found = compiled(model, **{name: [i] for i, name in enumerate(names)})
    np.testing.assert_array_equal(found["y"], np.arange(2000))


def chain(length: int) -> onnx.ModelProto:
    """Return a model whose nodes each read the one before."""
    ops = ("Relu", "Tanh", "Neg", "Sigmoid")
    nodes = [node(ops[i % 4], f"v{i}", f"v{i + 1}") for i in range(length)]
    return model_of(nodes, [("v0", [8])], [(f"v{length}", [8])])


def test_ten_thousand_nodes_in_any_order_are_read() -> None:
    model = chain(10_000)
    backwards = list(model.graph.node)[::-1]
    shuffled = model_of(backwards, [("v0", [8])], [("v10000", [8])])
    loaded = from_proto(shuffled)
    names = [n.output[0] for n in loaded.proto.graph.node]
    assert names == [f"v{i + 1}" for i in range(10_000)]
    assert import_model(loaded).outputs["v10000"].shape == (8,)
