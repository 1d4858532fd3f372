"""Kind `metamorphic`: the same values whatever the kernels, the order, the padding, the batch."""

from collections.abc import Mapping, Sequence

from scheduler.ir.node import Buffer, Node
from scheduler.ir.node import make as node_of
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import remake
from scheduler.tensor.tensor import Tensor
from tests.fuzz.apart import apart, rebuilt, with_copies
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.draw import Draw
from tests.fuzz.graphs import case_of, single_steps, situations
from tests.fuzz.networks import PROFILES, layers
from tests.fuzz.program import Program


def make(name: Name) -> Case:
    """Return a program and others that must give the same."""
    ways = (rearranged, other_kernels, rearranged, batched)
    return ways[name.seed % len(ways)](name)


def rearranged(name: Name) -> Case:
    """Return a program in another order, padded, and computed twice."""
    p = single_steps(name)
    draw = Draw(name.seed + 2)
    twice, more = _twice(p.outputs)
    variants = [
        Variant("plain", p.outputs),
        Variant("other order", _exchanged(dict(reversed(p.outputs.items())))),
        Variant("padded", {n: _padded(y, draw) for n, y in p.outputs.items()}),
        Variant("beside itself", twice),
    ]
    case = case_of(p, name, variants)
    (given,) = case.runs
    given.update({new: given[old] for new, old in more.items()})
    return case


def other_kernels(name: Name) -> Case:
    """Return a program, with states or without, whose kernels end elsewhere."""
    p = situations(name) if name.seed % 8 == 1 else single_steps(name)
    draw = Draw(name.seed + 2)
    variants = [
        Variant("plain", p.outputs, tuple(p.writes.values())),
        _variant(p, "every kernel by itself", apart(p.tensors)),
        _variant(p, "other kernels", apart(p.tensors, only=lambda _: draw.integer(0, 99) < 30)),
        _variant(p, "copied by hand", with_copies(p.tensors)),
    ]
    return case_of(p, name, variants)


def _variant(p: Program, label: str, tensors: Sequence[Tensor]) -> Variant:
    """Return other tensors for the outputs and new states of a program."""
    outputs = dict(zip(p.outputs, tensors, strict=False))
    return Variant(label, outputs, tuple(tensors[len(outputs) :]))


def batched(name: Name) -> Case:
    """Return layers applied to two inputs, one by one and as a batch of two."""
    draw = Draw(name.seed)
    net = layers(draw, draw.pick(PROFILES))
    data = {n: net.data(1) for n in ("a", "b")}
    a, b = (Tensor.input(n, v.shape) for n, v in data.items())
    outputs = {"one": net(a), "other": net(b)}
    both = net(Tensor.cat([a, b]))
    halves = {"one": both[0:1], "other": both[1:2]}
    variants = [Variant("one by one", outputs), Variant("batch of two", halves)]
    return Case(name, outputs, variants, [{**data, **net.inputs}])


def _exchanged(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Exchange the operands of what does not mind."""
    swap = {Op.ADD, Op.MUL, Op.EQ, Op.NE, Op.AND, Op.OR, Op.XOR}
    made = rebuilt(list(outputs.values()), lambda n: remake(n, n.src[::-1]) if n.op in swap else n)
    return dict(zip(outputs, made, strict=True))


def _padded(y: Tensor, draw: Draw) -> Tensor:
    """Pad, and cut off what was padded."""
    if not y.ndim:
        return y
    pairs = [(draw.integer(0, 2), draw.integer(0, 2)) for _ in y.shape]
    key = tuple(slice(a, a + s) for (a, _), s in zip(pairs, y.shape, strict=True))
    return y.pad(pairs, 1)[key]


def _twice(outputs: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Compute everything a second time from inputs of other names; return those by new name."""
    names: dict[str, str] = {}

    def again(node: Node) -> Node:
        if node.op is not Op.BUFFER or node.arg.kind != "input":
            return node
        name = f"{node.arg.name}_again"
        names[name] = node.arg.name
        return node_of(Op.BUFFER, node.dtype, (), Buffer("input", name, node.shape, node.dtype))

    made = rebuilt(list(outputs.values()), again)
    return {**outputs, **{f"{n}_again": t for n, t in zip(outputs, made, strict=True)}}, names
