"""Compiles one graph to a Schedule: graph passes, storage, fusion, order, rendering and limits.

    named, roots = _after_passes(outputs, writes, context, origins)  graph -> graph
    plan = store_plan(roots, context.spec)                           stored nodes, with reasons
    kernels = make_kernels(plan, origins)                            built, fused, ordered
    lowered = lower_kernels(kernels, outputs, context)               kernels -> OpenCL C

While a kernel cannot be rendered or exceeds a limit, this repeats with a plan that stores more
nodes.
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
from scheduler.kernelize.make_kernels import make_kernels
from scheduler.kernelize.regions import StorePlan
from scheduler.kernelize.store_plan import Refused, split, store_plan
from scheduler.lower import LoweredKernel, lower_kernels
from scheduler.passes.batch_branches import batch_branches
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.custom_kernels import custom_inputs, expand_alternatives
from scheduler.passes.eight_bits.byte_moves import byte_moves, byte_tables
from scheduler.passes.eight_bits.byte_products import byte_floats, byte_products
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.halves.half_arithmetic import exact_halves, half_bits, wide_halves
from scheduler.passes.halves.precision import (
    Halved,
    check_precision,
    store_exact_halves,
    store_halves,
)
from scheduler.passes.merge_assign import merge_assign
from scheduler.passes.one_hot import one_hot
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import push_slices
from scheduler.passes.split import split_concat, split_concat_sums, split_reduce
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.passes.strict_numerics import canonical_sums, fixed_values
from scheduler.passes.winograd import winograd
from scheduler.passes.winograd_kernel import pays, pays_on_all_cpus

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]

# The name of the pass that runs only with fp32 storage.
WINOGRAD: Final = "winograd"
# The name of the first stage: the graph before any pass.
INPUT: Final = "input"
# Bounds the loop if splits never help. Models have needed one or two splits.
MAX_ROUNDS: Final = 32


def passes(context: CompileContext) -> tuple[tuple[str, Pass], ...]:
    """Return the name and function of each graph pass, in order, bound to its options."""
    unsafe = context.flags.float_unsafe
    simplify = partial(canonicalize, float_unsafe=unsafe)
    # Winograd needs fp32 storage: it turns 9 weights into 16 floats.
    worth = pays_on_all_cpus if context.is_strict else pays
    fast = [(WINOGRAD, partial(winograd, spec=context.spec, worth=worth))]
    fixed = (("canonical sums", canonical_sums), ("fixed values", fixed_values))
    # Strict numerics needs the same graph on all devices, so it always uses dot products. They are
    # integer sums, and exact without the instruction, too.
    dots = replace(context.spec, dot4=True) if context.is_strict else context.spec
    # Table values depend on the compiling machine, so strict numerics has no tables.
    tables = [("tables of bytes", partial(byte_tables, spec=context.spec))]
    return (
        ("expand alternatives", partial(expand_alternatives, spec=context.spec)),
        ("bits of halves", half_bits),
        ("round halves", exact_halves if context.halves == EXACT else wide_halves),
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
        inputs: input BUFFER nodes in calling order; by default all that the graph reads.
        context: the target device and options.
        origins: ONNX names of the nodes, for messages about kernels.

    Raises:
        SchedulerError: the graph cannot be scheduled or lowered.
    """
    check_precision(context.precision)
    reachable = [n for n in toposort(outputs.values()) if n.op is Op.ASSIGN]
    writes = list(dict.fromkeys([*states, *reachable]))
    buffers = _input_buffers(outputs, writes, inputs)
    computed = {name: node for name, node in outputs.items() if all(node.shape)}
    origins = (origins or Origins()).over([*computed.values(), *writes])
    named, roots = _after_passes(computed, writes, context, origins)
    halves = context.halves if _has_halves([*outputs.values(), *writes]) else ""
    halved = _halved(roots, halves, context, origins)
    if halved is not None:
        roots = halved.roots
        named = dict(zip(named, roots, strict=False))  # the roots begin with the outputs
    stored = {n: named[n] if n in named else _placeholder(outputs[n]) for n in outputs}
    pinned = () if halved is None else halved.pins
    plan = store_plan(roots, context.spec, dict.fromkeys(pinned, "it is rounded to half"))
    plan, lowered = _kernels(plan, list(stored.values()), context, origins)
    return Schedule(
        MappingProxyType(stored),
        buffers,
        lowered,
        context.spec,
        halved.report if halved is not None and context.precision != FP32 else None,
        halves,
        context.numerics,
        context.stages,
        plan.reasons,
    )


def _kernels(
    plan: StorePlan, outputs: Sequence[Node], context: CompileContext, origins: Origins
) -> tuple[StorePlan, tuple[LoweredKernel, ...]]:
    """Return the final plan and the lowered kernels of a graph, with as few kernels as possible.

    The final plan is the given one, or stores more nodes.

    Raises LoweringError, with the kernel's origin, if a refused kernel is a single operation or is
    still refused after the last split.
    """
    refused: Refused | None = None
    for _ in range(MAX_ROUNDS + 1):
        kernels = make_kernels(plan, origins)
        lowered = lower_kernels(kernels, outputs, context)
        if isinstance(lowered, Refused):
            refused, whole = lowered, None
        else:
            refused, whole = refused_by_limits(lowered, context.spec), tuple(lowered)
        more = None if refused is None else split(plan, refused, kernels)
        if more is not None:
            plan = more
        elif whole is not None:  # `check_limits` reports a limit that a single operation exceeds
            return plan, whole
        else:
            raise LoweringError(
                f"{refused}; it is a single operation, which cannot be split further: rewrite "
                "this part of the model"
            )
    raise LoweringError(
        f"{refused}; still refused after {MAX_ROUNDS} splits: rewrite this part of the model"
    )


def run_passes(
    roots: Sequence[Node],
    context: CompileContext = DEFAULT_CONTEXT,
    origins: Origins | None = None,
) -> list[Node]:
    """Return the roots after all graph passes; the context's stages record the graph after each.

    `origins` (see `Origins.over`) is updated after each pass. Raises VerifyError if a pass broke
    the graph. This is checked after each pass under DEBUG >= 1 and in tests, otherwise once at the
    end.
    """
    current = list(roots)
    origins = origins or Origins()
    check = context.flags.debug >= Level.SUMMARY
    _record_stage(context, INPUT, current, origins)
    for name, apply in passes(context):
        new = apply(current)
        current = [new[r] for r in current]
        origins.follow(new)
        if check:
            verify(current, name, origins)
        _record_stage(context, name, current, origins)
    if not check:
        verify(current, "all passes", origins)
    return current


def _record_stage(
    context: CompileContext, name: str, roots: Sequence[Node], origins: Origins
) -> None:
    if context.stages is not None:
        context.stages.add(name, roots, origins)


def kernelize(
    outputs: Mapping[str, Node],
    states: Sequence[Node] = (),
    context: CompileContext = DEFAULT_CONTEXT,
) -> tuple[dict[str, Node], list[Kernel]]:
    """Return the stored node of each output and the kernels in running order."""
    named, roots = _after_passes(outputs, states, context, Origins())
    return named, make_kernels(store_plan(roots, context.spec))


def _input_buffers(
    outputs: Mapping[str, Node], writes: Sequence[Node], inputs: Sequence[Node] | None
) -> tuple[Buffer, ...]:
    """Return the caller's inputs, by default all; raise ModelError if two have the same name."""
    if inputs is None:
        order = toposort([*outputs.values(), *writes])
        inputs = [n for n in order if n.op is Op.BUFFER and n.arg.kind == "input"]
    names = [n.arg.name for n in inputs]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise ModelError(f"two inputs have the same name: {', '.join(repeated)}; rename one")
    return tuple(n.arg for n in inputs)


def _after_passes(
    outputs: Mapping[str, Node], states: Sequence[Node], context: CompileContext, origins: Origins
) -> tuple[dict[str, Node], list[Node]]:
    """Return the stored node of each output, and all roots after the passes, outputs first."""
    verify([*outputs.values(), *states], origins=origins)
    roots = run_passes([*outputs.values(), *states], context, origins)
    sinks: list[Node] = []
    for node in roots[: len(outputs)]:
        # An output needs its own storage, not shared with a buffer, a state or another output.
        shared = node in sinks or node.op in (Op.BUFFER, Op.CONST, Op.ASSIGN)
        sinks.append(_own_storage(node, sinks) if shared else node)
    named = dict(zip(outputs, sinks, strict=True))
    return named, [*sinks, *roots[len(outputs) :]]


def _halved(
    roots: Sequence[Node], halves: str, context: CompileContext, origins: Origins
) -> Halved | None:
    """Return the graph with fp16 storage, or with weights that were fp16 stored as such."""
    spec = context.spec
    if context.precision != FP32:
        name = "half storage"
        halved = store_halves(roots, store_plan(roots, spec).regions, spec, origins)
    elif halves == WIDE:
        name, halved = "weights as halves", store_exact_halves(roots, spec)
    else:
        return None
    origins.follow(halved.new)
    verify(halved.roots, name, origins)
    _record_stage(context, name, halved.roots, origins)
    return halved


def _has_halves(roots: Sequence[Node]) -> bool:
    return any(node.dtype is dt.float16 for node in toposort(roots))


def _placeholder(node: Node) -> Node:
    """Return a placeholder for an output without elements, which no kernel writes."""
    return make(Op.BUFFER, node.dtype, (), Buffer("output", "", node.shape, node.dtype))


def _own_storage(node: Node, taken: Sequence[Node]) -> Node:
    copy = make(Op.CONTIGUOUS, node.dtype, (node,))
    while copy in taken:
        copy = make(Op.CONTIGUOUS, node.dtype, (copy,))
    return copy
