"""ARCHITECTURE.md has the layers that are enforced; the map of rooms is that of the code."""

import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from docs.make_map import PACKAGES, map_of

ROOT = Path(__file__).parent.parent
MAX_BYTES = 12_000  # what the house promises newcomers
MAX_FILES = 20  # of Python in a room, `__init__.py` apart: ADR 0001
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")


def mapped_files() -> list[str]:
    """Return the files that the map's rows name, with their rooms."""
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w./-]+/)` \| \S.* \| ([\w., ]+) \|$", text, re.MULTILINE)
    return [room + name for room, names in rows for name in names.split(", ")]


def test_every_package_file_is_in_the_map_once() -> None:
    wanted = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".py", ".capnp"} and path.name != "__init__.py"
    ]
    assert len(wanted) > 100  # a wrong root would make the test pass on nothing
    assert sorted(mapped_files()) == sorted(wanted), "write the map with: make map"


def test_no_room_is_larger_than_one_can_survey() -> None:
    text = (ROOT / "docs/map.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `([\w./-]+/)` \| .* \| ([\w., ]+) \|$", text, re.MULTILINE)
    assert len(rooms) > 50
    large = {room: names.count(",") + 1 for room, names in rooms if names.count(".py") > MAX_FILES}
    assert not large, f"expected rooms of at most {MAX_FILES} files; divide the room"


@pytest.mark.slow  # `make check` does it too
def test_the_map_is_up_to_date() -> None:
    command = [sys.executable, "docs/make_map.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_map_says_what_each_room_says_of_itself(tmp_path: Path) -> None:
    room = tmp_path / "tools" / "room"
    room.mkdir(parents=True)
    (room / "__init__.py").write_text('"""A ``wide | low`` room."""\n', encoding="utf-8")
    (room / "file.py").write_text('"""Holds ``a | b``.\n\nMore.\n"""\n', encoding="utf-8")
    (room / "form.capnp").write_text("# Forms of\n# rooms. More.\n\n@0x1;\n", encoding="utf-8")
    assert map_of(tmp_path).splitlines()[-1] == (
        "| `tools/room/` | A `wide \\| low` room. | file.py, form.capnp |"
    )


def test_the_text_can_be_read_in_one_sitting() -> None:
    assert len(TEXT.encode()) <= MAX_BYTES, "move details to docs/"


def test_layers_are_those_that_are_enforced() -> None:
    configured = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for layer in ("tools", "modeld | scheduler", "runtime | cereal"):
        assert f'"{layer}"' in configured
        assert re.search(rf"^{re.escape(layer)}  ", TEXT, re.MULTILINE)


def test_floors_of_the_compiler_are_its_files_and_those_that_are_enforced() -> None:
    section = TEXT.partition("## Floors of the compiler")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    floors = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    files = {path.stem for path in (ROOT / "scheduler").glob("[a-z]*")}
    assert set().union(*floors) == files
    assert sum(map(len, floors)) == len(files)
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    for contract in contracts:
        if contract.get("containers") == ["scheduler"]:
            assert [set(layer.split(" | ")) for layer in contract["layers"]] == floors


def test_no_import_circle() -> None:
    """Imports for types, and those inside functions, count."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert sum(map(len, imports.values())) > 1000  # a graph without arrows would pass
    # A package's own file re-exports what lies inside; those inside do not import it by name.
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle
