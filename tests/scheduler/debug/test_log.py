"""Stages, the DEBUG ladder, VIZ: what the compiler tells about itself."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.context import CompileContext, Stages
from scheduler.debug.kernel_table import kernel_tables, summary, table_text
from scheduler.flags import FLAGS, Flags, Level
from scheduler.pipeline import INPUT, passes, schedule
from tests.scheduler.debug.examples import two_products
from tests.scheduler.support.programs import artifact_of

ROOT = Path(__file__).parents[3]


def test_stages_hold_the_graph_after_every_pass_and_looking_changes_nothing() -> None:
    stages = Stages()
    plan = schedule({"y": two_products().node}, context=CompileContext(stages=stages))
    names = [INPUT, *(name for name, _ in passes(CompileContext()))]
    assert [name for name, _ in stages.graphs] == names
    assert all(roots for _, roots in stages.graphs)
    assert plan.stages is stages
    other = schedule({"y": two_products().node}, context=CompileContext())
    assert [k.text for k in other.lowered] == [k.text for k in plan.lowered]


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 0), ("0", 0), ("1", 1), ("3", 3), ("99", 5), ("true", 1), ("*", 1), ("-1", 1)],
)
def test_debug_is_a_number(monkeypatch: pytest.MonkeyPatch, text: str, level: int) -> None:
    monkeypatch.setenv("DEBUG", text)
    assert Flags.from_environment().debug == level


@pytest.mark.parametrize(
    ("text", "path"),
    [("", None), ("0", None), ("1", "build/viz-a-b.html"), ("x/y.html", "x/y.html")],
)
def test_viz_is_a_path(monkeypatch: pytest.MonkeyPatch, text: str, path: str | None) -> None:
    monkeypatch.setenv("VIZ", text)
    assert Flags.from_environment().viz_path("a/b") == (path and Path(path))


def test_every_flag_is_documented() -> None:
    text = (ROOT / "docs/env-vars.md").read_text(encoding="utf-8")
    for flag in FLAGS:
        assert f"| `{flag.name}` | `scheduler/flags.py` |" in text
    for level in Level:
        assert f"\n| {int(level)} | " in text


@pytest.mark.parametrize("level", range(6))
def test_each_step_of_the_ladder_adds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    monkeypatch.setenv("DEBUG", str(level))
    plan = two_products().schedule()
    (table,) = kernel_tables(artifact_of(plan).manifest, {"run": plan})
    text = "\n".join(r.getMessage() for r in caplog.records if r.name == "scheduler")
    assert (summary(table) in text) == (level >= Level.SUMMARY)
    assert (table_text(table) in text) == (level >= Level.TABLE)
    assert (": stored: an output" in text) == (level >= Level.LOOPS)
    assert ("lanes 16, tiles" in text or "lanes 4, tiles" in text) == (level >= Level.LOOPS)
    assert ("__kernel" in text) == (level >= Level.SOURCE)
    assert ("after canonicalize:" in text) == (level >= Level.IR)


def run_fresh(cwd: Path, **environment: str) -> str:
    """Schedule something in a process without any logging; return what it says."""
    code = "from scheduler.tensor.tensor import Tensor\n"
    code += "Tensor.input('x', (4, 8)).softmax(1).schedule()"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout == ""
    return result.stderr


@pytest.mark.slow
def test_without_flags_nothing_is_said_or_written(tmp_path: Path) -> None:
    assert run_fresh(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_flags_of_the_environment_give_lines_on_stderr_and_a_page(tmp_path: Path) -> None:
    (line,) = run_fresh(tmp_path, DEBUG="1").splitlines()
    assert line.startswith("scheduler: 1 kernel, 1 launch, ")
    assert "wrote build/viz-out0.html" in run_fresh(tmp_path, VIZ="1")
    page = (tmp_path / "build/viz-out0.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")


def test_the_level_of_the_logger_is_left_alone_without_debug() -> None:
    logger = logging.getLogger("scheduler")
    before = (logger.level, list(logger.handlers))
    two_products().schedule()
    assert (logger.level, list(logger.handlers)) == before
