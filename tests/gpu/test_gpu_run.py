"""The run for GPUs: what counts as wrong, what is cut, and that a kit has all that it imports."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import kit, plan
from tests.gpu.processes import CUT, Done, run
from tests.gpu.report import failures, markdown
from tools.commands.make_model import BENCHMARKS, MODELS

ROOT = kit.ROOT


def report(**changes: Any) -> dict[str, Any]:
    """Return the report of a run in which all went well, with changes."""
    paced = {"50": {"p50_ms": 3.0, "p99_ms": 4.0}}
    bench = {"median_ms": 2.0, "p99_ms": 2.5, "launches": 9, "gflops": 7.0}
    passed = {"passed": True, "text": "passed", "worst": ""}
    measured = {"state": "measured", "self_test": passed, "bench": bench, "paced": paced}
    beside = {"ratio": 0.9, "ratio_min": 0.8, "ratio_max": 1.0}
    tuned = {"heuristic_ms": 2.0, "best_ms": 1.8, "choices": {"a": "r2"}, "beside": beside}
    good = {
        "device": "A GPU",
        "target": "auto",
        "seconds": 300.0,
        "doctor": {"sections": []},
        "drivers": {"counts": {"passed": 3}, "failed": [], "problem": "", "seconds": 9.0},
        "artifacts": {"vision fp32": measured, "vision fp16": {"state": "not reached"}},
        "tuned": {"vision fp32": {"state": "tuned", "self_test": passed, **tuned}},
        "peers": {},
        "peers_problem": "onnxruntime is not installed",
    }
    return {**good, **changes}


def test_what_was_not_reached_is_shown_and_is_no_failure() -> None:
    assert failures(report()) == []
    page = markdown(report())
    assert "Nothing failed." in page
    for text in ("| vision fp32 | passed | 9 | 2.000 |", "not reached", "0.900 | 0.800 to 1.000"):
        assert text in page


WRONG = {"passed": False, "text": "self-test failed", "worst": "output 'y'"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"artifacts": {"a": {"state": "measured", "self_test": WRONG}}}, "a: self-test failed"),
        ({"artifacts": {"a": {"state": "does not compile: x"}}}, "a: does not compile: x"),
        ({"tuned": {"a": {"state": "tuned", "self_test": WRONG}}}, "output 'y'"),
        ({"drivers": {**report()["drivers"], "failed": ["t.py::x"]}}, "tests/drivers: t.py::x"),
        (
            {"drivers": {**report()["drivers"], "counts": {}, "problem": "exit code 4"}},
            "tests/drivers: exit code 4",
        ),
    ],
)
def test_wrong_values_and_what_does_not_run_are_failures(
    changes: dict[str, Any], text: str
) -> None:
    found = failures(report(**changes))
    assert len(found) == 1
    assert text in found[0]
    assert "1 failed" in markdown(report(**changes))


def test_all_example_models_are_planned_in_both_precisions() -> None:
    made = plan.jobs(Path("m"), Path("t"))
    names = {plan.DRIVING, plan.MONITORING, plan.TRAINED, *MODELS, *BENCHMARKS}
    assert {job.title for job in made} == {f"{n} {p}" for n in names for p in plan.PRECISIONS}
    assert len({job.artifact(Path("d")) for job in made}) == len(made)
    assert list(plan.SHARES.values()) == sorted(plan.SHARES.values())
    (job,) = (job for job in made if job.title == "vision fp16")
    words = job.arguments(Path("d"), "gpu", "cpu")
    assert "--plain" in words
    assert words[words.index("--precision") + 1] == "fp16"


def test_a_command_that_runs_too_long_is_cut_with_what_it_started() -> None:
    sleeps = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    forever = f"{sleeps.replace('input()', 'import time; time.sleep(60)')}"
    done = run([sys.executable, "-c", forever], {}, 1.0)
    assert done.code == CUT
    assert done.problem.startswith("cut after")
    assert done.seconds < 30
    done = run([sys.executable, "-c", "print('x'); print('{\"a\": 1}')"], {}, 30.0)
    assert (done.code, done.problem, done.json()) == (0, "", {"a": 1})
    assert Done(3, "", "one\nlast", 0.0).problem == "exit code 3: last"
    assert Done(0, "no JSON", "", 0.0).json() == {}


def test_a_kit_has_what_its_tests_import() -> None:
    files = set(kit.tracked(kit.SOURCES)) | {
        p.relative_to(ROOT).as_posix() for p in (ROOT / "tests/gpu").glob("*.py")
    }
    assert len(files) > 400
    for name in sorted(f for f in files if f.startswith("tests/") and f.endswith(".py")):
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("tests"):
                continue
            place = (node.module or "").replace(".", "/")
            parts = [f"{place}.py", *(f"{place}/{a.name}.py" for a in node.names)]
            reached = name.startswith(("tests/drivers", "tests/gpu", "tests/conftest"))
            assert not reached or files & set(parts), f"{name} imports {node.module}"


@pytest.mark.parametrize("version", ["3.11", "3.13"])
def test_the_start_of_a_kit_is_a_script_that_names_its_python(version: str, tmp_path: Path) -> None:
    script = tmp_path / "test-gpu"
    comma = version.replace(".", ", ")
    text = kit.START.format(version=version, comma=comma, names="numpy onnx")
    script.write_text(text, encoding="utf-8")
    subprocess.run(["sh", "-n", str(script)], check=True)  # noqa: S607
    (tmp_path / "wheels").mkdir()
    # No interpreter in PATH: it says which one it wants.
    done = subprocess.run(
        ["/bin/sh", str(script)],
        env={"PATH": str(_only(tmp_path, "dirname"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"expected Python {version}" in done.stderr


def _only(place: Path, *commands: str) -> Path:
    """Make a directory of commands with links to these."""
    found = place / "bin"
    found.mkdir()
    for command in commands:
        (found / command).symlink_to(f"/usr/bin/{command}")
    return found


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
def test_a_short_run_on_a_cpu_ends_in_its_time_with_a_report(tmp_path: Path) -> None:
    """Too short for most of it: every stage is cut, and the report says so."""
    words = ["-m", "tests.gpu", "--target", "gpu", "--device", "cpu", "--seconds", "40"]
    done = subprocess.run(
        [sys.executable, *words, "--output", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert done.returncode == int(bool(found["failures"])), done.stdout
    assert found["target"] == "gpu"
    assert "not reached" in {row["state"] for row in found["artifacts"].values()}
    assert "# GPU:" in (tmp_path / "report.md").read_text(encoding="utf-8")
