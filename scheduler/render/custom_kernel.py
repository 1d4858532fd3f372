"""Renders a custom kernel: its hand-written source, with the epilogue in place of the macro.

    EPILOGUE(acc, i);     ->     { const float epilogue_value = (acc); const int epilogue_at = (i);
                                   const float v1 = in2[epilogue_at % 64]; ...; out0[...] = v3; }

The epilogue is the elementwise work fused onto the kernel's first output. The rest of the source
is unchanged. `#line` directives make build logs refer to the custom kernel's own lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from scheduler.errors import LoweringError
from scheduler.ir import dtype as dt
from scheduler.ir import index as ixs
from scheduler.ir.custom_kernel import Slot, read_source
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.kernel import CustomLaunch
from scheduler.kernelize.scalar import scalar_nodes
from scheduler.loops.pack import PackedWeight
from scheduler.loops.place import PlacedBody, merge_ranges
from scheduler.render import opencl_c as cl
from scheduler.render.kernel_code import Emitter, Instance, KernelCode, Needs, Parameter, Val
from scheduler.render.render import computes_in_float64
from scheduler.render.values import Values


class _Operands(Values):
    """Values of an epilogue: weights are not packed, and parameters follow the kernel's own."""

    def __init__(self, emitter: Emitter, value: Node, first: int, lanes: int) -> None:
        super().__init__(emitter, value, [], lanes, _no_loops)
        self.pointers.first = first

    def _pack(self, _: Node) -> PackedWeight | None:
        return None


def _no_loops(node: Node, _: Instance) -> None:
    # `with_epilogue` rejects reductions
    raise LoweringError(f"{node!r}: a reduction in an epilogue")


def render_custom(
    launch: CustomLaunch, targets: Sequence[Node], epilogue: PlacedBody | None
) -> KernelCode:
    """Return the code of a custom kernel.

    `targets` are the stored nodes, in the order of its outputs. Without an epilogue, the first
    output is stored unchanged.
    """
    source = read_source(launch.spec.name, launch.spec.source)
    arguments: list[Node] = list(launch.inputs)
    text = source.text
    title = f'"custom kernel {launch.spec.name}"'
    if source.slot is not None:
        slot = source.slot
        given, lines, more = _block(launch, slot, epilogue)
        arguments += more
        block = "\n".join(["{ " + given, *lines, "}"])
        line = text.count("\n", 0, slot.end) + 1
        text = f"{text[: slot.start]}{block}\n#line {line} {title}\n{text[slot.end :]}"
    body = "\n".join(line if line.startswith("#line") else f"  {line}" for line in text.split("\n"))
    parameters = [_parameter(f"out{i}", node, written=True) for i, node in enumerate(targets)]
    parameters += [_parameter(f"in{i}", node, written=False) for i, node in enumerate(arguments)]
    float64 = source.float64 or any(n.dtype is dt.float64 for n in (*targets, *arguments))
    if epilogue is not None:
        float64 = float64 or computes_in_float64(epilogue.value)
    needs = Needs(float64, source.work_group, source.local_bytes)
    block = f'{{\n#line 1 {title}\n{body}\n#line 1 "generated"\n}}\n'
    return KernelCode(tuple(parameters), block, launch.spec.items, (1, launch.spec.lanes), needs)


def _parameter(name: str, node: Node, *, written: bool) -> Parameter:
    return Parameter(name, cl.buffer_type(node.dtype, written=written), node, written)


def _block(
    launch: CustomLaunch, slot: Slot, epilogue: PlacedBody | None
) -> tuple[str, list[str], list[Node]]:
    """Return the replacement of a slot: declarations, statements, and the buffers they read."""
    raw, lanes = launch.outputs[0], launch.spec.lanes
    kind = cl.ctype(raw.dtype, lanes)
    value = f"({slot.value}) != 0" if raw.dtype is dt.bool_ else f"({slot.value})"
    if raw.dtype is dt.float16 and epilogue is not None:  # without an epilogue, the store rounds
        value = f"m_round_half(({kind}){value})"
    given = f"const {kind} epilogue_value = {value}; const int epilogue_at = ({slot.index});"
    if epilogue is None:
        stored = cl.store("out0", "epilogue_at", "epilogue_value", raw.dtype, lanes)
        return given, [f"  {stored}"], []
    body, _ = merge_ranges(epilogue, None)
    emitter = Emitter()
    operands = _Operands(emitter, body.value, len(launch.inputs), lanes)
    instance = _instance(body, prod(raw.shape), operands)
    for node in scalar_nodes(body.value):
        if node.op is Op.LOAD and node.src[0] is raw:
            known = Val("epilogue_value", lanes > 1, 0)
            emitter.remember(operands.key(node, instance), known)
    operands.evaluate(body.value, instance)
    code = operands.in_lanes(body.value, instance, lanes)
    emitter.statement(cl.store("out0", "epilogue_at", code, body.value.dtype, lanes))
    read = [a for a in operands.pointers.arguments if isinstance(a, Node)]
    return given, emitter.text(1).split("\n"), read


def _instance(body: PlacedBody, size: int, operands: _Operands) -> Instance:
    """Return the coordinates of the epilogue's ranges at `epilogue_at`, for the first lane."""
    emitter, lanes = operands.e, operands.lanes
    if lanes == 1:
        at = ixs.new_range(size, "at")
        emitter.name_atom(at, "epilogue_at", 0)
        index = ixs.unflatten(ixs.of(at), [r.size for r in body.ranges])
        return Instance(dict(zip(body.ranges, index, strict=True)), {})
    *outer, last = body.ranges  # lanes divide the last range, see `with_epilogue`
    row = ixs.new_range(size // last.size, "row")
    column = ixs.new_range(last.size // lanes, "column")
    emitter.name_atom(row, f"(epilogue_at / {last.size})", 0)
    emitter.name_atom(column, f"(epilogue_at % {last.size} / {lanes})", 0)
    index = ixs.unflatten(ixs.of(row), [r.size for r in outer])
    inner = ixs.add(ixs.mul(ixs.of(column), lanes), ixs.of(operands.lane))
    return Instance(dict(zip(body.ranges, (*index, inner), strict=True)), {})
