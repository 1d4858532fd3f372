"""Sums over concats, part by part, and branches over stacked weights, as one: the same values."""

from collections.abc import Mapping

from hypothesis import strategies as st

from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.passes.batch_branches import MAX_MEMBERS
from scheduler.passes.split import MAX_SOURCES, split_concat_sums
from scheduler.tensor.tensor import Tensor
from tests.scheduler.passes.pass_check import (
    EXAMPLES,
    Build,
    batched,
    check,
    check_row,
    for_all,
    row,
    rows,
    weight,
)

X, Y = Tensor.input("x", (3, 5)), Tensor.input("y", (3, 2))


def xy(axis: int = 1) -> Tensor:
    return Tensor.cat([X, Y] if axis else [X.T, Y.T], axis)


@st.composite
def concat_sums(draw: st.DrawFn) -> Node:
    """Draw a product or a sum over a concat of several tensors, behind movement."""
    widths = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    axis = draw(st.integers(0, 2))
    shapes = [[2, 3, 2] for _ in widths]
    for shape, width in zip(shapes, widths, strict=True):
        shape[axis] = width
    x: Tensor = Tensor.cat([Tensor.input(f"x{i}", s) for i, s in enumerate(shapes)], axis)
    moves = st.sampled_from(["T", "ones", "merge", "exp", "pad", "window"])
    for move in draw(st.lists(moves, max_size=3)):
        at = draw(st.integers(0, x.ndim - 1))
        if move == "T":
            x = x.permute(draw(st.permutations(range(x.ndim))))
        elif move == "ones":
            x = x.unsqueeze(draw(st.integers(0, x.ndim)))
        elif move == "merge":
            x = x.reshape(*x.shape[:-2], -1)
        elif move == "pad":
            x = x.pad([(1, 0) if i == at else (0, 0) for i in range(x.ndim)])
        elif move == "window":
            x = x.window(at, draw(st.integers(1, x.shape[at])))
        else:
            x = x.exp()
    kind = draw(st.sampled_from(["sum", "product", "left product", "square"]))
    if kind in ("sum", "square"):
        return (x if kind == "sum" else x * x).sum(draw(st.integers(0, x.ndim - 1))).node
    wide: Tensor = x.reshape(-1, x.shape[-1]) if x.ndim == 1 else x
    if kind == "product":
        return (wide @ weight(wide.shape[-1], 4)).node
    return (Tensor.input("w", (4, wide.shape[-2])) @ wide).node


@EXAMPLES
def test_concat_sums_keep_their_values(examples: int) -> None:
    def keeps(node: Node) -> None:
        check(split_concat_sums, [node])

    for_all(examples, concat_sums(), keeps)


def convolved(*image: int) -> Tensor:
    concat = Tensor.cat([Tensor.input("a", (1, 3, *image)), Tensor.input("b", (1, 2, *image))], 1)
    return concat.conv2d(weight(4, 5, *(3 for _ in image)), padding=1, stride=2)


def many(count: int) -> Tensor:
    sources = [Tensor.input(f"m{i}", (3, 2)) for i in range(count)]
    return Tensor.cat(sources, 1) @ weight(2 * count, 4)


@rows(
    row("a product", lambda: xy() @ weight(7, 4), CAT=0, REDUCE=2),
    row("a product on the other side", lambda: weight(4, 7) @ xy(0), CAT=0, REDUCE=2),
    row("channels of a row", lambda: convolved(5), CAT=0, REDUCE=2),
    row("channels of an image", lambda: convolved(5, 4), CAT=0, REDUCE=2),
    row("x, summed once, added twice", lambda: Tensor.cat([X, Y, X], 1).sum(1), CAT=0, REDUCE=2),
    row("sources enough", lambda: many(MAX_SOURCES), CAT=0, REDUCE=MAX_SOURCES),
    row("many sources", lambda: many(MAX_SOURCES + 1)),
    row("a concat along another axis", lambda: Tensor.cat([X, X], 0) @ weight(5, 4)),
    row("padding of the concat", lambda: xy().pad([(0, 0), (1, 0)]) @ weight(8, 4)),
    row(
        "windows over converted inputs",
        lambda: Tensor.cat([X.exp(), Y.exp()], 1).reshape(1, 3, 7).window(1, 2).sum(3),
    ),
    row("windows over the concat axis", lambda: xy().window(1, 3).sum(1)),
    row("a maximum", lambda: xy().max(1)),
    row("arithmetic in between", lambda: xy().exp() @ weight(7, 4)),
    row("a square", lambda: xy().square().sum(1)),
    row("an axis that merges with others", lambda: xy().reshape(21).sum(0)),
    row("what others read", lambda: [xy() @ weight(7, 4), xy().exp()]),
    row("an output", lambda: [xy() @ weight(7, 4), xy()]),
)
def test_sums_over_concats(build: Build, counts: Mapping[str, int]) -> None:
    check_row(split_concat_sums, build, counts)


A = Tensor.input("x", (2, 6))
WIDE = Tensor.input("wide", (64, 512))


def head(x: Tensor, seed: int, width: int = 4) -> Tensor:
    return (x @ weight(x.shape[-1], width, seed=seed) + weight(width, seed=100 + seed)).relu()


def products(count: int, width: int = 4) -> list[Tensor]:
    return [A @ weight(6, width, seed=i) for i in range(count)]


def read_twice() -> list[Tensor]:
    plain = products(2)
    return [*plain, *(p.relu() for p in plain)]


def two_layers(count: int, *, same: bool) -> Tensor:
    widths = [3 if same else 3 + i for i in range(count)]
    return Tensor.cat([head(head(A, i), 20 + i, width) for i, width in enumerate(widths)], 1)


def sums(roots: list[Node]) -> int:
    return sum(n.op is Op.REDUCE for n in toposort(roots))


@st.composite
def networks(draw: st.DrawFn) -> list[Node]:
    """Draw heads of one or two layers; some differ in bias, activation, width or input."""
    x = draw(st.sampled_from([A, A.exp(), A.reshape(1, 2, 6), A.max(1, keepdim=True) * A]))
    outputs: list[Tensor] = []
    for i in range(draw(st.integers(2, 6))):
        y = x
        for layer in range(draw(st.integers(1, 2))):
            width = draw(st.sampled_from([4, 4, 4, 3]))
            y = y @ weight(y.shape[-1], width, seed=10 * i + layer)
            bias = draw(st.sampled_from(["own", "own", "own", "shared", "none"]))
            if bias != "none":
                y = y + weight(width, seed=1000 + (i if bias == "own" else 0))
            act = draw(st.sampled_from(["relu", "relu", "gelu", "none"]))
            y = y.relu() if act == "relu" else y.gelu() if act == "gelu" else y
        outputs.append(y)
    return [Tensor.cat(outputs, -1).node] if draw(st.booleans()) else [y.node for y in outputs]


@EXAMPLES
def test_networks_keep_their_values(examples: int) -> None:
    def keeps(roots: list[Node]) -> None:
        assert sums(check(batched, roots)) <= sums(roots)

    for_all(examples, networks(), keeps)


@rows(
    row("heads", lambda: Tensor.cat([head(A, i) for i in range(10)], 1), REDUCE=1, MAX=1),
    row("second layers of one width", lambda: two_layers(4, same=True), REDUCE=2),
    row("second layers of several widths", lambda: two_layers(4, same=False), REDUCE=5, SHRINK=4),
    row(
        "another activation",
        lambda: Tensor.cat([*(head(A, i) for i in range(3)), products(10)[9].gelu()], 1),
        REDUCE=2,
    ),
    row("members enough", lambda: Tensor.cat(products(MAX_MEMBERS, 1), 1), REDUCE=1),
    row("more members", lambda: Tensor.cat(products(MAX_MEMBERS + 3, 1), 1), REDUCE=2),
    row("outputs", lambda: [head(A, i) for i in range(3)], REDUCE=1, MAX=1),
    row("sums that others read", read_twice, REDUCE=1, MAX=2),
    row("one branch", lambda: [head(A, 0)]),
    row("different widths", lambda: [head(A, i, 4 + i) for i in range(2)]),
    row("different data", lambda: [head(A, 0), head(A + 1.0, 1)]),
    row("no weights", lambda: [A @ Tensor.input(f"w{i}", (6, 4)) for i in range(2)]),
    row("large results", lambda: [WIDE @ weight(512, 257, seed=i) for i in range(2)]),
    row("much arithmetic", lambda: [WIDE @ weight(512, 80, seed=i) for i in range(2)]),
    row("maxima", lambda: [(A.unsqueeze(1) + weight(4, 6, seed=i)).max(-1) for i in range(2)]),
)
def test_branches(build: Build, counts: Mapping[str, int]) -> None:
    check_row(batched, build, counts)


def test_second_layers_of_several_widths_read_slices() -> None:
    (found,) = check(batched, [two_layers(4, same=False).node])
    reads = [n for n in toposort([found]) if n.op is Op.SHRINK]
    assert [n.arg[0] for n in reads] == [(i, i + 1, 1) for i in range(4)]


def test_the_names_of_all_members_stay() -> None:
    roots, origins = [head(A, i).node for i in range(2)], Origins()
    origins.name([A.node], ())
    for i, root in enumerate(roots):
        origins.name(toposort([root])[:-1], (f"head{i}",))
        origins.name([root], (f"relu{i}",))
    new = batched(roots)
    origins.follow(new)
    order = toposort([new[r] for r in roots])
    for op, name in ((Op.REDUCE, "head"), (Op.MAX, "relu")):
        (made,) = (n for n in order if n.op is op)
        assert origins.of(made) == (f"{name}0", f"{name}1")
    assert {origins.of(new[r]) for r in roots} == {()}  # a view, which its reader computes
