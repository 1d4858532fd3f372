"""The pipeline turns one graph into a Schedule: passes, kernels, text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from scheduler import flags
from scheduler.context import FP32, CompileContext
from scheduler.debug import trace
from scheduler.debug.log import environment_observers
from scheduler.device import spec as device_spec
from scheduler.device import tuned_table
from scheduler.device.spec import DeviceSpec
from scheduler.emit.arena import Arena, plan_arena
from scheduler.errors import ModelError
from scheduler.ir.node import Buffer, Node, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.ir.verify import verify
from scheduler.kernelize.kernel import Kernel
from scheduler.kernelize.kernels import make_kernels, storage_plan
from scheduler.kernelize.splits import Splits, with_splits
from scheduler.lower import LoweredKernel, lower_kernels
from scheduler.passes.alternatives import expand_alternatives
from scheduler.passes.batch_branches import batch_branches
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.custom_inputs import custom_inputs
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.halves import halves
from scheduler.passes.merge_assign import merge_assign
from scheduler.passes.one_hot import one_hot
from scheduler.passes.precision import PrecisionReport, check_precision, store_halves
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import push_slices
from scheduler.passes.split_concat import split_concat
from scheduler.passes.split_concat_sums import split_concat_sums
from scheduler.passes.split_reduce import split_reduce
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.passes.winograd import winograd

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]


# Not run where weights are halves.
WINOGRAD = "winograd"


def passes(context: CompileContext) -> tuple[tuple[str, Pass], ...]:
    """Return name and function of all graph passes, in order, each given what it needs."""
    unsafe = context.flags.float_unsafe
    simplify = partial(canonicalize, float_unsafe=unsafe)
    return (
        ("expand alternatives", partial(expand_alternatives, spec=context.spec)),
        ("round halves", halves),
        ("merge partial assignments", merge_assign),
        ("canonicalize", simplify),
        ("one hot to gather", partial(one_hot, float_unsafe=unsafe)),
        ("fold constants", fold_constants),
        ("canonicalize folded", simplify),
        ("reduce strength", strength_reduce),
        ("push gathers", push_gather),
        ("push slices", push_slices),
        ("split concat sums", split_concat_sums),
        ("batch branches", batch_branches),
        ("split reductions", split_reduce),
        ("split concat", partial(split_concat, limits=context.limits)),
        (WINOGRAD, partial(winograd, spec=context.spec)),
        ("canonicalize again", simplify),
        ("bind custom inputs", custom_inputs),
    )


def ambient(precision: str = FP32) -> CompileContext:
    """Return the context that the device in force and the environment make."""
    asked = replace(flags.Flags.from_environment(), float_unsafe=flags.float_unsafe())
    return CompileContext(device_spec.current(), asked, precision, tuned_table.current())


@dataclass(frozen=True, eq=False)
class Schedule:
    """What one entry point runs.

    Attributes:
        outputs: stored node of each output name.
        launches: all kernels in running order.
        inputs: input buffers a caller gives, in order, whether or not a kernel reads them.
        remake: returns other launches, for kernels whose code cannot be generated.
        precision: what half storage did; None where nothing was asked for.
        context: what it was made for.
    """

    outputs: dict[str, Node]
    launches: list[Kernel]
    inputs: tuple[Buffer, ...]
    remake: Callable[[Splits], list[Kernel]]
    precision: PrecisionReport | None = None
    context: CompileContext = field(default_factory=ambient)

    @property
    def kernels(self) -> list[Kernel]:
        """The launches that compute something."""
        return [k for k in self.launches if not k.is_copy]

    @property
    def copies(self) -> list[Kernel]:
        """The launches that only move a stored value: commits of states, copied outputs."""
        return [k for k in self.launches if k.is_copy]

    @cached_property
    def lowered(self) -> list[LoweredKernel]:
        """All launches as OpenCL text, in running order; made on first use.

        A kernel whose code cannot be generated is split, and `launches` with it.

        Raises:
            LoweringError: a kernel cannot be split further; the message names its origin.
        """

        def make(splits: Splits) -> list[LoweredKernel]:
            if splits != Splits():
                self.launches[:] = self.remake(splits)
            return lower_kernels(self.launches, list(self.outputs.values()), self.context)

        return with_splits(make)

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by all launches: of each buffer what is touched, once a launch."""
        return sum(k.bytes_moved for k in self.launches)

    def arena(self) -> Arena:
        """Return lifetimes and places of the intermediates."""
        return plan_arena(self.lowered, frozenset(self.outputs.values()))

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena: what intermediates take when memory is used again."""
        return self.arena().size

    @property
    def unplanned_bytes(self) -> int:
        """Bytes that intermediates would take if each had its own."""
        return self.arena().unplanned


def run_passes(
    roots: Sequence[Node], context: CompileContext | None = None, origins: Origins | None = None
) -> list[Node]:
    """Return the roots after all graph passes.

    Args:
        roots: of the graph.
        context: what the graph is compiled for, by default for what is in force. With halves,
            Winograd's convolutions are left out: their weights are floats, 16 for 9.
        origins: ONNX names, of `Origins.over`; it follows the passes.

    Raises:
        VerifyError: a pass broke the graph: checked after each under DEBUG >= 1 and in tests,
            otherwise once at the end.
    """
    context = context or ambient()
    current = list(roots)
    origins = origins or Origins()
    check = context.flags.debug >= flags.Level.SUMMARY
    trace.after_pass(trace.INPUT, current, origins)
    for name, apply in passes(context):
        if name == WINOGRAD and context.precision != FP32:
            continue
        new = apply(current)
        current = [new[r] for r in current]
        origins.follow(new)
        if check:
            verify(current, name, origins)
        trace.after_pass(name, current, origins)
    if not check:
        verify(current, "all passes", origins)
    return current


def kernelize(
    outputs: Mapping[str, Node], states: Sequence[Node] = ()
) -> tuple[dict[str, Node], list[Kernel]]:
    """Return the stored node of each output and the kernels in running order.

    Args:
        outputs: by name.
        states: ASSIGN nodes to perform.
    """
    context = ambient()
    named, roots = _sinks(outputs, states, context, Origins())
    return named, make_kernels(roots, context.spec)


def _sinks(
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
    named: Mapping[str, Node], roots: Sequence[Node], spec: DeviceSpec, origins: Origins
) -> tuple[dict[str, Node], list[Node], frozenset[Node], PrecisionReport]:
    """Return outputs and roots with half storage, what has to be stored for it, and a report."""
    halved = store_halves(roots, storage_plan(roots, spec).regions, spec, origins)
    origins.follow(halved.new)
    verify(halved.roots, "half storage", origins)
    trace.after_pass("half storage", halved.roots, origins)
    outputs = dict(zip(named, halved.roots, strict=False))  # the roots begin with the outputs
    return outputs, halved.roots, halved.pins, halved.report


def _unwritten(node: Node) -> Node:
    """Return what stands for an output without elements: no kernel has anything to write there."""
    return make(Op.BUFFER, node.dtype, (), Buffer("output", "", node.shape, node.dtype))


def _own_storage(node: Node, taken: Sequence[Node]) -> Node:
    copy = make(Op.CONTIGUOUS, node.dtype, (node,))
    while copy in taken:
        copy = make(Op.CONTIGUOUS, node.dtype, (copy,))
    return copy


def schedule(
    outputs: Mapping[str, Node],
    states: Sequence[Node] = (),
    inputs: Sequence[Node] | None = None,
    observer: trace.Observer | None = None,
    precision: str = FP32,
    origins: Origins | None = None,
) -> Schedule:
    """Compile a graph to kernels.

    Args:
        outputs: nodes to return, by name.
        states: ASSIGN nodes to perform; those reachable from outputs are performed anyway.
        inputs: input BUFFER nodes in calling order; by default those the graph reads.
        observer: watches, beside those of the context and those that DEBUG and VIZ ask for.
        precision: "fp32", or "fp16": what is stored between kernels, and weights, are halves.
        origins: ONNX names of the nodes, for what is said about kernels.

    Raises:
        SchedulerError: the graph cannot be scheduled or lowered.
    """
    check_precision(precision)
    context = ambient(precision)
    reachable = [n for n in toposort(outputs.values()) if n.op is Op.ASSIGN]
    writes = list(dict.fromkeys([*states, *reachable]))
    if inputs is None:
        order = toposort([*outputs.values(), *writes])
        inputs = [n for n in order if n.op is Op.BUFFER and n.arg.kind == "input"]
    names = [n.arg.name for n in inputs]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise ModelError(f"two inputs have the same name: {', '.join(repeated)}; rename one")
    watching = [observer] if observer is not None else []
    with trace.observing(*watching, *environment_observers()):
        some = {n: node for n, node in outputs.items() if all(node.shape)}
        origins = (origins or Origins()).over([*some.values(), *writes])
        named, roots = _sinks(some, writes, context, origins)
        pins, report = frozenset[Node](), None
        if precision != FP32:
            named, roots, pins, report = _with_halves(named, roots, context.spec, origins)

        def remake(splits: Splits) -> list[Kernel]:
            more = replace(splits, pins=splits.pins | pins)
            return make_kernels(roots, context.spec, more, origins)

        buffers = tuple(n.arg for n in inputs)
        stored = {n: named[n] if n in named else _unwritten(outputs[n]) for n in outputs}
        plan = Schedule(stored, remake(Splits()), buffers, remake, report, context)
        if trace.is_watched():
            _ = plan.lowered  # the loops are chosen now, while somebody looks
            trace.scheduled(plan)
    return plan
