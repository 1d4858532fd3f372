"""The kernels of an artifact as sources of their own, each with no more than it needs.

A program holds up to sixteen kernels and what they share. A kernel's code does not depend on the
others of its program, so each is built by itself, and equal ones of several models once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tools.errors import ArtifactMismatchError

# What the compiler writes in front of kernels: a function, a definition, a sampler, a pragma.
_PIECE: Final = re.compile(
    r"^((?:M_INLINE .*?^\}\n|__constant .*?;\n|#[^\n]*\n))", flags=re.MULTILINE | re.DOTALL
)
_FUNCTION: Final = re.compile(r"(\w+)\(")
_DEFINED: Final = re.compile(r"#define (\w+)")
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel with all that it needs.

    Attributes:
        name: of the function.
        text: OpenCL C; the only kernel in it is this one.
        options: of OpenCL's compiler.
    """

    name: str
    text: str
    options: str = ""


def kernel_sources(manifest: Mapping[str, Any]) -> dict[str, Source]:
    """Return the source of each kernel of an artifact, by name, without those of its megakernel.

    Raises:
        ArtifactMismatchError: the artifact does not say where its kernels are.
    """
    kernels = manifest["kernels"]
    if any("code" not in kernel for kernel in kernels):
        raise ArtifactMismatchError(
            "the artifact: expected kernels whose code is described, found some of another compiler"
        )
    first: dict[int, int] = {}
    for kernel in kernels:
        at = kernel["code"]["start"]
        first[kernel["program"]] = min(at, first.get(kernel["program"], at))
    found: dict[str, Source] = {}
    for kernel in kernels:
        program = manifest["programs"][kernel["program"]]
        code = program["source"][kernel["code"]["start"] : kernel["code"]["end"]].rstrip()
        head = "".join(_needed(program["source"][: first[kernel["program"]]], code))
        found[kernel["name"]] = Source(kernel["name"], f"{head}{code}\n", program["options"])
    return found


def _needed(head: str, code: str) -> Iterator[str]:
    """Yield those pieces in front of kernels that a kernel uses, by itself or through others."""
    # Between pieces there are comments that name nodes, and whatever a kernel of another hand has.
    pieces = [
        re.sub(r"/\*.*?\*/", "", piece) if n % 2 == 0 else piece
        for n, piece in enumerate(_PIECE.split(head))
    ]
    pieces = [piece for piece in pieces if piece.strip()]
    kept = {n for n, piece in enumerate(pieces) if _name(piece) in {"", "M_INLINE"}}
    words = set(_WORD.findall(code))
    while True:
        more = {n for n, piece in enumerate(pieces) if _name(piece) in words} - kept
        if not more:
            break
        kept |= more
        words |= {word for n in more for word in _WORD.findall(pieces[n])}
    yield from (piece for n, piece in enumerate(pieces) if n in kept)


def _name(piece: str) -> str:
    """Return what a piece defines; "" for what is always needed."""
    if piece.startswith("M_INLINE"):
        # Attributes stand in front of the name, with brackets of their own.
        bare = piece.replace("__attribute__((overloadable))", "")
        match = _FUNCTION.search(bare)
    elif piece.startswith("__constant"):
        match = re.search(r"(\w+) =", piece)
    else:
        match = _DEFINED.match(piece)
    return match[1] if match else ""
