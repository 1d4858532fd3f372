"""pyopencl, imported with the environment that PoCL and pyopencl read when they start.

The other modules take `cl` from here and never import pyopencl themselves, so the order is always
right. Importing this module is the one import in the runtime that does work; `import runtime`
alone does not.
"""

import os
from typing import Final

from runtime.errors import NoDeviceError, first_line
from runtime.files.cache_dir import cache_dir, is_usable, temporary_dir
from runtime.opencl.pocl_cache import PoclDirectory, base_of


def _pocl_directory() -> PoclDirectory:
    """Make the directory that PoCL writes to, where the environment says or in our cache.

    PoCL aborts the process if it cannot write there.
    """
    configured = os.environ.get("POCL_CACHE_DIR")
    base, variable = cache_dir() / "pocl", "MODELD_CACHE_DIR"
    if configured:
        base, variable = base_of(configured), "POCL_CACHE_DIR"
    return PoclDirectory(base if is_usable(base) else temporary_dir(str(base), variable))


pocl_directory: Final = _pocl_directory()
os.environ["POCL_CACHE_DIR"] = str(pocl_directory.path)
# pyopencl's own source cache would duplicate ours, in another directory, without the driver in
# its key.
os.environ.setdefault("PYOPENCL_NO_CACHE", "1")

try:
    import pyopencl as cl
except ImportError as error:
    raise NoDeviceError(
        f"pyopencl cannot be imported ({first_line(error)}); install modeld's dependencies"
    ) from error

__all__ = ["cl", "pocl_directory"]
