"""Compiles the shipped trained model with `modeld compile`, and caches the artifact.

The artifact is compiled again if the models, the compiler or the runtime have changed.
"""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path

import runtime
import scheduler
from runtime.own_process import own_command
from tools.errors import UsageError
from tools.lib.processes import ProcessError

MODELS = Path(__file__).parents[2] / "models"
ONNX_NAMES = ("vision.onnx", "policy.onnx")


def trained_model(directory: Path, *, quiet: bool) -> Path:
    """Return the artifact of the trained model; compile it if `directory` has no current one.

    A stamp file next to the artifact identifies the sources of the artifact.

    Raises:
        UsageError: there is no trained model.
        ProcessError: the compilation failed.
    """
    onnx_files = [MODELS / name for name in ONNX_NAMES]
    missing = [path.name for path in onnx_files if not path.is_file()]
    if missing:
        raise UsageError(
            f"{MODELS}: expected the trained model, {' and '.join(ONNX_NAMES)}, found no "
            f"{' and no '.join(missing)}; train one with make train, or name an artifact with "
            "--model"
        )
    target = directory / "driving.pkl"
    stamp = directory / "driving.stamp"
    fingerprint = _fingerprint(onnx_files)
    if target.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == fingerprint:
        if not quiet:
            print(f"model: {target}, compiled earlier", flush=True)
        return target
    stamp.unlink(missing_ok=True)
    arguments = ["compile", *map(str, onnx_files), "-o", str(target)]
    if not quiet:
        print(f"$ modeld {shlex.join(arguments)}", flush=True)
    done = subprocess.run(  # noqa: S603 - our own module, no shell
        own_command("tools.cli", *arguments),
        check=False,
        stdout=subprocess.DEVNULL if quiet else None,
    )
    if done.returncode:
        raise ProcessError(
            f"modeld compile: expected exit code 0, found {done.returncode}; its message is above"
        )
    stamp.write_text(fingerprint, encoding="utf-8")
    return target


def _fingerprint(onnx_files: list[Path]) -> str:
    """Return a digest of the sources of compiler and runtime, and of the ONNX models."""
    digest = hashlib.sha256()
    for package in (runtime, scheduler):
        assert package.__file__ is not None
        for path in sorted(Path(package.__file__).parent.rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.read_bytes())
    for path in onnx_files:
        digest.update(path.read_bytes())
    return digest.hexdigest()
