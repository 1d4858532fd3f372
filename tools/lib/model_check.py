"""Runs an artifact on the device before a daemon does: interface, kernels, self-test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import runtime
from modeld.errors import ModelInterfaceError
from modeld.model_store import SelfTest
from modeld.process import KINDS
from runtime.selftest import self_test as self_test_program

if TYPE_CHECKING:
    from runtime.executor import Program


def self_test_on(device: str | None) -> SelfTest:
    """Return what loads an artifact on a device and runs it.

    It raises ModeldError or RuntimeFault, in one line that names the artifact.

    Args:
        device: as for `runtime.load_program`.
    """

    def self_test(path: Path) -> None:
        artifact = runtime.read_artifact(path)
        try:
            KINDS[artifact.manifest.kind].check(artifact.manifest.metadata)
        except ModelInterfaceError as error:
            raise ModelInterfaceError(f"{path}: {error}") from error
        with runtime.load_program(artifact, device) as program:
            if self_test_program(program).runs == 0:
                _run_on_zeros(program)

    return self_test


def _run_on_zeros(program: Program) -> None:
    """Run each entry once, of an artifact that was compiled without a self-test.

    Raises:
        RuntimeFault: the device failed.
    """
    for entry in program.entries:
        zeros = {
            spec.name: np.zeros(spec.shape, spec.dtype) for spec in program.entry_inputs(entry)
        }
        program.run(zeros, entry)
