"""Collects facts on a run for a reference: device, versions, commit, digests of its programs.

Weights have digests of their own. A weight that changed by a thousandth can affect outputs less
than a different compilation does, so no tolerance detects it. But the compiler is deterministic: if
kernels have the same text and a weight has different bytes, the weight has changed.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Final

from runtime.format.artifact import Artifact
from runtime.format.manifest import Manifest, is_strict
from runtime.opencl.device import DeviceInfo
from tools.report.history import ask_git, commit_of

# Packages whose version can affect an output or a time.
PACKAGES: Final = ("modeld", "numpy", "pyopencl", "pocl-binary-distribution", "av", "pycapnp")
# Packages whose code determines a drive's messages.
CODE_PACKAGES: Final = ("cereal", "runtime", "modeld", "tools")
CODE_ENDINGS: Final = (".py", ".capnp")
ROOT: Final = Path(__file__).parents[2]
# The device class for programs with strict numerics.
STRICT: Final = "strict"

# Makers as they appear in names of platforms; the first match is used.
_MAKERS: Final = ("nvidia", "qualcomm", "adreno", "intel", "amd", "arm", "apple", "mesa", "pocl")

# A function or a kernel starts and ends at the start of a line.
_KERNEL: Final = re.compile(r"^__kernel\b[^{]*?\bvoid\s+(\w+)\s*\([^{]*\{.*?^\}", re.M | re.S)
_FUNCTION: Final = re.compile(r"^(?:M_INLINE|static)\b([^{;]*)\{.*?^\}", re.M | re.S)
_MACRO: Final = re.compile(r"^#define\s+(\w+)(?:.*\\\n)*.*$", re.M)

# Stored characters of a digest, enough to distinguish weights.
SHORT = 16


def device_class(info: DeviceInfo) -> str:
    """Return the class of devices whose outputs agree within tolerances, for keys of references.

    CPUs of one architecture form one class, whatever their vector units and drivers: the tolerances
    hold for all of them (docs/numerics.md). GPUs form one class per maker.
    """
    if info.kind == "cpu":
        return f"cpu-{platform.machine().lower() or 'unknown'}"
    text = f"{info.platform} {info.name}".lower()
    words = set(re.findall(r"[a-z]+", text))
    maker = next((maker for maker in _MAKERS if maker in words), "other")
    return f"{info.kind}-{'qualcomm' if maker == 'adreno' else maker}"


def reference_class(info: DeviceInfo, *manifests: Manifest) -> str:
    """Return the class of devices that share references of programs; strict programs share one."""
    strict = all(is_strict(manifest.metadata) for manifest in manifests)
    return STRICT if strict else device_class(info)


def model_hash(*manifests: Manifest) -> str:
    """Return a sha256 of the ONNX files and checkpoints from which artifacts were compiled.

    It does not depend on compiler or options, since the model and its expected outputs stay the
    same.
    """
    digest = hashlib.sha256()
    models = [model for manifest in manifests for model in manifest.models]
    for model in sorted(models, key=lambda model: model.role):
        digest.update(f"{model.role}\0{model.sha256}\0{model.checkpoint}\0".encode())
    return digest.hexdigest()


def describe_environment(info: DeviceInfo, manifest: Manifest) -> dict[str, str]:
    """Return facts that can explain a difference, for the user: name -> value."""
    return {
        "device": info.name.strip(),
        "driver": info.driver,
        "processor": _processor(),
        "processors": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "compiled for": f"{manifest.target.name} ({manifest.target.device})",
        "compiler options": manifest.target.options or "none",
        **{f"lineage {name}": value for name, value in manifest.lineage.items()},
    }


def describe_checkout(directory: Path) -> dict[str, str]:
    """Return commit and state of the user's repository, and of modeld's if it is a checkout.

    `directory`: directory of the references in the user's repository; it can be missing.
    """
    place = directory.absolute()
    facts = _commit(next(one for one in (place, *place.parents) if one.is_dir()))
    # An installed package can be inside the user's repository, whose commit is not modeld's.
    ours = _commit(ROOT, " of modeld") if (ROOT / ".git").exists() else {}
    is_one = ours.get("commit of modeld") == facts.get("commit")
    return facts if is_one else facts | ours


def _commit(directory: Path, whose: str = "") -> dict[str, str]:
    return {f"{name}{whose}": value for name, value in commit_of(directory).items()}


def who() -> str:
    """Return git's user name, or the login name."""
    name = ask_git(Path.cwd(), "config", "user.name")
    if name:
        return name
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the user id has no name, as in some containers
        return f"user {os.getuid()}"


def code_digest() -> str:
    """Return a sha256 of the code that turns a drive into messages.

    Stored results are reused only if the same code made them.
    """
    digest = hashlib.sha256()
    for package in CODE_PACKAGES:
        for path in sorted((ROOT / package).rglob("*")):
            if path.suffix in CODE_ENDINGS:
                digest.update(f"{path.relative_to(ROOT)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names whose values differ, in order."""
    return [name for name in {**one, **other} if one.get(name) != other.get(name)]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or "unknown"
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """Digests of a program, to detect changed kernels and weights."""

    # Sha256 of the sources of all kernels and of the layout of their buffers.
    kernels: str = ""
    # Weight name with the first ONNX node that reads it -> digest.
    weights: Mapping[str, str] = field(default_factory=dict)


def program_facts(*artifacts: Artifact) -> ProgramFacts:
    """Return the digests of one or several programs that run together."""
    found = [_facts_of(artifact) for artifact in artifacts]
    if len(found) == 1:
        return found[0]
    kernels = hashlib.sha256("".join(facts.kernels for facts in found).encode()).hexdigest()
    # Buffers of two programs can have the same names.
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
    """Return the texts of all kernels by name, with the names replaced.

    If a kernel is not in the compiler's form, the text of its whole program is used.
    """
    texts: dict[str, str] = {}
    for program in manifest.programs:
        for match in _KERNEL.finditer(program.source):
            texts[match[1]] = re.sub(rf"\b{match[1]}\b", "kernel", match[0])
    sources = {kernel.name: manifest.programs[kernel.program].source for kernel in manifest.kernels}
    return {name: texts.get(name, source) for name, source in sources.items()}


def definitions(manifest: Manifest) -> dict[str, frozenset[str]]:
    """Return the functions and macros that kernels use: signature -> texts.

    A name can have several texts, in different programs or under different conditions.
    """
    found: dict[str, set[str]] = {}
    launched = {manifest.kernels[index].program for e in manifest.entries for index in e.launches}
    for index in launched:
        source = manifest.programs[index].source
        for pattern in (_FUNCTION, _MACRO):
            for match in pattern.finditer(source):
                found.setdefault(" ".join(match[1].split()), set()).add(match[0])
    return {name: frozenset(texts) for name, texts in found.items()}
