"""Reads the files that a user names: text, JSON, TOML and .npz arrays.

Text is read once, up to a maximum length. Errors are one line. `tools.lib.named_file` checks these
files before a command begins, but they can change until they are read, so these functions check
them too.
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
    """A text file named by the user."""

    path: Path
    error: type[ToolError]  # raised if the file cannot be used
    max_bytes: int  # largest accepted size
    option: str = ""  # option that named the file, for messages; "" if none did
    advice: str = "check the path"  # end of error messages

    def text(self) -> str:
        """Return the text, without a byte order mark.

        Raises:
            ToolError: `error`, if it is not a regular file, cannot be read, is too long or is not
                UTF-8.
        """
        try:
            return read_given(self.path, self.max_bytes).decode("utf-8-sig")
        except OSError as error:
            raise self._refused(f"cannot be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._refused(f"expected UTF-8 text, found: {error.reason}") from error

    def json(self) -> Any:
        """Return the parsed JSON; raise as `text`, also for invalid JSON."""
        return self._parsed(json.loads, "JSON")

    def toml(self) -> Any:
        """Return the parsed TOML; raise as `text`, also for invalid TOML."""
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
    """Write named arrays as numpy.savez or savez_compressed would, with the same bytes.

    numpy's functions take names as keyword arguments, so they do not accept the array names
    ``file`` and ``allow_pickle``. This function does.
    """
    kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with zipfile.ZipFile(file, "w", kind) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file by name, C-contiguous.

    Raises:
        UsageError: The file cannot be read, or does not consist of plain named arrays.
    """
    try:
        # Open the file here, because numpy does not close a damaged one.
        with path.open("rb") as file:
            # No pickles: a file of arrays must not be able to run code.
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UsageError(f"{path}: expected an .npz of named arrays, found a single array")
            return {name: np.asarray(archive[name], order="C") for name in archive.files}
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        # Replace numpy's message, which recommends allowing pickles.
        raise UsageError(
            f"{path}: expected an .npz of plain arrays, as numpy.savez writes"
        ) from error
