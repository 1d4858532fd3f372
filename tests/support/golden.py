"""Golden files: text that a change should not alter unseen.

`pytest --update-golden` writes what the tests compare with; the diff is reviewed as text.
"""

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares text with tests/golden/<name>.txt."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), str(path), "found", lineterm="", n=2
            )
            shown = "\n".join(list(lines)[:60])
            pytest.fail(
                f"{path.name} differs; if that is meant, run this test again with --update-golden "
                f"and review the diff\n{shown}",
                pytrace=False,
            )

    return compare
