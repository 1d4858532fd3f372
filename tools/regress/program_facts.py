"""Digests of a program: the texts of its kernels, and each of its weights.

A weight that changed by a thousandth may move outputs by less than two compilations differ, so that
no tolerance can see it. The compiler gives the same bytes for the same model, though: where the
kernels are the same texts and a weight is not the same bytes, the weight has changed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from runtime.format.artifact import Artifact
from runtime.format.manifest import Manifest

# A function or a kernel begins at the start of a line, with all of what it takes, and ends there.
_KERNEL: Final = re.compile(r"^__kernel\b[^{]*?\bvoid\s+(\w+)\s*\([^{]*\{.*?^\}", re.M | re.S)
_FUNCTION: Final = re.compile(r"^(?:M_INLINE|static)\b([^{;]*)\{.*?^\}", re.M | re.S)
_MACRO: Final = re.compile(r"^#define\s+(\w+)(?:.*\\\n)*.*$", re.M)

# Characters of a digest that are kept: enough to tell two weights apart.
SHORT = 16


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Digests of a program."""

    # Sha256 over the sources of all kernels and over where they find their weights.
    kernels: str = ""
    # Name of a weight, with the first ONNX node that reads it -> digest.
    weights: Mapping[str, str] = field(default_factory=dict)


def program_facts(*artifacts: Artifact) -> ProgramFacts:
    """Return the digests of the programs that a daemon of each kind runs."""
    found = [_facts_of(artifact) for artifact in artifacts]
    if len(found) == 1:
        return found[0]
    kernels = hashlib.sha256("".join(facts.kernels for facts in found).encode()).hexdigest()
    # Buffers of two programs may have the same names.
    weights = {
        f"{artifact.manifest.kind} {name}": digest
        for artifact, facts in zip(artifacts, found, strict=True)
        for name, digest in facts.weights.items()
    }
    return ProgramFacts(kernels, weights)


def _facts_of(artifact: Artifact) -> ProgramFacts:
    manifest = artifact.manifest
    kernels = hashlib.sha256()
    for program in manifest.programs:
        kernels.update(program.source.encode())
    readers: dict[int, str] = {}
    for kernel in manifest.kernels:
        for index in kernel.args:
            if kernel.origin:
                readers.setdefault(index, kernel.origin[0])
    weights = {}
    for index, spec in enumerate(manifest.buffers):
        kernels.update(f"{spec.name} {spec.kind} {spec.dtype} {spec.shape}".encode())
        if spec.kind == "weight":
            raw = artifact.data[spec.offset : spec.offset + spec.size]
            name = f"{spec.name} of {readers[index]}" if index in readers else spec.name
            weights[name] = hashlib.sha256(raw).hexdigest()[:SHORT]
    return ProgramFacts(kernels.hexdigest(), weights)


def kernel_texts(manifest: Manifest) -> dict[str, str]:
    """Return by name the texts of all kernels, without the names.

    Where one is not written as the compiler writes them, the whole program stands for it.
    """
    texts: dict[str, str] = {}
    for program in manifest.programs:
        for match in _KERNEL.finditer(program.source):
            texts[match[1]] = re.sub(rf"\b{match[1]}\b", "kernel", match[0])
    sources = {kernel.name: manifest.programs[kernel.program].source for kernel in manifest.kernels}
    return {name: texts.get(name, source) for name, source in sources.items()}


def definitions(manifest: Manifest) -> dict[str, frozenset[str]]:
    """Return the functions and macros that kernels use, by what they are called with, as texts.

    There may be several of one name: under conditions, or of several programs.
    """
    found: dict[str, set[str]] = {}
    launched = {manifest.kernels[index].program for e in manifest.entries for index in e.launches}
    for index in launched:
        source = manifest.programs[index].source
        for pattern in (_FUNCTION, _MACRO):
            for match in pattern.finditer(source):
                found.setdefault(" ".join(match[1].split()), set()).add(match[0])
    return {name: frozenset(texts) for name, texts in found.items()}
