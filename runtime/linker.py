"""A linker for PoCL, which aborts the whole process when it finds no `ld` on PATH.

PoCL turns each kernel into a shared object with the linker clang's driver finds. A machine with
only Python has none; the `ziglang` package carries LLVM's lld, and a two-line `ld` script in our
cache directory makes it the one PoCL finds. Used by `runtime.device` only.
"""

import importlib.util
import logging
import os
import shlex
import shutil
from pathlib import Path

from runtime.cache_dir import cache_dir, write_whole

logger = logging.getLogger(__name__)

MISSING = (
    "PoCL needs the linker `ld` on PATH and there is none: "
    "install binutils, or `pip install ziglang` next to modeld"
)


def ensure_linker() -> bool:
    """Make sure that PoCL will find a linker; prepend a directory to PATH if that is needed.

    Returns:
        Whether there is one now. Where not, no PoCL device may be used (see MISSING).
    """
    # Python looks in a default place where PATH is not set at all; PoCL's linker driver does not.
    os.environ.setdefault("PATH", os.defpath)
    if shutil.which("ld"):
        return True
    zig = find_zig()
    if zig is None:
        return False
    shim = cache_dir() / "linker" / "ld"
    # A path is bytes; text of it is only as good as the locale.
    script = os.fsencode(f'#!/bin/sh\nexec {shlex.quote(str(zig))} ld.lld "$@"\n')
    if not shim.is_file() or shim.read_bytes() != script:
        write_whole(shim, script, 0o755)
    path = os.environ.get("PATH")
    os.environ["PATH"] = f"{shim.parent}{os.pathsep}{path}" if path else str(shim.parent)
    logger.info("no ld on PATH: PoCL links with %s", zig)
    return shutil.which("ld") is not None


def find_zig() -> Path | None:
    """Return the compiler of the extra `linker`, None where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    for location in (spec.submodule_search_locations or []) if spec else []:
        zig = Path(location) / "zig"
        if os.access(zig, os.X_OK):
            return zig
    return None
