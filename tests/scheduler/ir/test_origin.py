"""Names of ONNX nodes beside the graph: given once, followed through passes, lent to kernels."""

from __future__ import annotations

from scheduler.context import CompileContext
from scheduler.ir import dtype as dt
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.canonicalize import canonicalize
from scheduler.pipeline import schedule
from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

X = Tensor.input("x", (4, 4))
LOW = X / 4.0


def named(**tensors: Tensor) -> Origins:
    """Name what is below each tensor and not below one before it; nobody names the input."""
    origins = Origins()
    origins.name([X.node], ())
    for name, tensor in tensors.items():
        origins.name([tensor.node], (name,))
    return origins


def kernel_names(tensor: Tensor, origins: Origins) -> list[str]:
    plan = schedule({"y": tensor.node}, origins=origins)
    return [" ".join(kernel.origin) for kernel in plan.launches]


def test_the_first_name_stays_and_the_walk_ends_there() -> None:
    high = LOW.sqrt()
    origins = named(low=LOW, high=high, again=high)
    assert [origins.of(t.node) for t in (X, LOW, high)] == [(), ("low",), ("high",)]


def test_what_a_rule_makes_is_named_after_what_it_replaces() -> None:
    origins = named(scale=LOW)
    new = canonicalize([LOW.node])
    origins.follow(new)
    assert new[LOW.node].op is Op.MUL
    assert origins.of(new[LOW.node]) == ("scale",)


def test_a_node_over_new_sources_keeps_its_name_and_lends_it_to_none() -> None:
    same, one = LOW.abs(), LOW.abs() * 1.0
    origins = named(low=LOW, one=one)
    new = canonicalize([one.node])
    origins.follow(new)
    made = new[same.node]
    assert made is new[one.node]
    assert (origins.of(made), origins.of(made.src[0])) == (("one",), ("low",))


def test_a_node_that_stays_keeps_its_name_when_others_become_the_same() -> None:
    first = X.exp()
    origins = named(first=first, second=first + -0.0)
    origins.follow(canonicalize([(first + -0.0).node]))
    assert origins.of(first.node) == ("first",)


def test_a_view_of_new_work_bears_no_name() -> None:
    old = X.exp()
    work = make(Op.SQRT, dt.float32, (X.node,))
    view = make(Op.PERMUTE, dt.float32, (work,), (1, 0))
    origins = named(old=old)
    origins.follow({X.node: X.node, old.node: view})
    assert (origins.of(work), origins.of(view)) == (("old",), ())


def test_a_pass_that_returns_roots_only_names_no_node_that_stayed() -> None:
    low = X.exp()
    origins = named(low=low, high=low.sqrt())
    made = (low + 1.0).node
    origins.follow({low.sqrt().node: made})
    assert [origins.of(n) for n in (made, low.node)] == [("high",), ("low",)]


def test_a_copy_leaves_the_table_of_the_model_alone() -> None:
    y = LOW.exp()
    origins = named(y=y)
    before = [origins.of(n) for n in (y.node, X.node)]
    assert kernel_names(y, origins) == ["y"]
    assert [origins.of(n) for n in (y.node, X.node)] == before
    assert origins.of(canonicalize([y.node])[y.node]) == ()


def test_a_kernel_is_called_after_what_it_computes_or_moves_not_what_it_reads() -> None:
    stored = (X @ X).contiguous()
    y = stored[1:3].exp()
    assert kernel_names(y, named(product=stored, end=y)) == ["product", "end"]
    moved = stored.permute(1, 0).contiguous()
    assert kernel_names(moved, named(product=stored)) == ["product", "product"]


def test_halves_are_read_without_the_name_of_who_stored_them() -> None:
    wide, rows = Tensor.input("a", (64, 4)), Tensor.input("b", (4, 64))
    first = (wide @ rows).relu()
    second = first @ wide
    origins = named(wide=wide, rows=rows, first=first, second=second)
    context = CompileContext(precision="fp16")
    plan = schedule({"y": second.node}, context=context, origins=origins)
    assert plan.precision is not None
    assert plan.precision.halves == (0, 1)
    assert [k.origin for k in plan.launches] == [("first",), ("second",)]


def test_a_custom_kernel_without_a_name_goes_by_its_own() -> None:
    source = "int i = get_global_id(0); EPILOGUE(in0[i], i);"
    kernel = CustomKernel("copies", source, [((4, 4), dt.float32)], 16, lambda v: v)
    (y,) = custom_kernel(kernel, X)
    assert Origins().of(y.node) == Origins().of(y.node.src[0]) == ("copies",)
    assert kernel_names(y, Origins()) == ["copies"]


def test_one_graph_has_the_names_that_each_model_gives_it() -> None:
    y = (X * 3.0).tanh()
    assert kernel_names(y, named(a=y)) == ["a"]
    assert kernel_names(y, named(b=y)) == ["b"]
