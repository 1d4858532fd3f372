"""The command works wherever packages of the same names come first; who mixes them is told."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest
from onnx import helper

from runtime.own_process import own_command
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.support.selection import quick_cases

ROOT = Path(__file__).parent.parent
RAISES = "raise RuntimeError('a foreign package was imported')\n"


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with packages of our names, as a checkout of openpilot is one, that raise."""
    tree = tmp_path_factory.mktemp("foreign")
    for name in ("cereal", "runtime", "scheduler", "tools"):
        (tree / name).mkdir()
        (tree / name / "__init__.py").write_text(RAISES)
    return tree


@pytest.fixture(scope="session")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script that an installer writes for our entry point."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        module, function = tomllib.load(file)["project"]["scripts"]["modeld"].split(":")
    script = tmp_path_factory.mktemp("bin") / "modeld"
    # Spawned processes import the script once more, so the call stands behind a guard.
    call = f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    script.write_text(f"import sys\nfrom {module} import {function}\n{call}")
    return script


def run(
    *words: object, path: tuple[Path, ...], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [str(word) for word in words],
        env=variables,
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "way", quick_cases(["script", "module", "working directory", "child"], "script", "child")
)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param("run --help", "modeld run --config", marks=pytest.mark.slow),
        ("status --bus ipc:///tmp --timeout 0.01", "is the daemon running on this address?"),
        pytest.param("devices", "is the default", marks=pytest.mark.opencl),
    ],
)
def test_commands_work_where_other_packages_come_first(
    way: str, words: str, said: str, foreign: Path, command: Path
) -> None:
    start, path, cwd = {
        "script": ([sys.executable, str(command)], (foreign, ROOT), None),
        "module": ([sys.executable, "-m", "modeld"], (foreign, ROOT), None),
        "working directory": ([sys.executable, "-m", "modeld"], (ROOT,), foreign),
        "child": (own_command("tools.cli"), (foreign,), foreign),
    }[way]
    done = run(*start, *words.split(), path=path, cwd=cwd)
    assert said in done.stdout + done.stderr


@pytest.mark.opencl
def test_the_probe_of_a_driver_has_our_packages(foreign: Path) -> None:
    probe = run(*own_command("runtime.opencl.probe", "0:0"), path=(foreign,), cwd=foreign)
    assert json.loads(probe.stdout)["problem"] == "", probe.stderr


@pytest.mark.slow
@pytest.mark.opencl
def test_processes_that_a_search_of_loops_builds_in_have_our_packages(
    foreign: Path, command: Path, tmp_path: Path
) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "m.pkl"
    nodes = [helper.make_node("Exp", ["x"], ["y"])]
    onnx.save(model_of(nodes, [value("x", (64,))], [value("y", (64,))], {}), model)
    words = ["compile", model, "-o", out, "--tune", "2", "--target", "cpu", "--json"]
    done = run(sys.executable, command, *words, path=(foreign, ROOT), cwd=foreign)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tune"]["kernels"][0]["state"] == "searched"
    assert out.exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        # Ours do not need each other more than this, so others of these names may be in use.
        ("import cereal, tools; import runtime, scheduler; print(tools.theirs)", ["True"]),
        ("import modeld.own_packages, tools; print(tools.theirs)", ["True"]),
        ("import cereal, modeld", ["package 'cereal' of {ours}, found that of {theirs}/cereal/__"]),
        ("import tools, modeld.__main__ as m; m.main()", ["'tools' of {ours}", "{theirs}/own/"]),
        ("import modeld.daemon; import cereal.services; print(cereal.__file__)", ["{ours}/cereal"]),
        ("import modeld, cereal.messaging", ["cereal.messaging: expected", "{ours}", "{theirs}"]),
        ("import modeld; from cereal import log", ["{ours}", "{theirs}"]),
    ],
)  # fmt: skip
def test_who_mixes_packages_is_told_of_both(code: str, said: list[str], tmp_path: Path) -> None:
    for name in ("cereal", "own/tools"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("theirs = True\n")
    (tmp_path / "cereal" / "messaging.py").touch()
    done = run(sys.executable, "-c", code, path=(tmp_path / "own", ROOT), cwd=tmp_path)
    lines = (done.stdout + done.stderr).splitlines()
    for text in said:
        assert text.format(ours=ROOT, theirs=tmp_path) in lines[-1]


def test_nothing_moves_on_a_path_without_others(tmp_path: Path) -> None:
    """Not even a directory of the same name, as it hides no package."""
    (tmp_path / "cereal").mkdir()
    code = """if True:
        import sys
        before = [*sys.path], [*sys.meta_path]
        import modeld.__main__
        modeld.__main__.put_first(modeld.__main__.PACKAGES)
        print((sys.path, sys.meta_path) == before)"""
    done = run(sys.executable, "-S", "-c", code, path=(tmp_path, ROOT), cwd=tmp_path)
    assert done.stdout == "True\n", done.stderr
