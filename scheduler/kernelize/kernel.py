"""A Kernel is one launch: loop nests over logical indices, with what they write and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from scheduler.ir.custom_kernel import CustomKernel
from scheduler.ir.index import Atom, flatten, leaves
from scheduler.ir.node import Node, storage_of
from scheduler.ir.ops import COST, ELEMENTWISE, LOOPS, Op
from scheduler.kernelize.body import Body, Store
from scheduler.kernelize.scalar import depends_on, scalar_nodes

# --- The launch of a custom kernel: its buffers, and the epilogue that is computed in its slot


@dataclass(frozen=True, eq=False)
class CustomLaunch:
    """What makes a Kernel a custom one."""

    spec: CustomKernel
    inputs: tuple[Node, ...]  # whose storage is in0, in1, ...; row-major, may come twice
    outputs: tuple[Node, ...]  # all its RESULT nodes, read or not
    epilogue: Body | None = None  # loop nest that stores instead of the first output

    @property
    def bytes_moved(self) -> int:
        """Bytes of its arguments; what an epilogue reads is counted once per element."""
        moved = [*dict.fromkeys(self.inputs), *self.outputs[1:]]
        total = sum(n.dtype.itemsize * prod(n.shape) for n in moved)
        if self.epilogue is None:
            return total + self.outputs[0].dtype.itemsize * prod(self.outputs[0].shape)
        (store,) = self.epilogue.stores
        total += store.target.dtype.itemsize * prod(store.target.shape)
        read: dict[Node, int] = {}
        for node, atoms in depends_on(self.epilogue.value).items():
            if node.op is Op.LOAD and node.src[0] is not self.outputs[0]:
                read[node.src[0]] = read.get(node.src[0], 0) + prod(a.size for a in atoms)
        both = ((n, min(count, prod(n.shape))) for n, count in read.items())
        return total + sum(n.dtype.itemsize * count for n, count in both)


@dataclass(frozen=True, eq=False)
class Kernel:
    """One launch; compared by identity."""

    bodies: tuple[Body, ...]  # several are independent of each other and run side by side
    targets: tuple[Node, ...]  # whose storage it writes: stored nodes, or the BUFFER of a state
    reads: tuple[Node, ...]  # BUFFER and stored nodes it loads, in first-use order
    origin: tuple[str, ...]  # ONNX node names it covers
    custom: CustomLaunch | None = None  # set for a custom kernel, which has no bodies
    scratch: tuple[Node, ...] = ()  # targets that only later nests of the kernel read

    @cached_property
    def is_copy(self) -> bool:
        """Whether it moves stored values as they are, or fills: no arithmetic, no other order."""
        stores = (store for body in self.bodies for store in body.stores)
        return self.custom is None and all(map(_is_copied, stores))

    @cached_property
    def reductions(self) -> int:
        """How many loops run inside its loop nests."""
        return sum(n.op in LOOPS for body in self.bodies for n in scalar_nodes(body.value))

    @cached_property
    def operations(self) -> int:
        """Arithmetic of one iteration of all loop nests."""
        nodes = (n for body in self.bodies for n in scalar_nodes(body.value))
        return sum(n.op in ELEMENTWISE for n in nodes)

    @cached_property
    def work(self) -> int:
        """Operations of its largest loop nest, as if nothing were hoisted."""
        return max(map(_work, self.bodies), default=0)

    @cached_property
    def bytes_moved(self) -> int:
        """Bytes it reads and writes: of each buffer what is touched, once."""
        if self.custom is not None:
            return self.custom.bytes_moved
        written: dict[Node, int] = {}
        read: dict[Node, int] = {}
        for body in self.bodies:
            depends = depends_on(body.value)
            for store in body.stores:
                atoms = {a for ix in store.index for a in leaves(ix)}
                if store.row is not None:
                    atoms |= depends[store.row.value]
                written[store.target] = written.get(store.target, 0) + _count(atoms)
            for node in depends:
                if node.op is Op.LOAD:
                    touched = read.get(node.src[0], 0) + _count(depends[node])
                    read[node.src[0]] = min(touched, prod(node.src[0].shape))
        both = (*written.items(), *read.items())
        return sum(n.dtype.itemsize * elements for n, elements in both)


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
    return read.terms == written.terms  # a part of it may start elsewhere


def _count(atoms: set[Atom]) -> int:
    return prod(a.size for a in atoms)


def _work(body: Body) -> int:
    """Return the operations of a loop nest, as if nothing were hoisted."""
    nodes = scalar_nodes(body.value)
    inner = 1 + sum(prod(r.size for r in n.arg[1]) for n in nodes if n.op in LOOPS)
    operations = 1 + sum(int(COST.get(n.op, 1)) for n in nodes if n.op in ELEMENTWISE)
    return int(prod(r.size for r in body.ranges if r is not None) * operations * inner)


def make_kernel(bodies: tuple[Body, ...], origin: tuple[str, ...]) -> Kernel:
    """Return the launch of some loop nests; what it writes and reads is taken from them."""
    targets = dict.fromkeys(s.target for body in bodies for s in body.stores)
    reads: dict[Node, None] = {}
    for body in bodies:
        nodes = scalar_nodes(body.value)
        reads.update(dict.fromkeys(storage_of(n.src[0]) for n in nodes if n.op is Op.LOAD))
    return Kernel(bodies, tuple(targets), tuple(reads), origin)


def name_of(kernel: Kernel) -> str:
    """Return what messages call a kernel."""
    return ", ".join(kernel.origin) or repr(kernel.targets[0])


def overwritable(kernel: Kernel) -> tuple[Node, ...]:
    """Return what is read only where it is written; lowering checks layouts and blocks."""
    if len(kernel.bodies) != 1 or len(kernel.bodies[0].stores) > 1:
        return ()
    (body,) = kernel.bodies
    (store,) = body.stores
    kind = (store.target.shape, store.target.dtype.itemsize)
    alike = (r for r in kernel.reads if (r.shape, r.dtype.itemsize) == kind)
    return tuple(r for r in alike if body.overwrites(store, r))


def states_in_place(kernels: Sequence[Kernel]) -> dict[Node, Node]:
    """Return the state BUFFER of each ASSIGN node whose kernel writes it without a commit."""
    targets = dict.fromkeys(t for kernel in kernels for t in kernel.targets)
    return {t: t.src[0] for t in targets if t.op is Op.ASSIGN and t.src[0] not in targets}
