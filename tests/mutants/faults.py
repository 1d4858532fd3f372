"""Draws faults from a seed: where each stands in the text of a module, and what replaces it.

    a < b       ->  a <= b          x + y    ->  x - y
    rows[1]     ->  rows[2]         n = 20   ->  n = 21
    flush()     ->  pass            a and b  ->  a or b

Texts, annotations and arguments of raised errors are left alone: no test should pin them down.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
# What runs with torch alone has a suite of its own (`make test-train`).
LEFT_OUT = ("tools/simulator/training/",)

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_COMPUTED: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.Mod: "+",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        file: below the root of the tree.
        start, end: offsets in the text of the file.
        text: what stands there instead.
        line: where it stands, from 1.
        statement: line and indentation of the statement that holds it, where a probe can stand
            before it; None where it runs while its module is imported.
        kind: for the table.
    """

    file: str
    start: int
    end: int
    text: str
    line: int
    statement: tuple[int, int] | None
    kind: str

    def plant(self, text: str) -> str:
        return text[: self.start] + self.text + text[self.end :]

    def shown(self, text: str) -> str:
        """Return `file:line old -> new`, on one line."""
        old = " ".join(text[self.start : self.end].split())
        return f"{self.file}:{self.line}  {old[:60]}  ->  {self.text[:60]}"


class _Module:
    """The text of one module and the faults that it can have."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.tree = ast.parse(text)
        # AST columns count bytes.
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self.found: list[Fault] = []
        for node in self.tree.body:
            self._visit(node, None, (node.lineno, node.col_offset))

    def _offset(self, line: int, column: int) -> int:
        """Return the offset in the text of a position of the AST."""
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def _add(
        self, node: ast.expr | ast.stmt, text: str, place: tuple[int, int] | None, kind: str
    ) -> None:
        start = self._offset(node.lineno, node.col_offset)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        end = self._offset(node.end_lineno, node.end_col_offset)
        self.found.append(Fault(self.file, start, end, text, node.lineno, place, kind))

    def _visit(self, node: ast.AST, place: tuple[int, int] | None, at: tuple[int, int]) -> None:
        """Collect the faults of a node; `place` is None outside of functions."""
        if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
            return
        inside = place is not None
        if isinstance(node, ast.expr | ast.stmt):
            for text, kind in _replacements(node):
                if inside or kind == "constant":
                    self._add(node, text, place, kind)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    self._descend(node, name, child, place, at)

    def _descend(
        self,
        node: ast.AST,
        name: str,
        child: ast.AST,
        place: tuple[int, int] | None,
        at: tuple[int, int],
    ) -> None:
        if isinstance(child, ast.stmt):
            # Nothing can stand before `elif`: the first `if` of the chain stands for all of it.
            chained = isinstance(node, ast.If) and name == "orelse" and _is_elif(child, self._lines)
            at = at if chained else (child.lineno, child.col_offset)
            body = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and name == "body"
            inside = place is not None or body
            self._visit(child, at if inside else None, at)
        else:
            self._visit(child, place, at)


def _is_elif(node: ast.stmt, lines: list[str]) -> bool:
    return isinstance(node, ast.If) and lines[node.lineno - 1].lstrip().startswith("elif")


def _replacements(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield what may stand instead of a node, each with its kind."""
    match node:
        case ast.Constant(value=bool() as value):
            yield str(not value), "constant"
        case ast.Constant(value=int() as value):
            yield str(value + 1), "constant"
        case ast.Constant(value=float() as value):
            yield repr(value * 1.25 if value else 1.0), "constant"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            yield f"{_in(left)} {_COMPARED[type(op)]} {_in(right)}", "comparison"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _COMPUTED and not _text(node):
            yield f"({ast.unparse(left)}) {_COMPUTED[type(op)]} ({ast.unparse(right)})", "operator"
        case ast.BoolOp(op=op, values=values):
            word = " and " if isinstance(op, ast.Or) else " or "
            yield f"({word.join(f'({ast.unparse(value)})' for value in values)})", "condition"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"bool({ast.unparse(operand)})", "condition"
        case ast.Subscript(value=value, slice=ast.Constant(value=int() as index)) if not isinstance(
            index, bool
        ):
            yield f"{ast.unparse(value)}[{index + 1 if index != -1 else -2}]", "index"
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "pass", "dropped"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "pass", "dropped"


def _in(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BoolOp | ast.Compare | ast.Lambda) else text


def _text(node: ast.BinOp) -> bool:
    """Return whether a sum or a product is one of texts, or a union of types."""
    return any(
        isinstance(part, ast.JoinedStr)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | type(None)))
        for part in ast.walk(node)
    )


def faults_of(file: str, text: str) -> list[Fault]:
    """Return every fault that a module can have."""
    return _Module(file, text).found


def draw(root: Path, count: int, seed: int) -> list[Fault]:
    """Return `count` faults of a tree, as many of each package, at most one a function line.

    The kinds are drawn first, then one of its places, since most places are constants.
    """
    chosen: list[Fault] = []
    for number, package in enumerate(PACKAGES):
        rng = random.Random(f"{seed} {package}")  # noqa: S311 - a sample, no secret
        kinds: dict[str, list[Fault]] = {}
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            if not file.startswith(LEFT_OUT):
                for fault in faults_of(file, path.read_text(encoding="utf-8")):
                    kinds.setdefault(fault.kind, []).append(fault)
        wanted = count // len(PACKAGES) + (number < count % len(PACKAGES))
        taken: set[tuple[str, int]] = set()
        while wanted and kinds:
            fault = rng.choice(kinds[rng.choice(sorted(kinds))])
            if (fault.file, fault.line) not in taken and _differs(root, fault):
                taken.add((fault.file, fault.line))
                chosen.append(fault)
                wanted -= 1
    return chosen


def _differs(root: Path, fault: Fault) -> bool:
    """Return whether the module can still be compiled, and is another one."""
    text = (root / fault.file).read_text(encoding="utf-8")
    try:
        return ast.dump(ast.parse(fault.plant(text))) != ast.dump(ast.parse(text))
    except SyntaxError:
        return False
