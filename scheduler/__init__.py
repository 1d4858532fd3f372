"""The compiler: translates ONNX models to artifacts, which hold kernels and their launch order.

It may import `runtime`, to run the compiled artifacts, but never `modeld` or `tools`.
"""

from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

__all__ = ["CustomKernel", "Tensor", "custom_kernel"]
