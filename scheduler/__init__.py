"""The compiler: ONNX in, a pre-scheduled artifact out.

May import `runtime` (to run what it compiled); never `modeld` or `tools`.
"""

from scheduler.custom import CustomKernel, custom_kernel
from scheduler.tensor import Tensor

__all__ = ["CustomKernel", "Tensor", "custom_kernel"]
