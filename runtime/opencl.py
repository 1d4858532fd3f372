"""pyopencl, imported with the environment that PoCL and pyopencl read when they start.

The other modules take `cl` from here and never import pyopencl themselves, so the order is always
right. Importing this module is the one import in the runtime that does work; `import runtime`
alone does not.
"""

import os

from runtime.cache_dir import cache_dir
from runtime.errors import NoDeviceError, first_line

# PoCL keeps what it links here; its default is a directory shared by every program of the user.
if "POCL_CACHE_DIR" not in os.environ:
    os.environ["POCL_CACHE_DIR"] = str(cache_dir() / "pocl")
# pyopencl's own source cache would duplicate ours, in another directory, without the driver in
# its key.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as cl
except ImportError as error:
    raise NoDeviceError(
        f"pyopencl cannot be imported ({first_line(error)}); install modeld's dependencies"
    ) from error

__all__ = ["cl"]
