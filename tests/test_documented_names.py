"""What documents and docstrings name in code spans exists: files, members, classes, make targets.

A span that is one name, dotted or not, is looked up; of any other, the words with an underscore or
a capital inside. A word exists if the code, its tests or its configuration have it as a name or in
a text; comments and docstrings do not count. The changelog tells history and is left out.
"""

import ast
import functools
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from fnmatch import filter as fnmatch_filter
from pathlib import Path

import pytest

from modeld.service.config import SETTINGS

ROOT = Path(__file__).parent.parent
PACKAGES = ("cereal", "runtime", "scheduler", "modeld", "tools")
FOLDERS = (*PACKAGES, "tests", "benchmarks", "docs", ".github", ".ci")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]
    if path.name not in ("CHANGELOG.md", "map.md")
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
SAID = re.compile(
    r'(?:\A|:\n)\s*r?"""(?s:.*?)"""|(?:^|\s)#(?: .*)?$', re.MULTILINE
)  # docstrings, comments
DOTTED = re.compile(r"([A-Za-z_]\w*(\.[A-Za-z_]\w*)+)(\(|$)")
SPOKEN = re.compile(
    r"[a-z]_|_[a-z0-9]|[a-z][A-Z]|[A-Z]_"
)  # of an expression, which words are names

# Names of other projects, of what our code composes, and examples: no text of ours has them.
OPENCL = "CL_FLOAT CL_FP_DENORM CL_HALF_FLOAT CL_RGBA CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT NCHW16c "
OPENCL += "cl_device_id cl_khr_command_buffer cl_khr_image2d_from_buffer vload16 as_int8 as_uint8 "
OPENCL += "llvm prefetch fwrapv znver3 POCL_AFFINITY POCL_KERNEL_CACHE convert_char4_sat_rte "
OPENCL += "global_work_offset RUSTICL_FEATURES"
ONNX = "Adagrad Adam Gradient Momentum Like light simple test_resnet50 test_shrink accuracy_level "
ONNX += "test_dft_inverse_opset19 test_resize_downsample_scales_linear_align_corners "
ONNX += "test_resize_downsample_scales_cubic_align_corners"
OTHERS = "RLIMIT_AS SCHED_IDLE fdatasync BEAM logTime _Hash_bytes pocl_binary_distribution"
SYSTEMD = "CPUSchedulingPolicy StateDirectory SupplementaryGroups MemoryMax ReadWritePaths "
SYSTEMD += "CONFIG_RT_GROUP_SCHED libc6 renderD128 msm DAEMON_GROUPS RTPRIO"
COMPOSED = "exec_ms source_late_ms driver_delivered"
EXAMPLES = "_ns _ms _hz _bytes _px _m _mps _rad a_from_b XXXXXXXX COUNT UID CLASS Raises utils"
FOREIGN = frozenset(" ".join((OPENCL, ONNX, OTHERS, SYSTEMD, COMPOSED, EXAMPLES)).split())


@functools.cache
def files() -> tuple[str, ...]:
    """Return all files of the repository, without what is built."""
    found = [p for p in ROOT.iterdir() if p.is_file()]
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix != ".pyc"]
    return tuple(sorted(path.relative_to(ROOT).as_posix() for path in found))


@functools.cache
def module(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text(encoding="utf-8"))


@functools.cache
def known_words() -> frozenset[str]:
    """Return every word that the code or its configuration has, and those of file names."""
    found = {setting.variable for setting in SETTINGS.values()}
    for name in files():
        found.update(WORD.findall(name))
        if name.endswith(".py") and name != Path(__file__).relative_to(ROOT).as_posix():
            found.update(WORD.findall(SAID.sub("", (ROOT / name).read_text(encoding="utf-8"))))
        elif name.endswith((".capnp", ".toml", ".yml", ".yaml", ".service")) or "." not in name:
            found.update(WORD.findall((ROOT / name).read_text(encoding="utf-8")))
    return frozenset(found)


def members(body: list[ast.stmt]) -> Iterator[str]:
    """Yield what a module or class defines, imports or is given by its methods."""
    for statement in body:
        for node in ast.walk(statement):
            match node:
                case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name):
                    yield name
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    yield name
                case ast.alias(name=name, asname=alias):
                    yield alias or name


@functools.cache
def class_files() -> dict[str, list[str]]:
    """Return the files that define each class or message; of one name together."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in files():
        if name.endswith(".capnp"):
            words = WORD.findall((ROOT / name).read_text(encoding="utf-8"))
            own = {word for word in words if word[0].isupper()}
        elif name.endswith(".py") and name.split("/")[0] in PACKAGES:
            text = (ROOT / name).read_text(encoding="utf-8")
            own = set(re.findall(r"^class (\w+)", text, re.MULTILINE))
        else:
            continue
        for word in own:
            found[word].append(name)
    return found


@functools.cache
def members_of(name: str) -> frozenset[str]:
    """Return the members of a class or message, inherited ones too."""
    found: set[str] = set()
    for file in class_files()[name]:
        if file.endswith(".capnp"):
            found.update(WORD.findall((ROOT / file).read_text(encoding="utf-8")))
            continue
        for node in module(file).body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                found.update(members(node.body))
                for base in map(ast.unparse, node.bases):
                    found.update(members_of(base) if base in class_files() else ())
    return frozenset(found)


@functools.cache
def paths() -> frozenset[str]:
    """Return all files and folders, each also by every end of its path."""
    whole = {*files(), *(p.as_posix() for name in files() for p in Path(name).parents)}
    return frozenset("/".join(p.split("/")[i:]) for p in whole for i in range(p.count("/") + 1))


@functools.cache
def rooms() -> dict[str, frozenset[str]]:
    """Return what folders of our packages hold, without endings; of one name together."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in map(Path, files()):
        if path.parts[0] in PACKAGES:
            for outer, inner in itertools.pairwise((*path.parts[:-1], path.stem)):
                found[outer].add(inner)
    return {name: frozenset(inside) for name, inside in found.items()}


def missing_file(span: str) -> bool:
    """Does a span name a file or a folder of ours that is not there?"""
    pattern = span.strip("/")
    return pattern not in paths() and not fnmatch_filter(paths(), pattern)


def missing_member(dotted: str) -> str | None:
    """Return what of a dotted name is missing: in a package, in a module, in a class of ours."""
    head, *rest = dotted.split(".")
    if rest == ["service"]:  # a unit
        return None
    if head in PACKAGES:
        path = Path(head)
        while rest and (ROOT / path / rest[0]).is_dir():
            path /= rest.pop(0)
        if rest and (ROOT / path / f"{rest[0]}.py").exists():
            where = [f"{(path / rest.pop(0)).as_posix()}.py"]
        else:
            where = [f"{path.as_posix()}/__init__.py"]
    elif head in class_files():
        return None if rest[0] in members_of(head) else f"{head} has no {rest[0]}"
    elif rest[0] in rooms().get(head, ()):
        return None
    elif head.islower():
        where = [n for n in files() if n.endswith(f"/{head}.py") and n.split("/")[0] in PACKAGES]
        if not where and head in rooms() and head not in sys.stdlib_module_names:
            return f"nothing in {head}/ is called {rest[0]}"
        if "_" not in rest[0]:  # it may be a key, or the end of a file's name
            return None
        if not where and rest[0].isupper():
            return f"no module {head}"
    else:
        return None
    if not where or not rest:
        return None
    defined = {name for one in where for name in members(module(one).body)}
    return None if rest[0] in defined else f"{where[0]} has no {rest[0]}"


@functools.cache
def targets() -> frozenset[str]:
    found = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return frozenset(found[1].split())


def problems(document: str) -> Iterator[str]:
    """Yield what a document names and nobody has."""
    whole = (ROOT / document).read_text(encoding="utf-8")
    made = re.findall(r"^\+\+\+ (.+)$", whole, re.MULTILINE)  # by the examples of recipes
    yield from unknown(found for found in SPAN.findall(FENCE.sub("", whole)) if found not in made)


def unknown(spans: Iterable[str]) -> Iterator[str]:
    """Yield what spans name and nobody has."""
    for span in spans:
        name = re.fullmatch(r"(-*[\w./*-]+)(\(.*\))?", span)
        if span.startswith("make ") and span.split()[1] not in targets():
            yield f"`{span}`: the Makefile has no such target"
        if re.fullmatch(r"[\w./*-]+\.(py|capnp|toml)|[\w.-]+/[\w./*-]*", span):
            ours = span.split("/")[0] in FOLDERS or span.endswith((".py", ".capnp"))
            if ours and missing_file(span):
                yield f"`{span}`: no such file"
        elif span in SETTINGS:  # realtime.priority is no member of modeld/service/realtime.py
            continue
        elif (dotted := DOTTED.match(span)) and (missing := missing_member(dotted[1])):
            yield f"`{span}`: {missing}"
        for word in WORD.findall(span):
            if len(word) > 2 and (name or SPOKEN.search(word)) and not is_known(word):
                yield f"`{span}`: nothing is called {word}"


def is_known(word: str) -> bool:
    """Is a word one of the code's, or the beginning (`POCL_`) of one?"""
    if word in known_words() or word in FOREIGN:
        return True
    return word.endswith("_") and any(known.startswith(word) for known in known_words())


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document: str) -> None:
    found = sorted(set(problems(document)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_what_docstrings_and_comments_name_exists(package: str) -> None:
    found = {
        f"{path}: {problem}"
        for path in files()
        if path.startswith(f"{package}/") and path.endswith(".py")
        for said in SAID.finditer((ROOT / path).read_text(encoding="utf-8"))
        for problem in unknown(SPAN.findall(said[0]))
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize(
    "span",
    [
        "scheduler/ir/gone.py",
        "gone.py",
        "scheduler/gone/",
        "scheduler.ir.gone",
        "scheduler.gone(x)",
        "interp.GONE_NAME",
        "gone.SUM_RULES",
        "Daemon.gone_step",
        "make gone",
        "GONE_VARIABLE",
        "f(gone_name + 1)",
    ],
)
def test_what_is_gone_is_found(span: str, tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"Text with `{span}` in it.\n", encoding="utf-8")
    assert list(problems(str(document)))
