"""What each file of the tree depends on, and so which test files a changed file reaches.

    cereal/log.capnp < cereal/schema.py < modeld/outputs/fill_message.py < test_fill_message.py
                named in a text     imported                          imported

Imports, also those inside functions, come from grimp, the library below import-linter. A file also
depends on what its texts name: a module that it starts (`"tools.check"`), a file (`"log.capnp"`),
all files of a pattern (`"*.md"`). A folder's `conftest.py` counts for all tests below it. The
command line imports each command when it is asked for, so a test depends on those that it names.
"""

import ast
import fnmatch
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path, PurePosixPath
from types import CodeType

import grimp

PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools", "benchmarks", "tests")
# Every test depends on what configures them all.
CONFIGURATION = ("pyproject.toml", "tests/conftest.py")
COMMAND_LINE = "tools/cli.py"
# Every command reads this table; what its row imports, the module of the command imports, too.
COMMAND_FILES, OUTPUTS = "tools/command_files.py", "tools/lib/named_file.py"
# What cleans up after the tests makes none of them fail, only those that import it.
KEEPER = "tests/support/keeper.py"


@dataclass(frozen=True, slots=True)
class Graph:
    """Files and what depends on them.

    Attributes:
        files: all of the tree that git knows, below its root.
        users: file -> files that import it, start it or read it.
    """

    files: frozenset[str]
    users: Mapping[str, frozenset[str]]

    def tests_of(self, changed: Iterable[str]) -> dict[str, str]:
        """Return the test files that changed files reach, each with the way from the first one.

        A file that configures all tests, or of which nothing in the tree speaks, reaches all.
        """
        ways: dict[str, str] = {}
        waiting: deque[str] = deque()
        for file in changed:
            ways.setdefault(file, file)
            waiting.append(file)
            if file in CONFIGURATION or not (self.users.get(file) or is_test(file)):
                why = "configures" if file in CONFIGURATION else "is named nowhere: it may concern"
                for test in filter(is_test, sorted(self.files)):
                    ways.setdefault(test, f"{file} {why} all tests")
        while waiting:
            file = waiting.popleft()
            for user in sorted(self.users.get(file, ())):
                if user not in ways:
                    ways[user] = f"{ways[file]} < {user}"
                    waiting.append(user)
        return {file: way for file, way in sorted(ways.items()) if is_test(file)}


def is_test(file: str) -> bool:
    path = PurePosixPath(file)
    return path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py"


def read_graph(root: Path, files: Iterable[str]) -> Graph:
    known = frozenset(files)
    users: dict[str, set[str]] = defaultdict(set)
    imports = list(_imports(root, known))
    users_of_commands = frozenset(user for user, used in imports if used == COMMAND_LINE)
    named = _named(root, known, users_of_commands)
    for user, used in (*imports, *_conftests(known), *named):
        housekeeping = used == KEEPER and not is_test(user)
        in_a_row = user == COMMAND_FILES and used != OUTPUTS
        if user != used and not (housekeeping or in_a_row):
            users[used].add(user)
    return Graph(known, {file: frozenset(found) for file, found in users.items()})


def _file_of(module: str, known: frozenset[str]) -> str | None:
    """Return the file of a module; None for a folder without `__init__.py`."""
    path = module.replace(".", "/")
    return next((f for f in (f"{path}.py", f"{path}/__init__.py") if f in known), None)


def _imports(root: Path, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (importer, imported): the module, and the packages around it, which run first."""
    sys.path.insert(0, str(root))
    try:
        graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    except grimp.exceptions.SourceSyntaxError as error:
        raise SystemExit(f"{error}; correct it, then ask again") from error
    finally:
        sys.path.remove(str(root))
    for module in graph.modules:
        user = _file_of(module, known)
        if user is None:
            continue
        for imported in graph.find_modules_directly_imported_by(module):
            parts = imported.split(".")
            for length in range(1, len(parts) + 1):
                used = _file_of(".".join(parts[:length]), known)
                if used is not None:
                    yield user, used


def _conftests(known: frozenset[str]) -> Iterator[tuple[str, str]]:
    for file in filter(is_test, known):
        for folder in PurePosixPath(file).parents:
            if f"{folder}/conftest.py" in known:
                yield file, f"{folder}/conftest.py"


def _named(
    root: Path, known: frozenset[str], users_of_commands: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield (file, what its texts name): modules, files, files of a pattern, commands."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for file in known:
        path = PurePosixPath(file)
        by_name[path.name].append(file)
        if path.suffix != ".py":
            by_name[f"{path.parent}/"].append(file)
    commands = _commands(root)
    for user in sorted(known):
        if not user.endswith(".py") or user.split("/")[0] not in PACKAGES or user == COMMAND_LINE:
            continue
        # As Python keeps it beside the file, or compiled now and kept.
        texts = _texts(SourceFileLoader(user, str(root / user)).get_code(user))
        for used in _files_of_texts(user, texts, known, by_name):
            yield user, used
        starts = user in users_of_commands or "modeld" in texts or "tools.cli" in texts
        if user.startswith("tests/") and starts:
            yield user, COMMAND_LINE
            named = sorted(texts & set(commands))
            for name in named:
                module = _file_of(commands[name], known)
                if module is not None:
                    yield user, module


def _commands(root: Path) -> dict[str, str]:
    """Return the module of each command, from the table in the command line's text."""
    found = {}
    for node in ast.walk(ast.parse((root / COMMAND_LINE).read_bytes())):
        match node:
            case ast.AnnAssign(
                target=ast.Name(id="COMMANDS"), value=ast.Dict(keys=keys, values=rows)
            ):
                for key, row in zip(keys, rows, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(row, ast.Call):
                        found[str(key.value)] = ast.literal_eval(row.args[0])
    return found


def _texts(code: CodeType | None) -> set[str]:
    """Return the texts in the constants of a module; what ends with a full stop is a sentence."""
    found: set[str] = set()
    waiting: list[object] = [code]
    while waiting:
        constant = waiting.pop()
        if isinstance(constant, str) and 3 <= len(constant) <= 200:
            found.add(constant)
        elif isinstance(constant, CodeType):
            waiting += constant.co_consts
        elif isinstance(constant, tuple | frozenset):
            waiting += constant
    return {text for text in found if "\n" not in text and not text.endswith(".")}


def _files_of_texts(
    user: str, texts: set[str], known: frozenset[str], by_name: Mapping[str, list[str]]
) -> Iterator[str]:
    """Yield the files that texts of a file name; a list of tests is none of what they test."""
    folder = PurePosixPath(user).parent
    for text in sorted(texts):
        if "." in text and " " not in text and (file := _file_of(text.split(":")[0], known)):
            yield file
        for word in text.split():
            name = word.split("::")[0].rpartition("/")[2]
            # The end of a pattern, or of a name that is put together: "*.md", f"{name}.toml".
            suffix = name.rpartition("*")[2]
            if suffix.startswith(".") and name in (f"*{suffix}", suffix):
                if suffix.count(".") == 1 and len(suffix) > 2:
                    yield from _beside(user, texts, fnmatch.filter(known, f"*{suffix}"))
            elif "." in name or name == "Makefile" or word.endswith(".ci/run"):
                yield from (file for file in by_name.get(name, ()) if not is_test(file))
            elif word == text:
                yield from by_name.get(f"{folder}/{name}/", ())


def _beside(user: str, texts: set[str], files: Iterable[str]) -> Iterator[str]:
    """Yield those of some files that a pattern in a file can mean.

    A test may look at the whole tree; code reads what lies beside it, or in a folder that it names.
    """
    folder = PurePosixPath(user).parent
    for file in files:
        place = PurePosixPath(file).parent
        named = place.parent == folder and place.name in texts
        if user.startswith("tests/") or place == folder or named:
            yield file
