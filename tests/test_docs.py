"""The documents say what the code does: commands and options, variables, numbers, links."""

import argparse
import ast
import importlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from modeld.service.config import SETTINGS
from modeld.service.config_sources import OTHER_VARIABLES
from scheduler.device.costs import Costs
from scheduler.device.spec import SPECS
from scheduler.kernelize import realize
from tests.scheduler.onnx_import.onnx_models import parsed
from tools.cli import COMMANDS, EXIT_CODES, main

ROOT = Path(__file__).parent.parent
PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PASS_PAGES = sorted((ROOT / "docs/passes").glob("[a-z]*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def command_lines(text: str) -> Iterator[str]:
    """Yield what follows `modeld` in code spans and in prompt lines of code blocks."""
    for _, block in FENCE.findall(text):
        yield from re.findall(r"^\$ modeld (.+)$", block, re.MULTILINE)
    yield from re.findall(r"`modeld ([a-z-][^`\n]*)`", FENCE.sub("", text))


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    for option in ("-v", "-vv", "-q", "--verbose", "--quiet", "--json"):
        parser.add_argument(option, action="store_true")
    importlib.import_module(COMMANDS[command].module).add_arguments(parser)
    return parser


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the options of a command, and those of its actions where it has some."""
    yield from parser._option_string_actions
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for chosen in action.choices.values():
                yield from options_of(chosen)


ALL_LINES = sorted({line for name in DOCUMENTS for line in command_lines(read(name))})


def test_the_documents_show_commands_at_all() -> None:
    assert len(ALL_LINES) > 10


@pytest.mark.parametrize("line", ALL_LINES)
def test_documented_commands_and_options_exist(line: str) -> None:
    words = shlex.split(line)
    if words[0].startswith("-"):
        assert words[0] in ("--help", "--version"), line
        return
    assert words[0] in COMMANDS, f"modeld has no command {words[0]!r}"
    known = set(options_of(parser_of(words[0])))
    unknown = [word for word in words if word.startswith("-") and word.split("=")[0] not in known]
    assert not unknown, f"modeld {words[0]} has no option {unknown}"


SHOWN = [*command_lines(read("README.md")), *command_lines(read("docs/commands.md"))]


@pytest.mark.parametrize("line", sorted({line for line in SHOWN if line.count(" ")}))
def test_commands_that_are_shown_parse(line: str) -> None:
    command, *words = shlex.split(line)
    parser_of(command).parse_args(words)  # exits where a word does not fit


def test_the_readme_shows_every_command_once() -> None:
    table = re.findall(r"^\| [^|]+ \| `modeld ([\w-]+)[^`]*` \|$", read("README.md"), re.MULTILINE)
    assert table == list(COMMANDS)


def test_the_commands_page_has_a_section_with_an_example_for_every_command() -> None:
    page = read("docs/commands.md")
    sections = re.findall(r"^## ([\w-]+)$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == list(COMMANDS)
    for name, text in sections:
        assert f"\n$ modeld {name}" in text


def test_make_help_lists_every_target() -> None:
    makefile = read("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    make = shutil.which("make")
    assert make is not None
    shown = subprocess.run([make, "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"make ([a-z]+(?:-[a-z0-9]+)*)\b", shown.stdout)
    assert sorted(listed) == sorted(phony[1].split())


def test_the_exit_codes_of_help_are_those_of_the_commands_page() -> None:
    table = re.findall(r"^\| (\d+[\d, ]*) \| ", read("docs/commands.md"), re.MULTILINE)
    documented = {code for row in table for code in row.replace(" ", "").split(",")}
    assert set(re.findall(r"\b\d+\b", EXIT_CODES)) == documented


PYTHON_BLOCKS = [
    code
    for page in ("README.md", "docs/tensors.md")
    for language, code in FENCE.findall(read(page))
    if language == "python"
]


@pytest.fixture
def policy_artifact(tmp_path: Path) -> Path:
    """`build/policy.pkl` of the README, in an empty directory: the same port, a small network."""
    model, path = tmp_path / "policy.onnx", tmp_path / "build" / "policy.pkl"
    path.parent.mkdir()
    relu = "(float[1, 4] features) => (float[1, 4] outputs) { outputs = Relu (features) }"
    model.write_bytes(parsed(relu).SerializeToString())
    assert main(["compile", "--plain", str(model), "-o", str(path), "--no-binary"]) == 0
    return path


@pytest.mark.opencl
@pytest.mark.parametrize("code", PYTHON_BLOCKS)
def test_python_of_the_readme_runs(
    code: str, policy_artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(policy_artifact.parent.parent)
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102 - our own document


def test_the_readme_shows_how_to_load_and_run_an_artifact() -> None:
    assert any("load_program(" in code and ".run(" in code for code in PYTHON_BLOCKS)


def module_texts(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = str(value.value)
    return found


def is_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def keys_of(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield the expressions that name a variable: environ.get(K), environ[K], K in environ."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_environment(node.value):
            yield node.slice
        elif isinstance(node, ast.Compare) and any(map(is_environment, node.comparators)):
            yield node.left
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            by_method = is_environment(node.func.value)
            if node.args and (by_method or node.func.attr == "getenv"):
                yield node.args[0]


def variables_read() -> dict[str, set[str]]:
    """Return the files that read each environment variable."""
    found: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "environ" not in text and "getenv" not in text:
                continue
            tree = ast.parse(text)
            names = module_texts(tree)
            for key in keys_of(tree):
                if isinstance(key, ast.Constant):
                    name = str(key.value)
                else:
                    assert isinstance(key, ast.Name), f"{path}: a computed variable name"
                    name = names[key.id]
                found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_environment_variables_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| `([\w/.]+)` \|", read("docs/env-vars.md"), re.MULTILINE)
    documented: dict[str, set[str]] = {}
    for name, where in rows:
        documented.setdefault(name, set()).add(where)
    assert documented == variables_read()


def test_variables_of_settings_are_those_of_the_code() -> None:
    page = read("docs/env-vars.md")
    rows = re.findall(r"^\| `([\w.]+)` \| `(MODELD_\w+)` \| (\S+) \|$", page, re.MULTILINE)
    assert rows == [
        (key, setting.variable, f"`{setting.doc.option.split()[0]}`" if setting.doc.option else "-")
        for key, setting in SETTINGS.items()
    ]
    others = re.findall(r"^\| `(MODELD_\w+)` \| `", page, re.MULTILINE)
    assert tuple(others) == OTHER_VARIABLES


def test_numbers_of_the_realize_page_are_those_of_the_code() -> None:
    page = read("docs/passes/realize.md")
    (targets,) = re.findall(r"^\| name \| (.*) \| meaning \|$", page, re.MULTILINE)
    tables = [SPECS[target.strip("`")].costs for target in targets.split(" | ")]
    rows = re.findall(r"^\| `([a-z_]+)` \| ([\d |]+) \| ", page, re.MULTILINE)
    documented = {name: [int(v) for v in values.split("|")] for name, values in rows}
    assert documented == {f.name: [getattr(t, f.name) for t in tables] for f in fields(Costs)}
    assert re.findall(r"`MAX_ENDS` = (\d+)", page) == [str(realize.MAX_ENDS)]


def test_the_targets_page_has_the_rows_of_the_code() -> None:
    page = read("docs/passes/targets.md")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \| (\d+) \| (\S+)", page, re.MULTILINE)
    shown = {name: (int(lanes), int(group), local) for name, lanes, group, local in rows}
    kib = {
        name: str(row.local_bytes >> 10) if row.local_bytes else "-" for name, row in SPECS.items()
    }
    assert shown == {name: (row.lanes, row.group, kib[name]) for name, row in SPECS.items()}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_resolve(name: str) -> None:
    text = FENCE.sub("", read(name))
    targets = [t for t in LINK.findall(text) if "://" not in t and not t.startswith("#")]
    broken = [t for t in targets if not ((ROOT / name).parent / t.partition("#")[0]).exists()]
    assert not broken


def anchors(text: str) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and the site make them."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_anchors_of_links_resolve(name: str) -> None:
    broken = []
    for target in LINK.findall(FENCE.sub("", read(name))):
        path, _, anchor = target.partition("#")
        page = (ROOT / name).parent / path if path else ROOT / name
        if "://" in target or not anchor or page.suffix != ".md":
            continue
        if anchor not in anchors(page.read_text(encoding="utf-8")):
            broken.append(target)
    assert not broken


def test_decisions_have_distinct_numbers() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs/adr").glob("*.md")]
    assert len(numbers) > 10
    assert len(numbers) == len(set(numbers))


def test_every_pass_has_a_page_and_every_page_is_linked() -> None:
    pages = {path.stem: read(f"docs/passes/{path.name}") for path in PASS_PAGES}
    for module in (ROOT / "scheduler/passes").glob("[a-z]*.py"):
        described = [text for text in pages.values() if f"`scheduler/passes/{module.name}`" in text]
        assert module.stem in pages or described, f"write docs/passes/{module.stem}.md"
    linked = {target.removesuffix(".md") for target in LINK.findall(read("docs/passes/README.md"))}
    assert set(pages) <= linked
