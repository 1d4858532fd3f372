"""The pipeline turns one graph into a Schedule: passes, storage, fusion, order, text, limits.

    named, roots = _passed(outputs, writes, context, origins)        graph -> graph
    kernels = make_kernels(roots, context.spec, splits, origins)     what is stored, fused, ordered
    lowered = lower_kernels(kernels, sinks, context)                 kernels -> OpenCL C

The last two steps are repeated with more splits as long as a kernel is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from scheduler.context import DEFAULT_CONTEXT, EXACT, FP32, WIDE, CompileContext
from scheduler.emit.limit_checks import refused_by_limits
from scheduler.emit.schedule import Schedule
from scheduler.errors import LoweringError, ModelError
from scheduler.flags import Level
from scheduler.ir import dtype as dt
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.ir.verify import verify
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.limits import Refused, Splits
from scheduler.kernelize.make_kernels import make_kernels, storage_plan
from scheduler.lower import LoweredKernel, lower_kernels
from scheduler.passes.alternatives import expand_alternatives
from scheduler.passes.batch_branches import batch_branches
from scheduler.passes.canonical_sums import canonical_sums
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.custom_inputs import custom_inputs
from scheduler.passes.eight_bits.byte_floats import byte_floats
from scheduler.passes.eight_bits.byte_moves import byte_moves
from scheduler.passes.eight_bits.byte_products import byte_products
from scheduler.passes.eight_bits.byte_tables import byte_tables
from scheduler.passes.fixed_values import fixed_values
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.halves.exact_halves import halves as round_halves
from scheduler.passes.halves.half_bits import half_bits
from scheduler.passes.halves.precision import (
    PrecisionReport,
    check_precision,
    store_exact_halves,
    store_halves,
)
from scheduler.passes.halves.wide_halves import wide_halves
from scheduler.passes.merge_assign import merge_assign
from scheduler.passes.one_hot import one_hot
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import push_slices
from scheduler.passes.split_concat import split_concat
from scheduler.passes.split_concat_sums import split_concat_sums
from scheduler.passes.split_reduce import split_reduce
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.passes.winograd import winograd
from scheduler.passes.winograd_kernel import pays, pays_as_a_rule

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]

# Not run where weights are halves.
WINOGRAD: Final = "winograd"
# The first stage: the graph before any pass.
INPUT: Final = "input"
# A systematic failure must come to an end; models have needed one or two splits.
MAX_ROUNDS: Final = 32


def passes(context: CompileContext) -> tuple[tuple[str, Pass], ...]:
    """Return name and function of all graph passes in order, each given what it needs."""
    unsafe = context.flags.float_unsafe
    simplify = partial(canonicalize, float_unsafe=unsafe)
    # Not with half storage: the weights of fast convolutions are floats, 16 for 9.
    worth = pays_as_a_rule if context.is_strict else pays
    fast = [(WINOGRAD, partial(winograd, spec=context.spec, worth=worth))]
    fixed = (("canonical sums", canonical_sums), ("fixed values", fixed_values))
    # Sums of whole numbers are exact, with the instruction or without.
    dots = replace(context.spec, dot4=True) if context.is_strict else context.spec
    # The interpreter that fills tables is the compiling machine's.
    tables = [("tables of bytes", partial(byte_tables, spec=context.spec))]
    return (
        ("expand alternatives", partial(expand_alternatives, spec=context.spec)),
        ("bits of halves", half_bits),
        ("round halves", round_halves if context.halves == EXACT else wide_halves),
        ("moves of bytes", byte_moves),
        ("products of bytes", partial(byte_products, spec=dots)),
        *([] if context.is_strict else tables),
        ("merge partial assignments", merge_assign),
        ("canonicalize", simplify),
        ("one hot to gather", partial(one_hot, float_unsafe=unsafe)),
        ("fold constants", fold_constants),
        ("canonicalize folded", simplify),
        ("reduce strength", strength_reduce),
        ("push gathers", push_gather),
        ("push slices", push_slices),
        ("split concat sums", split_concat_sums),
        ("batch branches", partial(batch_branches, costs=context.spec.costs)),
        ("split reductions", split_reduce),
        ("split concat", partial(split_concat, limits=context.limits)),
        *(fast if context.precision == FP32 else []),
        ("floats of bytes", partial(byte_floats, spec=dots)),
        ("canonicalize again", simplify),
        *(fixed if context.is_strict else []),
        ("bind custom inputs", custom_inputs),
    )


def schedule(
    outputs: Mapping[str, Node],
    states: Sequence[Node] = (),
    inputs: Sequence[Node] | None = None,
    context: CompileContext = DEFAULT_CONTEXT,
    origins: Origins | None = None,
) -> Schedule:
    """Compile a graph to kernels.

    Args:
        outputs: nodes to return, by name.
        states: ASSIGN nodes to perform; those reachable from outputs are performed anyway.
        inputs: input BUFFER nodes in calling order; by default those the graph reads.
        context: what the graph is compiled for.
        origins: ONNX names of the nodes, for what is said about kernels.

    Raises:
        SchedulerError: the graph cannot be scheduled or lowered.
    """
    check_precision(context.precision)
    reachable = [n for n in toposort(outputs.values()) if n.op is Op.ASSIGN]
    writes = list(dict.fromkeys([*states, *reachable]))
    buffers = _input_buffers(outputs, writes, inputs)
    computed = {name: node for name, node in outputs.items() if all(node.shape)}
    origins = (origins or Origins()).over([*computed.values(), *writes])
    named, roots = _passed(computed, writes, context, origins)
    pins, report = frozenset[Node](), None
    halves = context.halves if _has_halves([*outputs.values(), *writes]) else ""
    if context.precision != FP32:
        named, roots, pins, report = _with_halves(named, roots, context, origins)
    elif halves == WIDE:
        named, roots = _with_exact_halves(named, roots, context, origins)
    stored = {n: named[n] if n in named else _unwritten(outputs[n]) for n in outputs}
    sinks = list(stored.values())
    lowered = _kernels(roots, sinks, Splits(pins), context, origins)
    return Schedule(
        MappingProxyType(stored),
        buffers,
        lowered,
        context.spec,
        report,
        halves,
        context.numerics,
        context.stages,
    )


def _kernels(
    roots: Sequence[Node],
    outputs: Sequence[Node],
    splits: Splits,
    context: CompileContext,
    origins: Origins,
) -> tuple[LoweredKernel, ...]:
    """Return the kernels of a graph, lowered: as few as can be, and as many as have to be.

    Raises LoweringError with the origin of a kernel that has one operation, or that splits do not
    help.
    """
    refused: Refused | None = None
    costs = context.spec.costs
    for _ in range(MAX_ROUNDS + 1):
        kernels = make_kernels(roots, context.spec, splits, origins)
        lowered = lower_kernels(kernels, outputs, context)
        if isinstance(lowered, Refused):
            refused = lowered
            more = splits.with_split(lowered, costs)
            if more is None:
                raise LoweringError(
                    f"{refused}; it is a single operation, which cannot be split further: rewrite "
                    "this part of the model"
                )
        else:
            refused = refused_by_limits(lowered, context.spec)
            more = None if refused is None else splits.with_split(refused, costs)
            if more is None:  # `check_limits` names a limit that a single operation breaks
                return tuple(lowered)
        splits = more
    raise LoweringError(
        f"{refused}; still refused after {MAX_ROUNDS} splits: rewrite this part of the model"
    )


def run_passes(
    roots: Sequence[Node],
    context: CompileContext = DEFAULT_CONTEXT,
    origins: Origins | None = None,
) -> list[Node]:
    """Return the roots after all graph passes; the context's stages see the graph after each.

    `origins` (see `Origins.over`) follow the passes. Raises VerifyError if a pass broke the graph:
    checked after each under DEBUG >= 1 and in tests, otherwise once at the end.
    """
    current = list(roots)
    origins = origins or Origins()
    check = context.flags.debug >= Level.SUMMARY
    _tell(context, INPUT, current, origins)
    for name, apply in passes(context):
        new = apply(current)
        current = [new[r] for r in current]
        origins.follow(new)
        if check:
            verify(current, name, origins)
        _tell(context, name, current, origins)
    if not check:
        verify(current, "all passes", origins)
    return current


def _tell(context: CompileContext, name: str, roots: Sequence[Node], origins: Origins) -> None:
    if context.stages is not None:
        context.stages.add(name, roots, origins)


def kernelize(
    outputs: Mapping[str, Node],
    states: Sequence[Node] = (),
    context: CompileContext = DEFAULT_CONTEXT,
) -> tuple[dict[str, Node], list[Kernel]]:
    """Return the stored node of each output and the kernels in running order."""
    named, roots = _passed(outputs, states, context, Origins())
    return named, make_kernels(roots, context.spec)


def _input_buffers(
    outputs: Mapping[str, Node], writes: Sequence[Node], inputs: Sequence[Node] | None
) -> tuple[Buffer, ...]:
    """Return a caller's inputs, by default all; raise ModelError for equal names."""
    if inputs is None:
        order = toposort([*outputs.values(), *writes])
        inputs = [n for n in order if n.op is Op.BUFFER and n.arg.kind == "input"]
    names = [n.arg.name for n in inputs]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise ModelError(f"two inputs have the same name: {', '.join(repeated)}; rename one")
    return tuple(n.arg for n in inputs)


def _passed(
    outputs: Mapping[str, Node], states: Sequence[Node], context: CompileContext, origins: Origins
) -> tuple[dict[str, Node], list[Node]]:
    """Return the stored node of each output, and all nodes to compute, after the passes."""
    verify([*outputs.values(), *states], origins=origins)
    roots = run_passes([*outputs.values(), *states], context, origins)
    sinks: list[Node] = []
    for node in roots[: len(outputs)]:
        # An output needs storage of its own: not a buffer's, not a state's, not another output's.
        shared = node in sinks or node.op in (Op.BUFFER, Op.CONST, Op.ASSIGN)
        sinks.append(_own_storage(node, sinks) if shared else node)
    named = dict(zip(outputs, sinks, strict=True))
    return named, [*sinks, *roots[len(outputs) :]]


def _with_halves(
    named: Mapping[str, Node], roots: Sequence[Node], context: CompileContext, origins: Origins
) -> tuple[dict[str, Node], list[Node], frozenset[Node], PrecisionReport]:
    """Return outputs and roots with half storage, what has to be stored for it, and a report."""
    spec = context.spec
    halved = store_halves(roots, storage_plan(roots, spec).regions, spec, origins)
    origins.follow(halved.new)
    verify(halved.roots, "half storage", origins)
    _tell(context, "half storage", halved.roots, origins)
    outputs = dict(zip(named, halved.roots, strict=False))  # the roots begin with the outputs
    return outputs, halved.roots, halved.pins, halved.report


def _with_exact_halves(
    named: Mapping[str, Node], roots: Sequence[Node], context: CompileContext, origins: Origins
) -> tuple[dict[str, Node], list[Node]]:
    """Return outputs and roots whose weights are stored as the halves that they were."""
    halved = store_exact_halves(roots, context.spec)
    origins.follow(halved.new)
    verify(halved.roots, "weights as halves", origins)
    _tell(context, "weights as halves", halved.roots, origins)
    return dict(zip(named, halved.roots, strict=False)), halved.roots


def _has_halves(roots: Sequence[Node]) -> bool:
    return any(node.dtype is dt.float16 for node in toposort(roots))


def _unwritten(node: Node) -> Node:
    """Return what stands for an output without elements: no kernel has anything to write there."""
    return make(Op.BUFFER, node.dtype, (), Buffer("output", "", node.shape, node.dtype))


def _own_storage(node: Node, taken: Sequence[Node]) -> Node:
    copy = make(Op.CONTIGUOUS, node.dtype, (node,))
    while copy in taken:
        copy = make(Op.CONTIGUOUS, node.dtype, (copy,))
    return copy
