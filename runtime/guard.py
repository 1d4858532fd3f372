"""Reads the executor's guards from the environment: checks that cost time, single launches.

With `RUNTIME_CHECK=1` each run poisons the arena first (a kernel that reads what nothing wrote then
yields NaN), every floating point output must be finite afterwards and the counters of
the megakernel zero. With `RUNTIME_REPLAY=0` there is no megakernel. `RUNTIME_RECORD` says whether
drivers record launches: `0` never, `1` wherever they can, else where that is known to gain.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.errors import RuntimeFault


def checks_enabled() -> bool:
    """Whether `RUNTIME_CHECK` asks for checks; read once per program, when it is loaded."""
    return os.environ.get("RUNTIME_CHECK", "0") not in ("", "0")


def megakernel_enabled() -> bool:
    """Whether the megakernel may run launches as one; read once per program, when it is loaded."""
    return os.environ.get("RUNTIME_REPLAY", "1") != "0"


def recording_wanted() -> bool | None:
    """What `RUNTIME_RECORD` says; None if nothing. Read once per program, when it is loaded."""
    return {"0": False, "1": True}.get(os.environ.get("RUNTIME_RECORD", ""))


def check_finite(outputs: Mapping[str, NDArray[Any]], entry: str) -> None:
    """Refuse NaN and infinity in floating point outputs of any shape.

    Raises:
        RuntimeFault: names the first output, how many of its values are not finite, and where.
    """
    for name, array in outputs.items():
        if array.dtype.kind != "f":
            continue
        bad = np.flatnonzero(~np.isfinite(array.ravel()))
        if bad.size:
            raise RuntimeFault(
                f"entry {entry!r}: output {name!r} has {bad.size} of {array.size} values that are "
                f"not finite, the first at flat index {bad[0]}; "
                "check the inputs, then bisect with `modeld bench --profile`"
            )
