"""The launch of a custom kernel: its buffers, and the epilogue that is computed in its slot."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from scheduler.ir.custom_kernel import CustomKernel
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.scalar import depends_on


@dataclass(frozen=True, eq=False)
class CustomLaunch:
    """What makes a Kernel a custom one.

    Attributes:
        spec: what the user wrote.
        inputs: whose storage is bound to in0, in1, ...; row-major, a node may come twice.
        outputs: its RESULT nodes, all of them, whether or not anybody reads them.
        epilogue: loop nest whose value is stored instead of the first output, from which it loads;
            None if that is stored as it is.
    """

    spec: CustomKernel
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    epilogue: Body | None = None

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
