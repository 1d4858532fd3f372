"""The codecs of log files: zstd, bzip2 or none."""

from pathlib import Path
from typing import Any, Final

from cereal.errors import LogError

BZ2_MAGIC: Final = b"BZh"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"

ZSTD_LEVEL: Final = 10
"""What logs are stored with on the device: smaller than the default 3, still fast."""


def import_zstd(path: Path) -> Any:
    """Import the zstd module: only the tools need it, so the device image does not carry it.

    Args:
        path: The log it is needed for, for the error.

    Raises:
        LogError: the package is not installed.
    """
    try:
        # Imported here because the import itself is what may be missing.
        from backports import zstd
    except ImportError as error:
        raise LogError(
            f"{path}: expected the package backports.zstd for zstd logs, got none; "
            'install it with: pip install "modeld[replay]"'
        ) from error
    return zstd
