"""An implementation of ONNX's backend interface (`onnx.backend.base`) with this compiler.

import scheduler.onnx_backend as backend
backend.prepare(onnx_model).run([x])
"""

from scheduler.onnx_backend.backend import (
    OnnxBackend,
    is_compatible,
    prepare,
    run_model,
    run_node,
    supports_device,
)

__all__ = ["OnnxBackend", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
