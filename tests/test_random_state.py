"""No test shares random state with another: what it draws does not depend on what ran before it."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GENERATORS = {"default_rng", "Random", "RandomState", "Generator"}
SHARED = {"np.random", "numpy.random"}  # their functions draw from one state for all


def called(node: ast.expr | None) -> str:
    """Return the last name of what is called."""
    if not isinstance(node, ast.Call):
        return ""
    return ast.unparse(node.func).rpartition(".")[2]


def shared_state(text: str) -> list[str]:
    """Return the statements of a module that keep or draw from state of all its tests."""
    tree = ast.parse(text)
    imports_random = any(
        isinstance(n, ast.Import) and n.names[0].name == "random" for n in ast.walk(tree)
    )
    shared = SHARED | ({"random"} if imports_random else set())
    found = []
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Module | ast.ClassDef):
            kept = [s for s in scope.body if isinstance(s, ast.Assign | ast.AnnAssign)]
            found += [ast.unparse(s) for s in kept if called(s.value) in GENERATORS]
        if isinstance(scope, ast.Call) and isinstance(scope.func, ast.Attribute):
            owner = ast.unparse(scope.func.value)
            if owner in shared and scope.func.attr not in GENERATORS:
                found.append(ast.unparse(scope))
    return found


@pytest.mark.slow
def test_no_module_keeps_a_generator() -> None:
    found = {
        path.relative_to(HERE).as_posix(): states
        for path in sorted(HERE.rglob("*.py"))
        if (states := shared_state(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_shared_state_is_found() -> None:
    text = "RNG = np.random.default_rng(3)\nclass A:\n    r: Random = random.Random(1)\n"
    assert len(shared_state(text + "def f():\n    return np.random.rand(3)")) == 3
    assert len(shared_state("import random\nx = random.random()")) == 1
    assert shared_state("W = np.random.default_rng(3).random(4)") == []
