"""Files of named arrays as numpy.savez writes them, whatever the names are."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tools.errors import UsageError


def write_npz(
    file: IO[bytes], arrays: Mapping[str, NDArray[Any]], *, compress: bool = False
) -> None:
    """Write arrays; the bytes are those of numpy.savez or savez_compressed.

    Those take names as keywords, beside keywords of their own: ``file`` and ``allow_pickle`` are
    names like any other here.
    """
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name, C-contiguous.

    Raises:
        UsageError: the file cannot be read, or holds anything but plain named arrays.
    """
    try:
        # numpy leaves a file open that it finds damaged; this one is ours to close.
        with path.open("rb") as file:
            # Without pickles: a file of arrays must not be able to run anything.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"{path}: expected an .npz of named arrays, found a single array")
            return {name: np.asarray(archive[name], order="C") for name in archive.files}
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        # numpy's own text advises to allow pickles, which is the last thing to do.
        raise UsageError(
            f"{path}: expected an .npz of plain arrays, as numpy.savez writes"
        ) from error
