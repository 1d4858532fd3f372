"""The passes on the example models: what they save, and the same answers as onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from scheduler.ir import interp
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.onnx_import import import_model
from scheduler.pipeline import run_passes, schedule
from tools.example_models import build_example

# Launches of these models before there were passes across branches.
LAUNCHES_BEFORE = {"vision": 83, "policy": 30}


def model(name: str) -> tuple[bytes, Node, Origins]:
    data = build_example(name).data
    imported = import_model(onnx.load_model_from_string(data))
    return data, imported.outputs["outputs"].node, imported.origins


@pytest.mark.parametrize("name", ["vision", "policy"])
def test_answers_stay_those_of_onnxruntime(name: str) -> None:
    data, root, _ = model(name)
    (node,) = run_passes([root])
    session = ort.InferenceSession(data)
    rng = np.random.default_rng(3)
    feeds = {
        i.name: rng.integers(0, 256, i.shape).astype(np.uint8)
        if i.type == "tensor(uint8)"
        else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }
    (expected,) = session.run(None, feeds)
    inputs = [n.arg for n in toposort([node]) if n.op is Op.BUFFER and n.arg.kind == "input"]
    (found,) = interp.evaluate([node], {b: feeds[b.name] for b in inputs})
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def sums(root: Node, origins: Origins, start: str) -> list[Node]:
    """Return reductions that come from ONNX nodes whose name starts with `start`."""
    return [
        n
        for n in toposort([root])
        if n.op is Op.REDUCE and any(name.startswith(start) for name in origins.of(n))
    ]


def test_the_policy_computes_one_row_behind_its_last_attention() -> None:
    _, root, origins = model("policy")
    (node,) = run_passes([root], origins=origins)
    for start in ("/blocks.2/attn/proj", "/blocks.2/mlp", "/norm"):
        assert {n.shape[1] for n in sums(root, origins, start)} == {25}
        assert {n.shape[1] for n in sums(node, origins, start)} == {1}
    assert {n.shape[1] for n in sums(node, origins, "/blocks.1/mlp")} == {25}


@pytest.mark.parametrize(("name", "heads"), [("vision", 10), ("policy", 2)])
def test_first_layers_of_heads_are_one_sum(name: str, heads: int) -> None:
    _, root, origins = model(name)
    (node,) = run_passes([root], origins=origins)
    found = sums(node, origins, "/heads.")
    first = [n for n in found if any(o.endswith(".0/Gemm") for o in origins.of(n))]
    assert [n.shape[0] for n in first] == [heads]
    assert len(sums(root, origins, "/heads.")) == 2 * heads


def test_the_policy_needs_no_concat_in_front_of_its_embedding() -> None:
    _, root, _ = model("policy")
    (node,) = run_passes([root])
    assert sum(n.op is Op.CAT for n in toposort([root])) == 2
    assert sum(n.op is Op.CAT for n in toposort([node])) == 1


@pytest.mark.parametrize(("name", "saved"), [("vision", 9), ("policy", 5)])
def test_launches_saved(name: str, saved: int) -> None:
    _, root, _ = model(name)
    assert len(schedule({"outputs": root}).launches) <= LAUNCHES_BEFORE[name] - saved
