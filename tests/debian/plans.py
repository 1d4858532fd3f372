"""What there is to test in another Debian: on which processor, with which packages, what."""

import os
from dataclasses import dataclass
from typing import Final

from packaging.requirements import Requirement

from tests.debian import stages
from tests.debian.place import EMULATED
from tests.debian.stages import Stage
from tests.debian.wheels import requirements


@dataclass(frozen=True, slots=True)
class Plan:
    """What is tested.

    Attributes:
        machine: the place's processor.
        debian: packages that PoCL there needs.
        pypi: requirements of the packages of PyPI.
        stages: by their names, in their order.
    """

    machine: str
    debian: tuple[str, ...]
    pypi: tuple[str, ...]
    stages: dict[str, Stage]


def _aarch64() -> Plan:
    # Of the tools for development only those that run tests.
    runners = ("hypothesis", "onnxruntime", "pytest")
    tools = requirements(("dev",), EMULATED)
    chosen = [text for text in tools if Requirement(text).name.startswith(runners)]
    product = requirements(("pocl", "compile", "replay"), EMULATED)
    of_all = (
        Stage("artifacts", "files that this machine compiled", stages.artifacts, is_quick=True),
        Stage(
            "freedreno", "files for an Adreno, on Mesa's driver without hardware", stages.freedreno
        ),
        Stage("devices", "the driver, and the message without one", stages.devices, is_quick=True),
        Stage("some-tests", "a few tests", stages.some_tests, is_quick=True),
        Stage("trained", "the trained model's self-test", stages.trained),
        Stage("commands", "a model from end to end", stages.commands),
        Stage("wheels", "all packages for development have wheels", stages.wheels),
        Stage("tests", "tests of cereal and runtime", stages.tests),
        Stage("replay", "a drive, here and there", stages.replay, after="trained"),
        Stage("daemon", "the daemon beside a slow camera", stages.daemon),
    )
    named = {stage.name: stage for stage in of_all}
    debian = ("pocl-opencl-icd", "mesa-opencl-icd", "mesa-drm-shim")
    return Plan(EMULATED, debian, (*product, *chosen), named)


def _python() -> Plan:
    machine = os.uname().machine
    # PoCL of PyPI links with libraries that gcc comes with.
    debian = ("gcc", "libc6-dev") if machine == "x86_64" else ("pocl-opencl-icd",)
    of_all = (
        Stage("together", "quick tests, on two processes", stages.tests_together),
        Stage("alone", "quick tests that run alone", stages.tests_alone, after="together"),
    )
    named = {stage.name: stage for stage in of_all}
    return Plan(machine, debian, tuple(requirements(("dev",), machine)), named)


PLANS: Final = {"aarch64": _aarch64, "python": _python}
