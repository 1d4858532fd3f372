"""Compares the manifests of two artifacts to find why they differ, for ``--bisect``.

Models are compared by digest, kernels by source text, and binaries by device and driver. Weights
are compared by the values that kernels of the same ONNX nodes read, in any order. Each result is a
`Fact` for or against one of the possible causes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from runtime.format.artifact import Artifact
from runtime.format.manifest import BufferSpec, Manifest
from runtime.texts import count_text
from tools.regress.explain.launch_values import Difference, compare_arrays
from tools.regress.run_facts import definitions, kernel_texts
from tools.regress.time.timing import Groups

Array = NDArray[Any]
Cause = Literal["weights", "graph", "code generation", "driver"]
CAUSES: Final[tuple[Cause, ...]] = ("weights", "graph", "code generation", "driver")

SHOWN: Final = 4
# Prefixes of nodes that the compiler adds before and between the models.
FRAME_PROGRAM: Final = ("warp/", "queue/", "vision/")


@dataclass(frozen=True, slots=True)
class Fact:
    """One finding from the manifests."""

    about: Cause  # the cause that it is about
    differs: bool  # True: it supports the cause; False: it speaks against it
    text: str  # one line for the user


def model_facts(a: Manifest, b: Manifest) -> list[Fact]:
    """Return the facts on the models and their nodes."""
    facts = []
    theirs = {model.role: model for model in b.models}
    left, right = _nodes(a), _nodes(b)
    changed = False
    for model in a.models:
        other = theirs.get(model.role)
        if other is not None and other.sha256 != model.sha256:
            changed = True
            text = f"{model.role} model: {model.sha256[:12]} in A, {other.sha256[:12]} in B"
            facts.append(Fact("graph" if left != right else "weights", True, text))
    for gone, side in ((left - right, "A"), (right - left, "B")):
        if gone:
            shown = ", ".join(sorted(gone)[:SHOWN])
            more = f" and {len(gone) - SHOWN} more" if len(gone) > SHOWN else ""
            # Equal models have equal nodes. A node that no kernel names was folded.
            ours = any(name.startswith(FRAME_PROGRAM) for name in gone)
            folded = "" if changed or ours else "; the models are the same, so it was folded"
            text = f"nodes that only kernels of {side} name: {shown}{more}{folded}"
            facts.append(Fact("graph", changed or ours, text))
    one, other = (_without_labels(side.metadata.get("interface", {})) for side in (a, b))
    if left == right:
        facts.append(Fact("graph", False, f"{count_text(len(left), 'node')}, of the same names"))
    return [
        *facts,
        *(
            Fact("graph", True, f"interface: {key} differs")
            for key in sorted({*one, *other})
            if one.get(key) != other.get(key)
        ),
    ]


def _without_labels(value: Any) -> Any:
    """Return metadata without keys that do not affect results: checkpoint names and reasons."""
    if isinstance(value, Mapping):
        silent = ("checkpoint", "reason")
        return {key: _without_labels(item) for key, item in value.items() if key not in silent}
    return [_without_labels(item) for item in value] if isinstance(value, list) else value


def _nodes(manifest: Manifest) -> frozenset[str]:
    return frozenset(name for kernel in manifest.kernels for name in kernel.origin)


def weight_facts(a: Artifact, b: Artifact) -> list[Fact]:
    """Return the facts on the values of weights; their order is the compiler's choice."""
    if fits(a, b):
        return _facts_of_pairs(a, b)
    return [_fact_of_pieces(a, b)]


def _facts_of_pairs(a: Artifact, b: Artifact) -> list[Fact]:
    """Compare the weights of two artifacts with the same buffers."""
    specs = _weights(a)
    changed: list[tuple[BufferSpec, Difference]] = []
    moved: list[tuple[BufferSpec, Difference]] = []
    for spec in specs:
        one, other = _array(a, spec), _array(b, spec)
        if one.tobytes() == other.tobytes():
            continue
        as_they_lie = compare_arrays(one, other)
        sorted_ = compare_arrays(np.sort(one), np.sort(other))
        if np.array_equal(_bits(one), _bits(other)):
            moved.append((spec, as_they_lie))
        else:
            changed.append((spec, min(as_they_lie, sorted_, key=lambda found: found.elements)))
    facts = []
    total = count_text(len(specs), "weight")
    if changed:
        text = f"{len(changed)} of {total} differ, {_first(a.manifest, changed)}"
        facts.append(Fact("weights", True, text))
    if moved:
        text = (
            f"{len(moved)} of {total} hold the same values in another order, "
            f"{_first(a.manifest, moved)}"
        )
        facts.append(Fact("code generation", True, text))
    return facts or [Fact("weights", False, f"{total}, all the same")]


def _first(manifest: Manifest, found: Sequence[tuple[BufferSpec, Difference]]) -> str:
    spec, apart = found[0]
    nodes = ", ".join(_readers(manifest, spec)[:SHOWN])
    return f"first {spec.name} {spec.dtype}{list(spec.shape)} of {nodes}: {apart.text}"


def _bits(array: Array) -> Array:
    """Return the bit patterns of the values, sorted."""
    return np.sort(array.view(f"u{array.itemsize}"))


def _fact_of_pieces(a: Artifact, b: Artifact) -> Fact:
    """Compare differently packed weights by the values that kernels of the same nodes read."""
    groups = Groups()
    for manifest in (a.manifest, b.manifest):
        for names in _read_by(manifest).values():
            groups.join(names)
    left, right = (_pieces(artifact, groups) for artifact in (a, b))
    nothing = np.zeros(0, np.float32)
    differing = []
    only = [0, 0]
    for piece in sorted({*left, *right}):
        one, other = left.get(piece, nothing), right.get(piece, nothing)
        counts = len(np.setdiff1d(one, other)), len(np.setdiff1d(other, one))
        only = [total + count for total, count in zip(only, counts, strict=True)]
        if any(counts):
            differing.append(piece)
    text = (
        f"{len(_weights(a))} weights in A, {len(_weights(b))} in B, packed differently; of their "
        f"values {only[0]} are in A only, {only[1]} in B only"
    )
    if not differing:
        return Fact("weights", False, text)
    text += f", first of {differing[0]}"
    digests = [{model.role: model.sha256 for model in side.manifest.models} for side in (a, b)]
    if digests[0] and digests[0] == digests[1]:
        return Fact(
            "code generation", True, f"{text}; the models are the same, so the compiler made them"
        )
    return Fact("weights", True, text)


def _read_by(manifest: Manifest) -> dict[int, list[str]]:
    """Return for each weight, by buffer number, the nodes of all kernels that read it."""
    found: dict[int, list[str]] = {}
    for kernel in manifest.kernels:
        for index in kernel.args:
            if manifest.buffers[index].kind == "weight":
                found.setdefault(index, []).extend(kernel.origin or (kernel.name,))
    return found


def _pieces(artifact: Artifact, groups: Groups) -> dict[str, Array]:
    """Return the distinct floating-point values that kernels read, by group of nodes."""
    found: dict[str, list[Array]] = {}
    for index, names in _read_by(artifact.manifest).items():
        spec = artifact.manifest.buffers[index]
        if spec.dtype.startswith("float"):
            values = _array(artifact, spec).astype(np.float32)
            found.setdefault(groups.root(names[0]), []).append(values[values != 0.0])
    return {piece: np.unique(np.concatenate(arrays)) for piece, arrays in found.items()}


def _weights(artifact: Artifact) -> list[BufferSpec]:
    return [spec for spec in artifact.manifest.buffers if spec.kind == "weight"]


def _array(artifact: Artifact, spec: BufferSpec) -> Array:
    raw = artifact.data[spec.offset : spec.offset + spec.payload_bytes]
    return np.frombuffer(raw, spec.dtype)


def _readers(manifest: Manifest, spec: BufferSpec) -> list[str]:
    return _read_by(manifest).get(manifest.buffers.index(spec), [])


def fits(a: Artifact, b: Artifact) -> bool:
    """Whether both artifacts have the same buffers, so that their data can be exchanged."""
    return [(s.name, s.kind, s.dtype, s.shape, s.offset, s.size) for s in a.manifest.buffers] == [
        (s.name, s.kind, s.dtype, s.shape, s.offset, s.size) for s in b.manifest.buffers
    ]


def code_facts(a: Manifest, b: Manifest) -> list[Fact]:
    """Return the facts on kernels and compiler options."""
    facts = []
    left, right = kernel_texts(a), kernel_texts(b)
    # Compare by text, since kernels can be renamed or can change under the same name.
    gone = [name for name, text in left.items() if text not in right.values()]
    new = [name for name, text in right.items() if text not in left.values()]
    if gone or new:
        nodes = {kernel.name: kernel.origin for kernel in b.kernels}
        shown = ", ".join(f"{name} ({', '.join(nodes[name][:2])})" for name in sorted(new)[:SHOWN])
        text = f"{len(gone)} of {len(left)} kernels of A have another text in B"
        facts.append(Fact("code generation", True, f"{text}: {shown}" if shown else text))
    before, now = definitions(a), definitions(b)
    # A definition is unchanged if one side only has additional variants of it.
    changed = sorted(
        name
        for name in before.keys() & now.keys()
        if not (before[name] <= now[name] or now[name] <= before[name])
    )
    if changed:
        text = f"definitions that kernels use differ: {'; '.join(changed[:SHOWN])}"
        facts.append(Fact("code generation", True, text))
    for entry in a.entries:
        other = b.entry(entry.name)
        count = 0 if other is None else len(other.launches)
        if count != len(entry.launches):
            text = f"{entry.name}: {len(entry.launches)} launches in A, {count} in B"
            facts.append(Fact("code generation", True, text))
    for what in ("name", "options"):
        ours, theirs = getattr(a.target, what), getattr(b.target, what)
        if ours != theirs:
            text = f"compiled for {what} {ours or 'none'} in A, {theirs or 'none'} in B"
            facts.append(Fact("code generation", True, text))
    if bool(a.metadata.get("precision")) != bool(b.metadata.get("precision")):
        facts.append(Fact("code generation", True, "one stores values as fp16, the other does not"))
    if not facts:
        text = f"{count_text(len(left), 'kernel')}, all of the same text"
        facts.append(Fact("code generation", False, text))
    return facts


def driver_facts(a: Manifest, b: Manifest) -> list[Fact]:
    """Return the facts on compiled binaries."""
    facts = []
    for what in ("device", "driver"):
        one, two = getattr(a.target, what), getattr(b.target, what)
        if one != two:
            text = f"binaries were made by {what} {one or 'none'} for A, {two or 'none'} for B"
            facts.append(Fact("driver", True, text))
    same = [
        (one.binary, two.binary)
        for one, two in zip(a.programs, b.programs, strict=False)
        if one.source == two.source
    ]
    differing = sum(one != two for one, two in same)
    if differing:
        facts.append(
            Fact("driver", True, f"{differing} of {len(same)} binaries of the same source differ")
        )
    if not facts:
        facts.append(Fact("driver", False, "binaries were made by the same device and driver"))
    return facts
