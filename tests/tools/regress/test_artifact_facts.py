"""What manifests say for --bisect: weights by their values, kernels by their texts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tools.regress.explain.artifact_facts import code_facts, weight_facts

ONE, TWO = np.arange(1, 9, dtype=np.float32), np.arange(11, 15, dtype=np.float32)
HELPERS = """
#define M_INLINE static inline
M_INLINE float __attribute__((overloadable)) m_gelu(float x) {
  return x * HALF;
}
"""
KERNEL = """
/* /a/Conv */
__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void NAME(__global float* out, const __global float* in0)
{
  if (out) {
    out[0] = m_gelu(in0[0]);
  }
}
"""


def artifact(*weights: tuple[str, Any], sha256: str = "a") -> Any:
    """Return an artifact with a kernel for each node, which reads one weight."""
    buffers, kernels, data = [], [], b""
    for number, (node, values) in enumerate(weights):
        spec = {"kind": "weight", "dtype": "float32", "shape": values.shape}
        size = {"offset": len(data), "size": values.nbytes, "payload_bytes": values.nbytes}
        buffers.append(SimpleNamespace(name=f"w{number}", **spec, **size))
        kernels.append(
            SimpleNamespace(name=f"k{number}", args=(number,), origin=tuple(node.split()))
        )
        data += values.tobytes()
    models = (SimpleNamespace(role="vision", sha256=sha256),)
    manifest = SimpleNamespace(buffers=tuple(buffers), kernels=tuple(kernels), models=models)
    return SimpleNamespace(manifest=manifest, data=data)


def test_weights_that_are_packed_otherwise_are_the_same_values_of_the_same_nodes() -> None:
    a = artifact(("/a/Conv", ONE), ("/b/Conv", TWO))
    # Another order, filled up with zeros, repeated, and a kernel that covers one more node.
    b = artifact(
        ("/b/Conv", np.pad(TWO, (0, 4))), ("/a/Conv /a/Relu", np.concatenate([ONE[::-1], ONE]))
    )
    (fact,) = weight_facts(a, b)
    assert (fact.about, fact.differs) == ("weights", False)
    assert "0 are in A only, 0 in B only" in fact.text


@pytest.mark.parametrize(("sha256", "about"), [("another", "weights"), ("a", "code generation")])
def test_values_that_another_node_reads_are_no_other_order(sha256: str, about: str) -> None:
    a = artifact(("/a/Conv", ONE), ("/b/Conv", TWO))
    b = artifact(("/a/Conv", TWO), ("/b/Conv", ONE), sha256=sha256)
    (fact,) = weight_facts(a, b)
    # Of the same model files no other weights come, so the compiler made them.
    assert (fact.about, fact.differs) == (about, True)
    assert "12 are in A only, 12 in B only, first of /a/Conv" in fact.text


def test_one_changed_value_counts_as_one_in_another_order() -> None:
    changed = ONE[::-1].copy()
    changed[3] += 0.25
    (fact,) = weight_facts(artifact(("/a/Conv", ONE)), artifact(("/a/Conv", changed)))
    assert (fact.about, fact.differs) == ("weights", True)
    assert "of /a/Conv: 1 of 8 values differ" in fact.text


def manifest(source: str, name: str) -> Any:
    kernel = SimpleNamespace(name=name, program=0, origin=("/a/Conv",))
    return SimpleNamespace(
        programs=(SimpleNamespace(source=source),),
        kernels=(kernel,),
        entries=(SimpleNamespace(name="run", launches=(0,)),),
        entry=lambda _name: SimpleNamespace(launches=(0,)),
        target=SimpleNamespace(name="cpu", options=""),
        metadata={},
    )


@pytest.mark.parametrize(
    ("helpers", "kernel", "name", "said"),
    [
        (HELPERS, KERNEL, "k_old", ""),
        # A name says nothing of a text, and the other way round.
        (HELPERS, KERNEL, "k_new", ""),
        (HELPERS, KERNEL.replace("in0[0]", "in0[1]"), "k_old", "1 of 1 kernels of A have another"),
        (
            HELPERS.replace("HALF", "0.6f"),
            KERNEL,
            "k_old",
            "definitions that kernels use differ: float",
        ),
        # A helper that another kernel of the program needs is none of this one's.
        (HELPERS + HELPERS.replace("float", "float8"), KERNEL, "k_old", ""),
    ],
)
def test_kernels_are_compared_by_their_texts(
    helpers: str, kernel: str, name: str, said: str
) -> None:
    a = manifest(HELPERS + KERNEL.replace("NAME", "k_old"), "k_old")
    b = manifest(helpers + kernel.replace("NAME", name), name)
    (fact,) = code_facts(a, b)
    assert fact.differs is bool(said)
    assert said in fact.text
