"""What pip makes of pyproject.toml on each kind of machine."""

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.debian.wheels import PROJECT, PYTHON, requirements

EXTRAS = set(PROJECT["optional-dependencies"])
WHEEL = {"pocl-binary-distribution"}
# Extras whose packages are for x86-64 only, and which: OpenCL on a CPU, Mesa for tinygrad.
ONLY_HERE = {"pocl": WHEEL, "dev": WHEEL, "ir3": {"tinymesa"}}


def names(extras: set[str], machine: str) -> set[str]:
    return {Requirement(text).name for text in requirements(extras, machine)}


def test_packages_that_depend_on_the_machine_are_known() -> None:
    for extra in sorted(EXTRAS):
        here, there = names({extra}, "x86_64"), names({extra}, "aarch64")
        assert here - there == ONLY_HERE.get(extra, set()), extra
        assert there <= here, extra


def test_extras_of_extras_and_dependencies_are_required() -> None:
    wanted = requirements({"train"}, "aarch64")
    assert {"numpy>=2.0", "onnx>=1.16", "av>=13", "torch>=2.6"} <= set(wanted)
    assert not any("modeld" in text or ";" in text for text in wanted)


def test_versions_of_python_that_are_named_may_be_installed() -> None:
    prefix = "Programming Language :: Python :: "
    named = {text.removeprefix(prefix) for text in PROJECT["classifiers"] if prefix in text}
    assert named == set(SpecifierSet(PROJECT["requires-python"]).filter(sorted({*named, "3.10"})))
    assert PYTHON in named
