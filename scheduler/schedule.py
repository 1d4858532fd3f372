"""The pipeline: graph -> passes -> kernels -> text. A visible list of passes, verified between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scheduler import flags, trace
from scheduler.arena import Arena, plan_arena
from scheduler.debug_log import environment_observers
from scheduler.errors import ModelError
from scheduler.kernelize.kernels import Kernel, make_kernels
from scheduler.lower.lowered import LoweredKernel, lower_kernels
from scheduler.node import Buffer, Node, make, toposort
from scheduler.ops import Op
from scheduler.passes.canonicalize import RULES
from scheduler.passes.fold_constants import fold_constants
from scheduler.passes.split_cat import split_cat
from scheduler.passes.split_reduce import split_reduce
from scheduler.rewrite import Rewriter
from scheduler.verify import verify

Pass = Callable[[Sequence[Node]], Mapping[Node, Node]]


def _canonicalize(roots: Sequence[Node]) -> Mapping[Node, Node]:
    return Rewriter(RULES)(roots)


PASSES: tuple[tuple[str, Pass], ...] = (
    ("canonicalize", _canonicalize),
    ("fold constants", fold_constants),
    ("split reductions", split_reduce),
    ("split joins", split_cat),
    ("canonicalize again", _canonicalize),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """What one entry point runs.

    Attributes:
        outputs: stored node of each output name.
        kernels: lowered kernels in running order.
        inputs: input buffers a caller gives, in order, whether or not a kernel reads them.
    """

    outputs: dict[str, Node]
    kernels: list[LoweredKernel]
    inputs: tuple[Buffer, ...]

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written by all kernels, each buffer once per kernel."""
        return sum(k.bytes_moved for k in self.kernels)

    def arena(self) -> Arena:
        """Return lifetimes and places of the intermediates."""
        return plan_arena(self.kernels, frozenset(self.outputs.values()))

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena: what intermediates take when memory is used again."""
        return self.arena().size

    @property
    def unplanned_bytes(self) -> int:
        """Bytes that intermediates would take if each had its own."""
        return self.arena().unplanned


def run_passes(roots: Sequence[Node]) -> list[Node]:
    """Return the roots after all graph passes.

    Raises:
        VerifyError: a pass broke the graph (checked under DEBUG >= 1 and in tests).
    """
    current = list(roots)
    check = flags.debug() >= flags.Level.SUMMARY
    trace.after_pass(trace.INPUT, current)
    for name, apply in PASSES:
        new = apply(current)
        current = [new[r] for r in current]
        if check:
            verify(current, name)
        trace.after_pass(name, current)
    return current


def kernelize(
    outputs: Mapping[str, Node], states: Sequence[Node] = ()
) -> tuple[dict[str, Node], list[Kernel]]:
    """Return the stored node of each output and the kernels in running order.

    Args:
        outputs: by name.
        states: ASSIGN nodes to perform.
    """
    for name, node in outputs.items():
        if not all(node.shape):
            raise ModelError(f'output "{name}": shape {node.shape} has no elements to compute')
    verify([*outputs.values(), *states])
    roots = run_passes([*outputs.values(), *states])
    sinks: list[Node] = []
    for node in roots[: len(outputs)]:
        # An output needs storage of its own: not a buffer's, not a state's, not another output's.
        shared = node in sinks or node.op in (Op.BUFFER, Op.CONST, Op.ASSIGN)
        sinks.append(_own_storage(node, sinks) if shared else node)
    named = dict(zip(outputs, sinks, strict=True))
    return named, make_kernels([*sinks, *roots[len(outputs) :]])


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
) -> Schedule:
    """Compile a graph to kernels.

    Args:
        outputs: nodes to return, by name.
        states: ASSIGN nodes to perform; those reachable from outputs are performed anyway.
        inputs: input BUFFER nodes in calling order; by default those the graph reads.
        observer: watches, beside those of the context and those that DEBUG and VIZ ask for.

    Raises:
        SchedulerError: the graph cannot be scheduled or lowered.
    """
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
        named, kernels = kernelize(outputs, writes)
        lowered = lower_kernels(kernels, list(named.values()))
        plan = Schedule(named, lowered, tuple(n.arg for n in inputs))
        trace.scheduled(plan)
    return plan
