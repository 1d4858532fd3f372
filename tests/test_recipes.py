"""The recipes of CONTRIBUTING.md: an example of each changes the files that it names, and works."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
COPIED = ("cereal", "runtime", "scheduler", "modeld", "tools", "tests", "benchmarks", "docs")
RECIPES = dict(
    re.findall(r"^### (.+)\n((?:(?!^##).*\n)*?```diff\n(?:(?!^##).*\n)*)", TEXT, re.MULTILINE)
)


def changed_lines(text: str, edit: str, name: str) -> str:
    """Return a file with one edit: its context and removed lines stand there once, in a row."""
    lines = edit.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] != "+")
    new = "".join(line[1:] for line in lines if line[0] != "-")
    assert text.count(old) == 1, f"{name}: {text.count(old)} places look like\n{old}"
    return text.replace(old, new)


def apply(diff: str, tree: Path) -> None:
    """Apply the example of a recipe; a file that is new has added lines only."""
    for kind, name, edits in re.findall(
        r"^(---|\+\+\+) (.+)\n((?:(?!---|\+\+\+).*\n)*)", diff, re.M
    ):
        path = tree / name
        assert path.exists() is (kind == "---"), f"{name}: expected {kind}"
        if kind == "+++":
            path.write_text(re.sub(r"^\+", "", edits, flags=re.M), encoding="utf-8")
            continue
        for edit in re.split(r"^@@\n", edits, flags=re.M):
            text = path.read_text(encoding="utf-8")
            path.write_text(changed_lines(text, edit, name), encoding="utf-8")


def contents(tree: Path) -> dict[str, bytes]:
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for folder in COPIED
        for path in (tree / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def run(tree: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=tree, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    return done.stdout


def test_there_is_a_recipe_for_each_common_change() -> None:
    tried = ["An ONNX operator", "An op of the IR", "A pass", "A message field", "A device row"]
    assert list(RECIPES) == [*tried, "An interface revision"]


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_the_files_that_it_names_and_works(name: str, tmp_path: Path) -> None:
    tree, recipe = tmp_path / "tree", RECIPES[name]
    for folder in COPIED:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tree)
    before = contents(tree)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", recipe, re.MULTILINE | re.DOTALL)
    (diff,) = [text for language, text in blocks if language == "diff"]
    (command,) = [text for language, text in blocks if not language]
    apply(diff, tree)
    run(tree, "docs.make_map")
    after = contents(tree)
    changed = {file for file in after if after[file] != before.get(file)}
    assert changed == set(re.findall(r"^\| `([^`]+)` \|", recipe, re.MULTILINE))
    python = [file for file in sorted(changed) if file.endswith(".py")]
    run(tree, "ruff", "check", *python)
    run(tree, "ruff", "format", "--check", *python)
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "pytest"]
    said = run(tree, *words[2:], "-q", "-p", "no:cacheprovider")
    assert re.search(r"\d+ passed", said)
    assert "skipped" not in said
    page = "tests/test_docs.py::test_every_pass_has_a_page_and_every_page_is_linked"
    run(tree, "pytest", "-q", "-p", "no:cacheprovider", "tests/test_architecture.py", page)
