"""The compiler: ONNX in, a pre-scheduled artifact out.

May import `runtime` (to run what it compiled); never `modeld` or `tools`.
"""

from scheduler.tensor.custom_kernel import CustomKernel, custom_kernel
from scheduler.tensor.tensor import Tensor

__all__ = ["CustomKernel", "Tensor", "custom_kernel"]
