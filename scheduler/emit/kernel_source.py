"""Kernels of an artifact as text: which function is whose, and what it says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

# How `emit` writes a function; what follows it, up to the next comment of one, is its body.
_FUNCTION: Final = re.compile(
    r"^__kernel (?P<attributes>.*)\nvoid (?P<name>\w+)\((?P<parameters>[^)]*)\)", re.MULTILINE
)


def kernel_texts(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each kernel function, from `__kernel` to its end, by name."""
    found: dict[str, str] = {}
    for program in manifest["programs"]:
        source = program["source"]
        starts = list(_FUNCTION.finditer(source))
        ends = [m.start() for m in starts[1:]] + [len(source)]
        for match, end in zip(starts, ends, strict=True):
            found.setdefault(match["name"], source[match.start() : end])
    return found


def parameters_of(text: str) -> list[str]:
    """Return the parameter declarations of a kernel function."""
    match = _FUNCTION.match(text)
    assert match is not None  # a text of `kernel_texts`
    return [p.strip() for p in match["parameters"].split(",")]
