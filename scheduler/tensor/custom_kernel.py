"""`custom_kernel`: puts a hand-written OpenCL kernel into a graph, with a slot for an epilogue.

An epilogue is elementwise work on the result, computed in the same launch:

    scale = CustomKernel(
        "scale",
        "const int i = get_global_id(0); EPILOGUE(2.0f * in0[i], i);",
        outputs=[((64,), dtype.float32)],
        items=64,
        reference=lambda x: 2 * x,
    )
    (y,) = custom_kernel(scale, x)
    z = y.relu()                       # computed in the slot: one launch

Security: the source text runs on the device with the rights of the process. Only Python code can
create a CustomKernel; no ONNX operator and nothing in an artifact becomes one.
"""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir import rewrite as forms
from scheduler.ir.custom_kernel import CustomKernel
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.tensor.tensor import Tensor

__all__ = ["CustomKernel", "alternatives", "custom_kernel"]


def custom_kernel(kernel: CustomKernel, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return the outputs of a hand-written kernel as lazy tensors.

    The inputs are `in0`, `in1`, ... in the source. They have any shape and type, and are stored in
    memory before the kernel runs. Raises ModelError if one is empty or missing.
    """
    kernel.check_inputs(len(inputs))
    for i, tensor in enumerate(inputs):
        if not tensor.size:
            raise ModelError(f"custom kernel {kernel.name}: in{i} has no elements: {tensor!r}")
    first = kernel.outputs[0][1]
    launch = make(Op.CUSTOM, first, tuple(t.node for t in inputs), kernel)
    kinds = enumerate(kind for _, kind in kernel.outputs)
    return tuple(Tensor.of(make(Op.RESULT, kind, (launch,), i)) for i, kind in kinds)


def alternatives(serial: Tensor, simt: Tensor) -> Tensor:
    """Return a value with two equivalent graphs; the target device decides which is compiled.

    `serial` is for devices with one work-item per core (CPUs), `simt` for devices that run
    neighboring work-items in lock step (GPUs).
    """
    return Tensor.of(forms.alternatives(serial.node, simt.node))
