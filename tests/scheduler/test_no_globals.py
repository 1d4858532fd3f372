"""No state of the compiler stands in a module: no context variable, no `global`, no table.

What may stay is named here with its reason (docs/adr/0034-cache-of-schedules.md).
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Calls that make something which functions could write to, or that counts.
MUTABLE = frozenset(
    {"dict", "list", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict"}
    | {"WeakKeyDictionary", "WeakValueDictionary", "WeakSet", "count", "cycle", "ContextVar"}
    | {"Interned", "Lock", "RLock", "local", "default_rng"}
)
WRITES = frozenset(
    {"append", "add", "update", "setdefault", "pop", "popitem", "clear", "extend", "insert"}
    | {"remove", "discard"}
)
# Interning: equal structure is one object. Weak, and no result depends on what is in there.
INTERNED = {"ir/node.py _interned", "ir/index.py _atoms", "ir/index.py _exprs"}
# Age of ranges: only the order of those of one compilation is asked for.
AGE = {"ir/index.py _serial"}
# Memories of pure functions of constants and of interned nodes.
PURE = {
    *("ir/movement.py whole", "ir/movement.py reshape_groups", "ir/movement.py _groups"),
    *("ir/custom_kernel.py read_source", "kernelize/scalar.py _orders"),
    *("passes/winograd_kernel.py choose_blocks", "onnx_import/ops/topk.py _counting_plan"),
    "render/quotient.py reciprocal",
    *("device/tuned_table.py shipped_table", "schedule_cache.py _version"),
}
# The eager front end, beside the compiler: what tensors of a process remember from call to call.
EAGER = {"tensor/eager.py SESSION"}
# Numbers that tell buffers apart; the results that are written have none (test_independence.py).
NUMBERS = {"ir/node.py _serials"}


def called(node: ast.expr | None) -> str:
    """Return the last name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    function: ast.expr = node.func
    while isinstance(function, ast.Subscript):
        function = function.value
    return ast.unparse(function).rpartition(".")[2]


def changeable(tree: ast.Module) -> set[str]:
    """Return the classes of a module whose methods or users may change what an object holds."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            decorators = " ".join(ast.unparse(d) for d in node.decorator_list)
            made = any(isinstance(n, ast.FunctionDef) and n.name == "__init__" for n in node.body)
            if made or ("dataclass" in decorators and "frozen=True" not in decorators):
                found.add(node.name)
    return found


def state(tree: ast.Module, classes: frozenset[str] = frozenset()) -> set[str]:
    """Return what a module keeps: tables, counters, locks, context variables, cached functions."""
    changed, declared, found = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            changed |= set() if isinstance(node.ctx, ast.Load) else {ast.unparse(node.value)}
        elif isinstance(node, ast.Attribute):
            changed |= {ast.unparse(node.value)} if node.attr in WRITES else set()
        elif isinstance(node, ast.Global):
            declared.update(node.names)
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {t.id for t in targets if isinstance(t, ast.Name)}
            literal = isinstance(node.value, ast.Dict | ast.List | ast.Set)
            constant = called(node.value) in ("dict", "list", "set") or literal
            if called(node.value) in MUTABLE | classes or literal:
                found |= names & changed if constant else names
            found |= names & declared
        elif isinstance(node, ast.FunctionDef):
            cached = any("cache" in ast.unparse(d) for d in node.decorator_list)
            found |= {node.name} if cached else set()
    return found


@pytest.mark.slow
def test_no_module_of_the_compiler_keeps_anything() -> None:
    package = ROOT / "scheduler"
    trees = {p: ast.parse(p.read_text(encoding="utf-8")) for p in package.rglob("*.py")}
    classes = frozenset[str]().union(*map(changeable, trees.values()))
    found = {
        f"{path.relative_to(package).as_posix()} {name}"
        for path, tree in trees.items()
        for name in state(tree, classes)
    }
    assert sorted(found) == sorted(INTERNED | AGE | PURE | EAGER | NUMBERS)


def test_state_is_seen_in_all_its_forms() -> None:
    source = """
from functools import cache
A: dict[str, int] = {}
B = {"constant": 1}
C = WeakKeyDictionary()
D = itertools.count()
E = None
F = ContextVar[int]("f")
G = []
H = Kept()
@dataclass
class Kept: ...
@dataclass(frozen=True)
class Value: ...
I = Value()
def f(x):
    A[x] = B[x]
    G.append(x)
def g():
    global E
    E = 1
@cache
def h(): ...
"""
    tree = ast.parse(source)
    assert changeable(tree) == {"Kept"}
    assert state(tree, frozenset(changeable(tree))) == set("ACDEFGHh")
