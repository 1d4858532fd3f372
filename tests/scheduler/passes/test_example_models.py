"""What the passes save of the example models.

That answers stay those of onnxruntime is checked of whole programs (driving/test_program.py).
"""

from dataclasses import dataclass
from functools import cache

import pytest

from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.onnx_import import import_model, load_model
from scheduler.pipeline import run_passes
from tests.support.built import example_models
from tests.support.selection import quick_cases

NAMES = ("vision", "policy")


@dataclass(frozen=True)
class Model:
    """A model before and after all passes."""

    root: Node
    node: Node
    origins: Origins

    def sums(self, start: str, *, before: bool = False) -> list[Node]:
        """Return reductions that come from ONNX nodes whose name starts with `start`."""
        found = [n for n in toposort([self.root if before else self.node]) if n.op is Op.REDUCE]
        return [n for n in found if any(o.startswith(start) for o in self.origins.of(n))]


@cache
def model(name: str) -> Model:
    imported = import_model(load_model(example_models(name)[name]))
    root = imported.outputs["outputs"].node
    (node,) = run_passes([root], origins=imported.origins)
    return Model(root, node, imported.origins)


def test_the_policy_computes_one_row_behind_its_last_attention() -> None:
    policy = model("policy")
    for start in ("/blocks.2/attn/proj", "/blocks.2/mlp", "/norm"):
        assert {n.shape[1] for n in policy.sums(start, before=True)} == {25}
        assert {n.shape[1] for n in policy.sums(start)} == {1}
    assert {n.shape[1] for n in policy.sums("/blocks.1/mlp")} == {25}


@pytest.mark.parametrize("name", quick_cases(NAMES, "policy"))
def test_first_layers_of_heads_are_one_sum(name: str) -> None:
    made, heads = model(name), {"vision": 10, "policy": 2}[name]
    first = [
        n for n in made.sums("/heads.") if any(o.endswith(".0/Gemm") for o in made.origins.of(n))
    ]
    assert [n.shape[0] for n in first] == [heads]
    assert len(made.sums("/heads.", before=True)) == 2 * heads


def test_the_policy_needs_no_concat_in_front_of_its_embedding() -> None:
    policy = model("policy")
    counts = [sum(n.op is Op.CAT for n in toposort([r])) for r in (policy.root, policy.node)]
    assert counts == [2, 1]
