"""The page of requirements names tests and rows that exist, and a test for each requirement."""

import ast
import re
from pathlib import Path

import pytest

from tests.scheduler.fusion.table import ROWS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "requirements.md"
NAMED = re.compile(r"`([^`]+)`")


def requirements() -> dict[str, dict[str, list[str]]]:
    """Return file (or "Rows") -> names, for the title of each requirement."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        title, _, text = section.partition("\n")
        items = re.findall(r"^- (.+?):((?:.|\n  )+)", text, re.M)
        found[title] = {where.strip("`"): NAMED.findall(names) for where, names in items}
    return found


REQUIREMENTS = requirements()


def missing_from(where: str, names: list[str]) -> set[str]:
    if where == "Rows":
        return set(names) - {row.name for row in ROWS}
    tree = ast.parse((HERE / where).read_text(encoding="utf-8"))
    return set(names) - {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}


@pytest.mark.parametrize("title", REQUIREMENTS)
def test_a_requirement_names_tests_that_exist(title: str) -> None:
    named = REQUIREMENTS[title]
    assert any(named.values()), "no test is named"
    missing = {where: missing_from(where, names) for where, names in named.items()}
    assert not any(missing.values()), missing


def test_the_page_is_read() -> None:
    assert len(REQUIREMENTS) >= 40
    assert missing_from("ir/test_rewrite.py", ["test_of_nothing"]) == {"test_of_nothing"}
    assert missing_from("Rows", ["softmax", "no-such-row"]) == {"no-such-row"}
