"""Stores the messages of logs so that each can be read again at any time.

An uncompressed log is read from its own file. The content of compressed logs is written to one
temporary file (in `TMPDIR`), which the system caches in memory as long as there is room.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from cereal.errors import LogError, MessageError
from cereal.log_codec import codec_of
from cereal.log_reader import OnDefect, read_log_bytes
from cereal.schema import message_size

# Bytes of the first read: more than a message's header, and more than most messages.
_FIRST_BYTES: Final = 4096
_BUFFER_BYTES: Final = 1 << 20


class _Part(NamedTuple):
    # The place at which the log begins, the difference between a place and its position in the
    # file, and the file's descriptor.
    begin: int
    shift: int
    handle: int


class LogContent:
    """Messages by place, which is their byte position in the content of all logs together.

    One thread reads the logs; any thread can read messages that `publish` has made visible.
    """

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._resources = ExitStack()
        # One file for all compressed logs: a route of an hour has many, and each needs a buffer.
        self._temporary: BinaryIO | None = None
        self._kept: BinaryIO | None = None
        self._end = self._visible = self._written = 0

    def messages(
        self, path: Path, on_defect: OnDefect, on_read: Callable[[int], None]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield place and bytes of each Event of one more log, and store them.

        `on_defect`: called with a description of each defect. `on_read`: called with the number of
        bytes of the file read so far.

        Raises:
            LogError: the log cannot be read, or its content cannot be stored.
        """
        self._begin(path)
        for data in read_log_bytes(path, on_defect, on_read):
            place, self._end = self._end, self._end + len(data)
            if self._kept is not None:
                try:
                    self._written += self._kept.write(data)
                except OSError as error:
                    raise _store_error(path, error) from error
            yield place, data
        self.publish()

    def publish(self) -> None:
        """Make all messages read so far available to `read`.

        Raises:
            LogError: they cannot be stored.
        """
        if self._kept is not None:
            try:
                self._kept.flush()
            except OSError as error:
                raise _store_error(Path(tempfile.gettempdir()), error) from error
        self._visible = self._end

    def read(self, place: int) -> bytes | None:
        """Return the message at a place; None if it is not available."""
        if not 0 <= place < self._visible:
            return None
        at = bisect_right(self._parts, place, key=lambda part: part.begin) - 1
        _, shift, handle = self._parts[at]
        try:
            data = os.pread(handle, _FIRST_BYTES, place - shift)
            size = message_size(data)
            if size is not None and size > len(data):
                data += os.pread(handle, size - len(data), place - shift + len(data))
        except (OSError, MessageError):
            return None
        return data[:size] if size is not None and size <= len(data) else None

    def close(self) -> None:
        """Delete the stored content."""
        self._visible = 0
        self._resources.close()

    def _begin(self, path: Path) -> None:
        try:
            with ExitStack() as opened:
                file: BinaryIO = opened.enter_context(path.open("rb"))
                self._kept, shift = None, self._end
                if codec_of(file.read(4)) != "none":
                    if self._temporary is None:
                        kept: Any = tempfile.TemporaryFile(buffering=_BUFFER_BYTES)  # noqa: SIM115
                        self._temporary = self._resources.enter_context(kept)
                    self._kept = file = self._temporary
                    shift = self._end - self._written
                else:
                    self._resources.push(opened.pop_all())
        except OSError as error:
            raise LogError(
                f"{path}: expected a readable log, got {error.strerror or error}; check the path"
            ) from error
        self._parts.append(_Part(self._end, shift, file.fileno()))


def _store_error(path: Path, error: OSError) -> LogError:
    return LogError(
        f"{path}: expected room for its content in {tempfile.gettempdir()}, got "
        f"{error.strerror or error}; set TMPDIR to a directory with more room"
    )
