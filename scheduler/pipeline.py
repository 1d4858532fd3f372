"""The pipeline: graph -> passes -> kernels -> text. A visible list of passes, verified between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from scheduler import flags
from scheduler.debug import trace
from scheduler.debug.log import environment_observers
from scheduler.device import spec as device_spec
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
from scheduler.passes.batch_branches import batch_branches
from scheduler.passes.canonicalize import canonicalize
from scheduler.passes.custom_inputs import custom_inputs
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.halves import halves
from scheduler.passes.merge_assign import merge_assign
from scheduler.passes.one_hot import one_hot
from scheduler.passes.precision import FP32, PrecisionReport, check_precision, store_halves
from scheduler.passes.push_gather import push_gather
from scheduler.passes.push_slices import narrow
from scheduler.passes.split_concat import split_cat
from scheduler.passes.split_concat_sums import split_joined_sums
from scheduler.passes.split_reduce import split_reduce
from scheduler.passes.strength_reduce import strength_reduce
from scheduler.passes.winograd import winograd

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]


# Not run where weights are halves.
WINOGRAD = "fast convolutions"
PASSES: tuple[tuple[str, Pass], ...] = (
    ("round halves", halves),
    ("merge partial assignments", merge_assign),
    ("canonicalize", canonicalize),
    ("choices of rows", one_hot),
    ("fold constants", fold_constants),
    ("canonicalize folded", canonicalize),
    ("reduce strength", strength_reduce),
    ("push gathers", push_gather),
    ("narrow", narrow),
    ("split joined sums", split_joined_sums),
    ("batch branches", batch_branches),
    ("split reductions", split_reduce),
    ("split joins", split_cat),
    (WINOGRAD, winograd),
    ("canonicalize again", canonicalize),
    ("bind custom inputs", custom_inputs),
)


@dataclass(frozen=True, eq=False)
class Schedule:
    """What one entry point runs.

    Attributes:
        outputs: stored node of each output name.
        launches: all kernels in running order.
        inputs: input buffers a caller gives, in order, whether or not a kernel reads them.
        remake: returns other launches, for kernels whose code cannot be generated.
        precision: what half storage did; None where nothing was asked for.
        spec: the device in force when it was made; kernels are for it.
    """

    outputs: dict[str, Node]
    launches: list[Kernel]
    inputs: tuple[Buffer, ...]
    remake: Callable[[Splits], list[Kernel]]
    precision: PrecisionReport | None = None
    spec: DeviceSpec = field(default_factory=device_spec.current)

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
            return lower_kernels(self.launches, list(self.outputs.values()))

        with device_spec.using(self.spec):
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
    roots: Sequence[Node], precision: str = FP32, origins: Origins | None = None
) -> list[Node]:
    """Return the roots after all graph passes.

    Args:
        roots: of the graph.
        precision: as for `schedule`. With halves, Winograd's convolutions are left out: their
            weights are floats, 16 for 9.
        origins: ONNX names, of `Origins.over`; it follows the passes.

    Raises:
        VerifyError: a pass broke the graph: checked after each under DEBUG >= 1 and in tests,
            otherwise once at the end.
    """
    current = list(roots)
    origins = origins or Origins()
    check = flags.debug() >= flags.Level.SUMMARY
    trace.after_pass(trace.INPUT, current, origins)
    for name, apply in PASSES:
        if name == WINOGRAD and precision != FP32:
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
    named, roots = _sinks(outputs, states, FP32, Origins())
    return named, make_kernels(roots)


def _sinks(
    outputs: Mapping[str, Node], states: Sequence[Node], precision: str, origins: Origins
) -> tuple[dict[str, Node], list[Node]]:
    """Return the stored node of each output, and all nodes to compute, after the passes."""
    verify([*outputs.values(), *states], origins=origins)
    roots = run_passes([*outputs.values(), *states], precision, origins)
    sinks: list[Node] = []
    for node in roots[: len(outputs)]:
        # An output needs storage of its own: not a buffer's, not a state's, not another output's.
        shared = node in sinks or node.op in (Op.BUFFER, Op.CONST, Op.ASSIGN)
        sinks.append(_own_storage(node, sinks) if shared else node)
    named = dict(zip(outputs, sinks, strict=True))
    return named, [*sinks, *roots[len(outputs) :]]


def _with_halves(
    named: Mapping[str, Node], roots: Sequence[Node], origins: Origins
) -> tuple[dict[str, Node], list[Node], frozenset[Node], PrecisionReport]:
    """Return outputs and roots with half storage, what has to be stored for it, and a report."""
    halved = store_halves(roots, storage_plan(roots).regions, origins)
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
        named, roots = _sinks(some, writes, precision, origins)
        pins, report = frozenset[Node](), None
        if precision != FP32:
            named, roots, pins, report = _with_halves(named, roots, origins)

        def remake(splits: Splits) -> list[Kernel]:
            return make_kernels(roots, replace(splits, pins=splits.pins | pins), origins)

        buffers = tuple(n.arg for n in inputs)
        stored = {n: named[n] if n in named else _unwritten(outputs[n]) for n in outputs}
        plan = Schedule(stored, remake(Splits()), buffers, remake, report)
        if trace.is_watched():
            _ = plan.lowered  # the loops are chosen now, while somebody looks
            trace.scheduled(plan)
    return plan
