"""ARCHITECTURE.md names every file of the packages, and only files that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
SUFFIXES = {".py", ".capnp"}
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PATH = re.compile(r"`((?:cereal|runtime|scheduler|modeld|tools|tests|docs|deploy)/[\w./-]*)`")


def package_files() -> set[str]:
    found = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in SUFFIXES
    }
    assert len(found) > 100  # a wrong root would make the test pass on nothing
    return found


def described_files() -> list[str]:
    """Return the first column of the file tables."""
    return re.findall(r"^\| `([\w./-]+\.(?:py|capnp))` \| \S", TEXT, re.MULTILINE)


def test_every_package_file_is_described() -> None:
    wanted = {name for name in package_files() if not name.endswith("__init__.py")}
    missing = sorted(wanted - set(described_files()))
    assert not missing, f"add a line for each of these to ARCHITECTURE.md: {missing}"


def test_no_file_is_described_twice() -> None:
    files = described_files()
    assert sorted(files) == sorted(set(files))


@pytest.mark.parametrize("name", sorted(set(PATH.findall(TEXT)) | set(described_files())))
def test_every_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists(), f"ARCHITECTURE.md names {name}, which is gone"


def test_layers_are_those_that_are_enforced() -> None:
    configured = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for layer in ("tools", "modeld | scheduler", "runtime | cereal"):
        assert f'"{layer}"' in configured
        assert re.search(rf"^{re.escape(layer)}  ", TEXT, re.MULTILINE)
