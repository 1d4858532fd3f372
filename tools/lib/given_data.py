"""Data that somebody named: text, JSON, TOML, and arrays as numpy.savez writes them.

Text is read once and up to a length; errors are one line. `tools.lib.named_file` checks a file
before a command begins. It may change until it is read, so readers open it with these functions.
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from runtime.files.user_file import read_given
from tools.errors import ToolError, UsageError


@dataclass(frozen=True, slots=True)
class GivenText:
    """A file that somebody named, the error that refuses it, and the next thing to do.

    A file longer than `max_bytes` is refused; `option` is "" if none named it.
    """

    path: Path
    error: type[ToolError]
    max_bytes: int
    option: str = ""
    advice: str = "check the path"

    def text(self) -> str:
        """Return the text, without a byte order mark.

        Raises:
            ToolError: `error`; no ordinary file, one that cannot be read, too long, or not UTF-8.
        """
        try:
            return read_given(self.path, self.max_bytes).decode("utf-8-sig")
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._refused(f"expected UTF-8 text, found: {error.reason}") from error

    def json(self) -> Any:
        """Return what the JSON holds; errors as of `text`."""
        return self._parsed(json.loads, "JSON")

    def toml(self) -> Any:
        """Return what the TOML holds; errors as of `text`."""
        return self._parsed(tomllib.loads, "TOML")

    def _parsed(self, parse: Callable[[str], Any], kind: str) -> Any:
        text = self.text()
        try:
            return parse(text)
        # Deeply nested brackets raise RecursionError.
        except (ValueError, RecursionError) as error:
            raise self._refused(f"expected {kind}, found: {error}") from error

    def _refused(self, why: str) -> ToolError:
        place = f"{self.option} {self.path}".lstrip()
        return self.error(f"{place}: {why}; {self.advice}")


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
