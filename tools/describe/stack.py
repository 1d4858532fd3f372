"""Lists the differences between a stack's bus and ours, as `modeld inspect --schema` prints them.

A stack is openpilot or a fork. Fields are compared by their ordinals and enumerants by their
numbers, as messages encode them; names are not on the wire. A structure without fields on one side
is not compared. Ours is empty if it is out of use, theirs if it is reserved for forks.

Nothing in a checkout is executed. services.py is parsed, and only literals are used. Schema files
are copied, with imports among themselves only, and loaded in a separate process.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, cast

from cereal.schema import log
from cereal.schema_layout import FieldLayout, SchemaLayout, TypeLayout, layout_of
from cereal.services import SERVICES
from runtime.own_process import own_command
from runtime.texts import count_text
from tools.errors import FileKindError
from tools.lib.terminal import Section

NEW, CHANGED, INCOMPATIBLE, REMOVED, RENAMED = KINDS = (
    "new",
    "changed",
    "incompatible",
    "removed",
    "renamed",
)
# Kinds that our tables have to follow; removed and renamed names are harmless.
DIFFERENCES: Final = (NEW, CHANGED, INCOMPATIBLE)
_RETIRED: Final = re.compile(r"(?i)(deprecated|retired)$")

# Locations of these files in openpilot and sunnypilot, newest first; opendbc is a separate
# repository.
_CEREAL: Final = ("openpilot/cereal", "cereal", ".")
_MORE: Final = (
    "opendbc_repo/opendbc/car",
    "opendbc/car",
    "openpilot/opendbc_repo/opendbc/car",
    "opendbc_repo/opendbc/car/include",
)
_TABLES: Final = ("_services", "services")
_MAX_BYTES: Final = 1 << 20
_MAX_FILES: Final = 64
_TIMEOUT_S: Final = 60
# Annotations for other languages, which no field has.
_STUB: Final = """@0x{number:016x};
annotation {names} (file) :Text;
"""
_STUBS: Final = {
    "c++.capnp": _STUB.format(number=0xBDF87D7BB8304E81, names="namespace"),
    "java.capnp": "@0xc5f1af96651f70ea;\nannotation package (file) :Text;\n"
    "annotation outerClassname (file) :Text;\n",
}
_TOKEN: Final = re.compile(r'#[^\n]*|"(?:\\.|[^"\\\n])*"|\b(?:import|embed)\b')


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, of a kind in `KINDS`, with our version and theirs; either may be empty."""

    kind: str
    what: str
    ours: str
    theirs: str


def describe(directory: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the differences of a checkout, for machines and for people.

    Raises:
        FileKindError: it is not a checkout, or cannot be read.
    """
    checkout = read_checkout(directory)
    walk = _Walk(layout_of(log.Event.schema), checkout.layout)
    found = [*_services(checkout.services), *walk.all()]
    found.sort(key=lambda one: (KINDS.index(one.kind), one.what))
    count = sum(one.kind in DIFFERENCES for one in found)
    facts = {
        "differences": count,
        "findings": [asdict(one) for one in found],
        "services": len(checkout.services),
        "structures": walk.structures,
        "empty": walk.empty,
    }
    title = (
        f"{count_text(count, 'difference')} from our tables in "
        f"{count_text(len(checkout.services), 'service')} and "
        f"{count_text(walk.structures, 'structure')}; {walk.empty} are empty on one side"
    )
    rows: list[tuple[object, ...]] = [
        (one.kind, one.what, one.ours or "-", one.theirs or "-") for one in found
    ]
    return facts, [Section(title, ("", "what", "ours", "theirs"), rows)]


def _services(theirs: dict[str, StackService]) -> Iterator[Difference]:
    for name, row in theirs.items():
        ours = SERVICES.get(name)
        if ours is None:
            yield Difference(NEW, name, "", _service_text(row))
            continue
        queue_bytes = None if row.queue_bytes is None else ours.queue_bytes
        mine = StackService(ours.logged, ours.frequency_hz, ours.decimation, queue_bytes)
        if _service_text(mine) != _service_text(row):
            yield Difference(CHANGED, name, _service_text(mine), _service_text(row))


def _service_text(row: StackService) -> str:
    parts = [f"{row.frequency_hz:.4g} Hz", "logged" if row.logged else "not logged"]
    parts.append("not in qlog" if row.decimation is None else f"qlog {row.decimation}")
    if row.queue_bytes is not None:
        parts.append(f"queue {row.queue_bytes}")
    return ", ".join(parts)


class _Walk:
    """Compares two schemas, each pair of structures once; `empty` pairs lack fields on one side."""

    def __init__(self, ours: SchemaLayout, theirs: SchemaLayout) -> None:
        self._ours, self._theirs = ours, theirs
        self._seen: set[tuple[str, str]] = set()
        self._waiting = [(ours["root"], theirs["root"])]
        self.structures = self.empty = 0

    def all(self) -> Iterator[Difference]:
        """Yield all differences."""
        while self._waiting:
            pair = self._waiting.pop(0)
            if pair not in self._seen:
                self._seen.add(pair)
                yield from self._structs(*pair)

    def _structs(self, ours: str, theirs: str) -> Iterator[Difference]:
        name = self._ours["names"][ours]
        mine, other = self._ours["structs"][ours], self._theirs["structs"][theirs]
        if not mine or not other:
            self.empty += 1
            return
        self.structures += 1
        for ordinal in sorted({*mine, *other}, key=int):
            one, two = mine.get(ordinal), other.get(ordinal)
            if one is None or two is None:
                yield self._one_sided(name, ordinal, one, two)
            else:
                yield from self._fields(f"{name}.{one['name']}", one, two)

    def _one_sided(
        self, name: str, ordinal: str, one: FieldLayout | None, two: FieldLayout | None
    ) -> Difference:
        if two is not None:
            text = f"@{ordinal} :{_type_text(two['type'], self._theirs)}"
            return Difference(NEW, f"{name}.{two['name']}", "", text)
        assert one is not None
        text = f"@{ordinal} :{_type_text(one['type'], self._ours)}"
        return Difference(REMOVED, f"{name}.{one['name']}", text, "")

    def _fields(self, what: str, one: FieldLayout, two: FieldLayout) -> Iterator[Difference]:
        texts = [
            f"{_type_text(field['type'], layout)}, place {field['offset']}"
            + ("" if field["member"] is None else f", member {field['member']}")
            for field, layout in ((one, self._ours), (two, self._theirs))
        ]
        places = [(field["offset"], field["member"]) for field in (one, two)]
        if places[0] != places[1] or not self._same_on_wire(one["type"], two["type"]):
            yield Difference(INCOMPATIBLE, what, *texts)
            return
        if _bare(one["name"]) != _bare(two["name"]):
            yield Difference(RENAMED, what, one["name"], two["name"])
        yield from self._enums(one["type"], two["type"])

    def _same_on_wire(self, one: TypeLayout, two: TypeLayout) -> bool:
        """Return whether types are the same on the wire; structures are compared later."""
        if one["kind"] != two["kind"]:
            return {one["kind"], two["kind"]} == {"enum", "uint16"}
        if one["kind"] == "list":
            return self._same_on_wire(one["element"], two["element"])
        if one["kind"] == "struct":
            self._waiting.append((one["id"], two["id"]))
        return True

    def _enums(self, one: TypeLayout, two: TypeLayout) -> Iterator[Difference]:
        while one["kind"] == "list":
            one, two = one["element"], two["element"]
        if not one["kind"] == two["kind"] == "enum" or (one["id"], two["id"]) in self._seen:
            return
        self._seen.add((one["id"], two["id"]))
        name = self._ours["names"][one["id"]]
        pairs = zip_longest(self._ours["enums"][one["id"]], self._theirs["enums"][two["id"]])
        for number, (mine, other) in enumerate(pairs):
            if mine is None:
                yield Difference(NEW, f"{name}.{other}", "", f"@{number}")
            elif other is None:
                yield Difference(REMOVED, f"{name}.{mine}", f"@{number}", "")
            elif _bare(mine) != _bare(other):
                yield Difference(RENAMED, f"{name} @{number}", mine, other)


def _type_text(kind: TypeLayout, layout: SchemaLayout) -> str:
    if kind["kind"] == "list":
        return f"list of {_type_text(kind['element'], layout)}"
    return layout["names"][kind["id"]] if "id" in kind else kind["kind"]


def _bare(name: str) -> str:
    """Return a field's name without its groups and without a suffix such as Deprecated."""
    return _RETIRED.sub("", name.rsplit(".", 1)[-1])


@dataclass(frozen=True, slots=True)
class StackService:
    """A row of a stack's table of services."""

    logged: bool  # whether it is in the log
    frequency_hz: float  # messages per second
    decimation: int | None  # every n-th message is in the small log; None if no message is
    queue_bytes: int | None  # size of its ring; None if the stack does not declare it


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout: services by name, and the layout of its Event."""

    services: dict[str, StackService]
    layout: SchemaLayout


def read_checkout(directory: Path) -> Checkout:
    """Read services.py, log.capnp and its imports.

    Raises:
        FileKindError: they are missing or invalid.
    """
    for place in _CEREAL:
        home = directory / place
        if (home / "log.capnp").is_file() and (home / "services.py").is_file():
            layout = _load(home, [home, home / "include", *(directory / one for one in _MORE)])
            return Checkout(_read_services(home / "services.py"), layout)
    raise FileKindError(
        f"{directory}: expected log.capnp and services.py in it, in cereal or in openpilot/cereal, "
        "found none; name the directory of a checkout"
    )


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise FileKindError(f"{path}: expected at most {_MAX_BYTES} bytes, found more")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileKindError(f"{path}: expected a text file, found {reason}") from error


def _load(home: Path, places: list[Path]) -> SchemaLayout:
    staged: dict[str, str] = {}
    waiting = ["log.capnp"]
    while waiting:
        name = waiting.pop()
        if name in staged:
            continue
        if len(staged) == _MAX_FILES:
            raise FileKindError(f"{home}: expected at most {_MAX_FILES} schema files, found more")
        path = next((place / name for place in places if (place / name).is_file()), None)
        if name in _STUBS:
            staged[name] = _STUBS[name]
        elif path is None:
            raise FileKindError(
                f"{home / 'log.capnp'}: expected {name}, which it or one of its files imports, in "
                f"{', '.join(str(place) for place in places)}, found none; is a submodule missing?"
            )
        else:
            staged[name] = "".join(_pieces(path, _text(path), waiting))
    with tempfile.TemporaryDirectory(prefix="modeld-schema-") as temporary:
        for name, text in staged.items():
            (Path(temporary) / name).write_text(text, encoding="utf-8")
        return _layout(home, Path(temporary) / "log.capnp")


def _pieces(path: Path, text: str, imported: list[str]) -> Iterator[str]:
    """Yield a schema file without comments, with imports reduced to file names."""
    end, is_import = 0, False
    for token in _TOKEN.finditer(text):
        yield text[end : token.start()]
        end, found = token.end(), token[0]
        if found == "embed":
            raise FileKindError(f"{path}: expected a self-contained schema, found an embedded file")
        if is_import and found.startswith('"'):
            name = found[1:-1].rsplit("/", 1)[-1]
            imported.append(name)
            found = f'"{name}"'
        is_import = found == "import"
        if not found.startswith("#"):
            yield found
    yield text[end:]


def _layout(home: Path, path: Path) -> SchemaLayout:
    command = own_command("cereal.schema_layout", str(path))
    try:
        done = subprocess.run(  # noqa: S603 - our own module, no shell
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FileKindError(
            f"{home / 'log.capnp'}: expected a schema, found that reading it takes over "
            f"{_TIMEOUT_S} s"
        ) from error
    if done.returncode:
        output = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        # Drop the temporary path, and the prefix of an exception with which the library ends the
        # process.
        reason = re.sub(rf"\S*{re.escape(path.parent.name)}/|what\(\):", "", output[-1]).strip()
        raise FileKindError(f"{home / 'log.capnp'}: expected a schema, found {reason}")
    return cast("SchemaLayout", json.loads(done.stdout))


_OPERATORS: Final = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# Errors for text that is not Python, is nested too deeply, or has no table of literals.
_NO_TABLE: Final = (
    *(SyntaxError, RecursionError, MemoryError),
    *(ValueError, TypeError, ArithmeticError, LookupError),
)
_Value = bool | int | float | str | None


def _read_services(path: Path) -> dict[str, StackService]:
    text = _text(path)
    try:
        module = ast.parse(text)
        names = _constants(module)
        table = _table(module)
        if table is None:
            raise FileKindError(f"{path}: expected a dictionary {' or '.join(_TABLES)}, found none")
        rows = {
            str(_value(key, names)): _row(value, names)
            for key, value in zip(table.keys, table.values, strict=True)
            if key is not None
        }
    except _NO_TABLE as error:
        raise FileKindError(
            f"{path}: expected a table of services as literals, found {error}"
        ) from error
    has_queues = any(row.queue_bytes is not None for row in rows.values())
    small = names.get("QueueSize.SMALL")
    if not has_queues or not isinstance(small, int):
        return rows
    return {
        name: row if row.queue_bytes is not None else _with_queue(row, small)
        for name, row in rows.items()
    }


def _with_queue(row: StackService, queue_bytes: int) -> StackService:
    return StackService(row.logged, row.frequency_hz, row.decimation, queue_bytes)


def _table(module: ast.Module) -> ast.Dict | None:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and target.id in _TABLES:
                value = cast("ast.Assign | ast.AnnAssign", node).value
                if isinstance(value, ast.Dict):
                    return value
    return None


def _constants(module: ast.Module) -> dict[str, _Value]:
    """Return the numbers that classes of the module define: ``QueueSize.BIG``."""
    found: dict[str, _Value] = {}
    for holder in module.body:
        for node in holder.body if isinstance(holder, ast.ClassDef) else []:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                try:
                    name = f"{cast('ast.ClassDef', holder).name}.{node.targets[0].id}"
                    found[name] = _value(node.value, {})
                except ValueError:
                    continue
    return found


def _row(node: ast.expr, names: dict[str, _Value]) -> StackService:
    if not isinstance(node, ast.Tuple) or not 2 <= len(node.elts) <= 4:
        raise ValueError(f"a service that is no tuple of 2 to 4 in line {node.lineno}")
    cells = [_value(one, names) for one in node.elts] + [None, None]
    logged, frequency_hz, decimation, queue = cells[:4]
    if not isinstance(logged, bool) or not isinstance(frequency_hz, int | float):
        raise TypeError(f"a service without flag and rate in line {node.lineno}")
    return StackService(
        logged,
        float(frequency_hz),
        decimation if isinstance(decimation, int) else None,
        queue if isinstance(queue, int) else None,
    )


def _value(node: ast.expr, names: dict[str, _Value]) -> _Value:
    """Return a literal, an expression of literals, or a named number."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str | None):
        return node.value
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return names[f"{node.value.id}.{node.attr}"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -cast("float", _value(node.operand, names))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, names), _value(node.right, names)
        if all(isinstance(one, int | float) for one in (left, right)):
            return cast("float", _OPERATORS[type(node.op)](left, right))
    raise ValueError(f"no literal in line {node.lineno}")
