"""Make launches of custom kernels, and compute a consumer in their slot as an epilogue.

    y = custom(x, w); z = relu(y + b)     ->     one launch: the source computes an element of y,
                                                 its slot stores relu(y + b) at the same place

The consumer must be one loop nest without reductions that reads the first output exactly where it
stores its own result, and nobody else may need that output.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from scheduler.device.limits import Limits
from scheduler.errors import ModelError
from scheduler.ir import index as ixs
from scheduler.ir.custom_kernel import storage_of
from scheduler.ir.node import Node, make
from scheduler.ir.ops import LOOPS, Op
from scheduler.kernelize.body import Body
from scheduler.kernelize.kernel import CustomLaunch, Kernel
from scheduler.kernelize.scalar import scalar_nodes


def make_custom_kernel(launch: Node, origin: tuple[str, ...], limits: Limits) -> Kernel:
    """Return the kernel of a CUSTOM node; raise ModelError if it has too many buffers."""
    kinds = enumerate(kind for _, kind in launch.arg.outputs)
    outputs = tuple(make(Op.RESULT, kind, (launch,), i) for i, kind in kinds)
    inputs = tuple(storage_of(s) for s in launch.src)
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

    None if it has no slot, or the reader does not fit into it.
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
    """Whether a loop nest computes each element from the same element of `raw`, at one place."""
    if len(body.stores) != 1:
        return False
    (store,) = body.stores
    own = tuple(ixs.ZERO if r is None else ixs.of(r) for r in body.ranges)
    shape = store.target.shape
    if store.target.op in (Op.ASSIGN, Op.BUFFER) or store.index != own:
        return False
    place = ixs.flatten(store.index, shape)
    if prod(shape) != prod(raw.shape) or len(body.ranges) != len(shape):
        return False
    if lanes > 1 and shape[-1] % lanes:
        return False
    for node in scalar_nodes(store.value):
        if node.op in LOOPS or node.op is Op.PICK:
            return False
        if node.op is not Op.LOAD:
            continue
        if any(a.node is not None for ix in node.arg.index for a in ixs.leaves(ix)):
            return False  # a row known at run time only
        if node.src[0] is raw:
            same = ixs.flatten(node.arg.index, raw.shape) is place
            if not same or node.arg.valid != ():
                return False
    return True
