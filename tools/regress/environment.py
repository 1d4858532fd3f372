"""Records the environment of a run: device, versions, checkout."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from runtime.format.manifest import Manifest, is_strict
from runtime.opencl.device import DeviceInfo
from tools.report.history import ask_git, commit_of

# Packages whose version may move an output or a time.
PACKAGES: Final = ("modeld", "numpy", "pyopencl", "pocl-binary-distribution", "av", "pycapnp")
# Files whose content decides what a drive's messages are.
CODE_PACKAGES: Final = ("cereal", "runtime", "modeld", "tools")
CODE_ENDINGS: Final = (".py", ".capnp")
ROOT: Final = Path(__file__).parents[2]
# The class of references of programs with strict numerics.
STRICT: Final = "strict"

# Makers under the names by which their platforms go; the first that occurs is taken.
_MAKERS: Final = ("nvidia", "qualcomm", "adreno", "intel", "amd", "arm", "apple", "mesa", "pocl")


def device_class(info: DeviceInfo) -> str:
    """Return the class of devices whose outputs agree within tolerances, for keys of references.

    CPUs of one architecture are one class, whatever their vectors and drivers: the compiler's
    figures hold for all of them (docs/numerics.md). GPUs are one class for each maker.
    """
    if info.kind == "cpu":
        return f"cpu-{platform.machine().lower() or 'unknown'}"
    text = f"{info.platform} {info.name}".lower()
    words = set(re.findall(r"[a-z]+", text))
    maker = next((maker for maker in _MAKERS if maker in words), "other")
    return f"{info.kind}-{'qualcomm' if maker == 'adreno' else maker}"


def reference_class(info: DeviceInfo, *manifests: Manifest) -> str:
    """Return the class of devices that share references of programs: one class for strict ones."""
    strict = all(is_strict(manifest.metadata) for manifest in manifests)
    return STRICT if strict else device_class(info)


def model_hash(*manifests: Manifest) -> str:
    """Return a sha256 of the ONNX files and checkpoints that artifacts were made from.

    Not of the artifact: compiled again by another compiler, or with other options, it is still
    the same model, and has to say the same.
    """
    digest = hashlib.sha256()
    models = [model for manifest in manifests for model in manifest.models]
    for model in sorted(models, key=lambda model: model.role):
        digest.update(f"{model.role}\0{model.sha256}\0{model.checkpoint}\0".encode())
    return digest.hexdigest()


def describe_environment(info: DeviceInfo, manifest: Manifest) -> dict[str, str]:
    """Return name -> value of what may explain a difference; read by people."""
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
    """Return commit and state of the user's repository, and of ours where modeld is a checkout.

    `directory`: of the references, in the user's repository; may be missing still.
    """
    place = directory.absolute()
    facts = _commit(next(one for one in (place, *place.parents) if one.is_dir()))
    # An installed package may lie inside the user's repository, whose commit is not ours.
    ours = _commit(ROOT, " of modeld") if (ROOT / ".git").exists() else {}
    is_one = ours.get("commit of modeld") == facts.get("commit")
    return facts if is_one else facts | ours


def _commit(directory: Path, whose: str = "") -> dict[str, str]:
    return {f"{name}{whose}": value for name, value in commit_of(directory).items()}


def who() -> str:
    """Return the name under which commits are made here, else the login name."""
    name = ask_git(Path.cwd(), "config", "user.name")
    if name:
        return name
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number that no password file knows, in a container
        return f"user {os.getuid()}"


def code_digest() -> str:
    """Return a sha256 of the code that turns a drive into messages.

    Results are taken up again only where they were made by the same code.
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
