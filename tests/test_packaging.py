"""What pip makes of pyproject.toml on each kind of machine."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
# The version that each workflow takes, and those that `make test-python` and its like have.
TESTED = {"3.11", "3.13"}


def required(extras: set[str], machine: str) -> set[str]:
    """Return the names of the packages that extras bring on a kind of machine."""
    found: set[str] = set()
    waiting, seen = set(extras), set[str]()
    while waiting:
        seen.add(extra := waiting.pop())
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate(
                {"platform_machine": machine}
            ):
                continue
            if requirement.name == PROJECT["name"]:
                waiting |= requirement.extras - seen
            else:
                found.add(requirement.name)
    return found


@pytest.mark.parametrize("extra", ["pocl", "dev"])
def test_extras_bring_the_wheel_of_pocl_where_there_is_one(extra: str) -> None:
    wheel = {"pocl-binary-distribution"}
    assert required({extra}, "x86_64") - required({extra}, "aarch64") == wheel
    assert required({extra}, "aarch64") <= required({extra}, "x86_64")


def test_nothing_else_depends_on_the_machine() -> None:
    # tinymesa, of `ir3`, is for x86-64 only.
    extras = set(PROJECT["optional-dependencies"]) - {"pocl", "dev", "ir3"}
    assert required(extras, "x86_64") == required(extras, "aarch64")


def test_classifiers_are_versions_that_may_be_installed() -> None:
    prefix = "Programming Language :: Python :: "
    named = {text.removeprefix(prefix) for text in PROJECT["classifiers"] if prefix in text}
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in named)
    assert named >= TESTED
