"""The digest of a graph: equal for equal structure, different for what changes the result."""

from enum import Enum

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import Tensor
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.digest import canonical, content_digest, graph_digest
from scheduler.ir.origin import Origins

W = np.arange(12, dtype=np.float32).reshape(3, 4)


def network(weight: np.ndarray = W, name: str = "x", rows: int = 2, scale: float = 0.5) -> Tensor:
    x = Tensor.input(name, (rows, 3))
    state = Tensor.state("s", (rows, 4))
    y = (x @ Tensor.weight(weight.copy()) * scale).softmax(-1)
    return state.assign(Tensor.cat([y, state], 0)[rows:] + y)


def digest(tensor: Tensor, label: str = "") -> str:
    origins = Origins()
    origins.name([tensor.node], (label,))
    return graph_digest({"out": tensor.node}, origins if label else None)


def test_graphs_built_twice_have_one_digest() -> None:
    first, second = network(), network()
    assert first.node is not second.node  # other buffers, so other nodes
    assert digest(first) == digest(second)


@pytest.mark.parametrize(
    "other",
    [
        network(W + 1),
        network(np.where(W == 0, -0.0, W).astype(np.float32)),
        network(W.astype(np.float16).astype(np.float32) * np.float32(1 + 2**-20)),
        network(name="y"),
        network(rows=3),
        network(scale=0.25),
        network().exp(),
    ],
    ids=["weight", "sign of zero", "last bit", "input", "shape", "constant", "op"],
)
def test_what_differs_has_another_digest(other: Tensor) -> None:
    assert digest(other) != digest(network())


def test_origins_count_where_they_are_given() -> None:
    tensor = network()
    assert digest(tensor, "/a") == digest(network(), "/a")
    assert len({digest(tensor), digest(tensor, "/a"), digest(tensor, "/b")}) == 3


def test_one_buffer_read_twice_is_not_two_equal_buffers() -> None:
    shared, first, second = Tensor.weight(W), Tensor.weight(W), Tensor.weight(W)
    x = Tensor.input("x", (3, 4))
    assert digest(x * shared + shared) != digest(x * first + second)


def test_names_and_order_of_roots_count() -> None:
    x = Tensor.input("x", (4,))
    a, b = (x + 1.0).node, (x + 2.0).node
    digests = [graph_digest(roots) for roots in ([a, b], [b, a], [a])]
    named = ({"a": a, "b": b}, {"b": b, "a": a}, {"a": b, "b": a})
    digests += [graph_digest(roots) for roots in named]
    assert len(set(digests)) == len(digests)


def test_values_written_into_a_weight_later_are_seen() -> None:
    values = W.copy()
    view = values.view()
    view.flags.writeable = False  # values behind a read-only view, too
    for data in (values, view):
        tensor = Tensor.weight(data) + Tensor.input("x", (3, 4))
        before = digest(tensor)
        values[1, 2] += 1
        assert digest(tensor) != before


def test_frozen_weights_are_read_once() -> None:
    values = np.zeros(1 << 22, np.float32)
    values.flags.writeable = False
    tensor = Tensor.weight(values) + Tensor.input("x", values.shape)
    first = digest(tensor)
    values.flags.writeable = True  # it owns its memory, so numpy allows this: a digest looks not
    values[0] = 1
    values.flags.writeable = False
    assert digest(tensor) == first


def test_long_chains_do_not_recurse() -> None:
    y = Tensor.input("x", (4,))
    for i in range(10_000):
        y = y + float(i)
    assert len(digest(y)) == 64


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.tuples(inner, inner) | st.tuples(inner),
    max_leaves=6,
)


@given(PLAIN, PLAIN)
def test_canonical_texts_are_equal_for_equal_values_only(a: object, b: object) -> None:
    # repr tells -0.0 from 0.0 and 1 from True, as nodes do.
    assert (canonical(a) == canonical(b)) == (repr(a) == repr(b))


class _Color(Enum):
    RED = 1


def test_canonical_knows_what_arguments_are_made_of() -> None:
    values = [1, True, 1.0, "1", b"1", None, (1,), ((1,),), (), float("nan"), float("inf")]
    values += [dt.float32, _Color.RED, np.float32(1), np.int64(1), {"a": 1}, 2**70]
    assert len({canonical(v) for v in values}) == len(values)
    with pytest.raises(SchedulerError, match="type object has no canonical text"):
        canonical((1, object()))


def test_content_is_type_shape_and_values() -> None:
    found = {
        content_digest(a)
        for a in (W, W.T, W.reshape(-1), W.astype(np.float64), W.view(np.int32), W + 1)
    }
    assert len(found) == 6
    assert content_digest(W) == content_digest(np.asfortranarray(W))
    assert content_digest(np.array(3.0)) != content_digest(np.array([3.0]))
