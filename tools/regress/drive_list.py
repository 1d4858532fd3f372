"""The drives of a regression: ranges and routes taken apart, each once, and one shard of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tools.drives.open_drive import DriveOptions, expand_drives
from tools.errors import ToolError, UsageError

MAX_SHARDS = 1000


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of a set of drives, for machines that each run one."""

    index: int  # from 1
    count: int

    def has(self, drive: str) -> bool:
        """Whether a drive belongs to it: by its name alone, so that others do not move it."""
        # Machines may have their drives in different places.
        name = "/".join(PurePath(drive).parts[-2:])
        digest = hashlib.sha256(name.encode(errors="surrogateescape")).digest()
        return int.from_bytes(digest[:8], "big") % self.count == self.index - 1


def parse_shard(text: str) -> Shard:
    """Return the shard that a user named.

    Raises:
        UsageError: it is no I/N with 1 <= I <= N.
    """
    found = re.fullmatch(r"(\d{1,4})/(\d{1,4})", text, re.ASCII)
    shard = Shard(int(found[1]), int(found[2])) if found else Shard(0, 0)
    if not 1 <= shard.index <= shard.count <= MAX_SHARDS:
        raise UsageError(
            f"--shard: expected I/N with 1 <= I <= N <= {MAX_SHARDS}, found {text!r}; for example "
            "1/4"
        )
    return shard


def single_drives(
    texts: Sequence[str], options: DriveOptions, shard: Shard | None = None
) -> Iterator[tuple[str, ToolError | None]]:
    """Yield each single drive once, in order; with an error what names none.

    `texts`: as a user named them. `options`: how they are opened. `shard`: only its drives; None:
    all.
    """
    seen: set[str] = set()
    for text in texts:
        error: ToolError | None = None
        try:
            drives = expand_drives([text], options)
        except ToolError as found:
            drives, error = [text], found
        for drive in drives:
            # The same file by another name is the same drive.
            place = os.path.realpath(drive) if os.path.lexists(drive) else drive
            if place not in seen and (shard is None or shard.has(drive)):
                yield drive, error
            seen.add(place)
