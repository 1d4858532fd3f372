"""Defines Kernel, one launch: its loop nests and the buffers that they write and read.

Loop nests use logical indices here; later stages choose the storage layout. A custom kernel is
OpenCL source supplied by the user and has no loop nests. Its source may have a slot, into which one
loop nest is fused as an epilogue if it is the only reader of the kernel's first output:

    y = custom(x, w); z = relu(y + b)     ->     one launch: the source computes an element of y,
                                                 its slot stores relu(y + b) at the same index
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from scheduler.device.spec import Limits
from scheduler.errors import ModelError
from scheduler.ir import index as ixs
from scheduler.ir.custom_kernel import CustomKernel, bound_input
from scheduler.ir.index import Atom, flatten, leaves
from scheduler.ir.node import Node, make, storage_of
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.body import Body, Store
from scheduler.kernelize.scalar import depends_on, scalar_nodes


@dataclass(frozen=True, eq=False)
class CustomLaunch:
    """The parts of a Kernel that only a custom kernel has."""

    spec: CustomKernel
    inputs: tuple[Node, ...]  # nodes bound to in0, in1, ...; row-major, repeats allowed
    outputs: tuple[Node, ...]  # all RESULT nodes, including those that nothing reads
    epilogue: Body | None = None  # loop nest in the slot; its result replaces the first output


@dataclass(frozen=True, eq=False)
class Kernel:
    """One launch. Kernels compare by identity."""

    bodies: tuple[Body, ...]  # loop nests; if several, they are independent of each other
    # nodes whose storage it writes: stored nodes, or the BUFFER of a state
    targets: tuple[Node, ...]
    reads: tuple[Node, ...]  # BUFFER and stored nodes that it loads, in order of first use
    origin: tuple[str, ...]  # names of the ONNX nodes that it computes
    custom: CustomLaunch | None = None  # set for a custom kernel, which has no bodies
    scratch: tuple[Node, ...] = ()  # targets that only later nests of this kernel read

    @cached_property
    def is_copy(self) -> bool:
        """Whether it only copies or fills elements, without arithmetic or a change of order."""
        stores = (store for body in self.bodies for store in body.stores)
        return self.custom is None and all(map(_is_copied, stores))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The scalar nodes of all loop nests."""
        return tuple(n for body in self.bodies for n in scalar_nodes(body.value))

    @cached_property
    def loads(self) -> tuple[Node, ...]:
        """The scalar nodes that read memory."""
        return tuple(n for n in self.nodes if n.op is Op.LOAD)

    @cached_property
    def reductions(self) -> int:
        """Number of loops inside its loop nests, reductions included."""
        return sum(n.op in LOOPS for n in self.nodes)

    @cached_property
    def operations(self) -> int:
        """Number of arithmetic nodes in all loop nests: the operations of one iteration."""
        return sum(n.op in ELEMENTWISE for n in self.nodes)

    @cached_property
    def work(self) -> int:
        """Operations of its largest loop nest, if nothing is hoisted."""
        return max(map(_work, self.bodies), default=0)

    @cached_property
    def bytes_moved(self) -> int:
        """Bytes it reads and writes; each touched element counts once per buffer."""
        launch, bodies = self.custom, self.bodies
        total, inside = 0, None
        if launch is not None:  # the source can touch all elements of its arguments
            moved = [*dict.fromkeys(launch.inputs), *launch.outputs]
            if launch.epilogue is not None:
                bodies, inside = (launch.epilogue,), launch.outputs[0]
            total = sum(n.dtype.itemsize * prod(n.shape) for n in moved if n is not inside)
        written: dict[Node, int] = {}
        read: dict[Node, int] = {}
        for body in bodies:
            depends = depends_on(body.value)
            for store in body.stores:
                atoms = {a for ix in store.index for a in leaves(ix)}
                if store.row is not None:
                    atoms |= depends[store.row.value]
                written[store.target] = written.get(store.target, 0) + _count(atoms)
            for node in depends:
                if node.op is Op.LOAD and node.src[0] is not inside:
                    touched = read.get(node.src[0], 0) + _count(depends[node])
                    read[node.src[0]] = min(touched, prod(node.src[0].shape))
        both = (*written.items(), *read.items())
        return total + sum(n.dtype.itemsize * elements for n, elements in both)


def _is_copied(store: Store) -> bool:
    value = store.value
    if store.row is not None:
        return False
    if value.op is Op.CONST:
        return True
    if value.op is not Op.LOAD or value.arg.valid != ():
        return False
    read = flatten(value.arg.index, value.src[0].shape)
    written = flatten(store.index, store.target.shape)
    # the offset may differ: the copied block can start elsewhere
    return read.terms == written.terms


def _count(atoms: set[Atom]) -> int:
    return prod(a.size for a in atoms)


def _work(body: Body) -> int:
    """Return the operations of a loop nest, if nothing is hoisted."""
    nodes = scalar_nodes(body.value)
    inner = 1 + sum(prod(r.size for r in n.arg[1]) for n in nodes if n.op in LOOPS)
    operations = 1 + sum(int(COST.get(n.op, 1)) for n in nodes if n.op in ELEMENTWISE)
    return int(prod(r.size for r in body.ranges if r is not None) * operations * inner)


def make_kernel(bodies: tuple[Body, ...], origin: tuple[str, ...]) -> Kernel:
    """Return a kernel of loop nests; its targets and reads are collected from them."""
    targets = dict.fromkeys(s.target for body in bodies for s in body.stores)
    nodes = (n for body in bodies for n in scalar_nodes(body.value))
    reads = dict.fromkeys(storage_of(n.src[0]) for n in nodes if n.op is Op.LOAD)
    return Kernel(bodies, tuple(targets), tuple(reads), origin)


def name_of(kernel: Kernel) -> str:
    """Return the name of a kernel in messages."""
    return ", ".join(kernel.origin) or repr(kernel.targets[0])


def overwritable(kernel: Kernel) -> tuple[Node, ...]:
    """Return the sources that the kernel may overwrite; lowering checks layouts and blocks."""
    if len(kernel.bodies) != 1 or len(kernel.bodies[0].stores) > 1:
        return ()
    (body,) = kernel.bodies
    (store,) = body.stores
    kind = (store.target.shape, store.target.dtype.itemsize)
    alike = (r for r in kernel.reads if (r.shape, r.dtype.itemsize) == kind)
    return tuple(r for r in alike if body.overwrites(store, r))


def intermediates(kernels: Sequence[Kernel], outputs: Collection[Node]) -> list[Node]:
    """Return the stored nodes that are neither outputs nor states, in order of writing."""
    elsewhere = {*outputs, *states_in_place(kernels)}
    targets = dict.fromkeys(t for kernel in kernels for t in kernel.targets)
    return [t for t in targets if t.op is not Op.BUFFER and t not in elsewhere]


def states_in_place(kernels: Sequence[Kernel]) -> dict[Node, Node]:
    """Return the state BUFFERs of the ASSIGN nodes that are written without a commit."""
    targets = dict.fromkeys(t for kernel in kernels for t in kernel.targets)
    return {t: t.src[0] for t in targets if t.op is Op.ASSIGN and t.src[0] not in targets}


def make_custom_kernel(launch: Node, origin: tuple[str, ...], limits: Limits) -> Kernel:
    """Return the kernel of a CUSTOM node; raise ModelError if it has too many buffers."""
    kinds = enumerate(kind for _, kind in launch.arg.outputs)
    outputs = tuple(make(Op.RESULT, kind, (launch,), i) for i, kind in kinds)
    inputs = tuple(bound_input(s) for s in launch.src)
    reads = tuple(dict.fromkeys(inputs))
    if not limits.fits(len(reads), len(outputs)):
        raise ModelError(
            f"custom kernel {launch.arg}: expected at most {limits.max_buffers} "
            f"buffers, found {len(reads) + len(outputs)}; join some of them"
        )
    custom = CustomLaunch(launch.arg, inputs, outputs)
    return Kernel((), custom.outputs, reads, origin, custom)


def with_epilogue(kernel: Kernel, reader: Kernel, limits: Limits) -> Kernel | None:
    """Return a custom kernel whose slot computes the only reader of its first output.

    Return None if the kernel has no slot or the reader does not fit into it. The reader must be a
    single loop nest without reductions that reads each element of the output at the index where it
    stores its own result.
    """
    launch = kernel.custom
    if launch is None or not launch.spec.has_slot or len(reader.bodies) != 1:
        return None
    raw, (body,) = launch.outputs[0], reader.bodies
    if {*kernel.targets} & {*reader.reads} != {raw} or launch.epilogue is not None:
        return None
    if not _is_epilogue(body, raw, launch.spec.lanes):
        return None
    operands = tuple(n for n in reader.reads if n is not raw)
    targets = (body.stores[0].target, *launch.outputs[1:])
    if not limits.fits(len(launch.inputs) + len(operands), len(targets)):
        return None
    reads = tuple(dict.fromkeys((*launch.inputs, *operands)))
    origin = tuple(dict.fromkeys((*kernel.origin, *reader.origin)))
    return Kernel((), targets, reads, origin, replace(launch, epilogue=body))


def _is_epilogue(body: Body, raw: Node, lanes: int) -> bool:
    """Whether a nest has one store and computes each element from the same element of `raw`."""
    if len(body.stores) != 1:
        return False
    (store,) = body.stores
    own = tuple(ixs.ZERO if r is None else ixs.of(r) for r in body.ranges)
    shape = store.target.shape
    if store.target.op in (Op.ASSIGN, Op.BUFFER) or store.index != own:
        return False
    if len(own) != len(shape) or prod(shape) != prod(raw.shape):
        return False
    if lanes > 1 and shape[-1] % lanes:
        return False
    nodes = scalar_nodes(store.value)
    loads = [n for n in nodes if n.op is Op.LOAD]
    known = all(a.node is None for n in loads for ix in n.arg.index for a in leaves(ix))
    whole = all(n.arg.valid == () for n in loads if n.src[0] is raw)
    loops = any(n.op in LOOPS or n.op is Op.PICK for n in nodes)
    return known and whole and not loops and body.overwrites(store, raw)
