"""Files of named arrays as numpy.savez writes them, whatever the names are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray


def write_npz(
    file: IO[bytes], arrays: Mapping[str, NDArray[Any]], *, compress: bool = False
) -> None:
    """Write arrays; the bytes are those of numpy.savez or savez_compressed.

    Those take names as keywords, beside keywords of their own: ``file`` and ``allow_pickle`` are
    names like any other here.

    Args:
        file: open for writing.
        arrays: by name.
        compress: deflate each.
    """
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
