"""Runs an artifact on the device before a daemon does: interface, kernels, self-test."""

from __future__ import annotations

from pathlib import Path

import runtime
from modeld.errors import ModelInterfaceError
from modeld.process import KINDS
from modeld.store.model_store import SelfTest
from runtime.run.selftest import self_test as self_test_program


def self_test_on(device: str | None) -> SelfTest:
    """Return what loads an artifact on a device and runs it.

    It raises ModeldError or RuntimeFault, in one line that names the artifact.

    Args:
        device: as for `runtime.load_program`.
    """

    def self_test(path: Path) -> None:
        artifact = runtime.read_artifact(path)
        kind = KINDS[artifact.manifest.kind].model
        try:
            kind.check(artifact.manifest.metadata)
        except ModelInterfaceError as error:
            raise ModelInterfaceError(f"{path}: {error}") from error
        with runtime.load_program(artifact, device) as program:
            self_test_program(program)
            kind.try_out(program)

    return self_test
