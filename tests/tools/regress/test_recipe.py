"""The workflow of docs/ci.md, the commands of docs/new-training.md and docs/tutorial.md."""

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]  # it has no types; mkdocs brings it

from tests.tools.regress.recipe import (
    ACTION,
    BASH,
    EXAMPLE,
    ROOT,
    Runner,
    commit,
    filled,
    git,
    holds,
    make_repository,
    retrain,
    run_modeld,
    run_page,
    skeleton,
    without_api,
)
from tools.regress.arguments import add_arguments
from tools.regress.judge.reference import ReferenceStore

PROGRAMS = Path(sys.executable).parent
ACCEPT = {"steps.asked.outputs.reason": "because", "steps.asked.outputs.branch": "main"}


def test_expressions_and_conditions_of_the_runner() -> None:
    known = {"inputs.a": "x", "inputs.b": ""}
    assert filled("<${{ inputs.a }}${{inputs.b}}${{ steps.c.outputs.d }}>", known) == "<x>"
    with pytest.raises(KeyError):
        filled("${{ inputs.unknown }}", known)
    assert holds("inputs.a == 'x' && inputs.b == ''", known)
    assert not holds("inputs.a != 'x'", known)
    with pytest.raises(AssertionError, match="cannot read"):
        holds("inputs.a || inputs.b", known)


def test_the_example_and_the_action_fit_each_other_and_the_command() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    text = (ACTION / "action.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text))
    assert used == set(action["inputs"])
    for job in yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["jobs"].values():
        for step in job["steps"]:
            if "modeld-regress" in step.get("uses", ""):
                assert set(step["with"]) <= set(action["inputs"])
    # Nothing of this repository, and no make, which turns every exit code into 2.
    for file in (ACTION / "action.yml", EXAMPLE):
        assert not re.search(r"\bmake\b|tests/|build/regress", file.read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for step in action["runs"]["steps"]:
        # What somebody typed must not become a part of a script.
        assert "${{" not in step.get("run", "")
    judge = next(step["run"] for step in action["runs"]["steps"] if step.get("id") == "judge")
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", judge))
    assert options <= set(parser._option_string_actions)


def test_a_page_is_run_and_its_samples_are_compared(tmp_path: Path) -> None:
    page = "```\n$ cd /\n$ echo 3 mm in $PWD\n...\n5 mm in {}\n$ false\n$ echo $?\n{}\n```\n"
    run_page(page.format("/", 1), tmp_path, PROGRAMS)
    for wrong in (("/x", 1), ("/", 0)):
        with pytest.raises(AssertionError):
            run_page(page.format(*wrong), tmp_path, PROGRAMS)
    assert skeleton(" a-1  of 2.5: ok") == "# of # ok"


class Judged(NamedTuple):
    """What the job of a pull request left."""

    code: int
    page: str
    junit: str
    said: str


class Gated:
    """A repository with the example as its workflow, and pull requests against its first commit."""

    def __init__(self, place: Path) -> None:
        self.repository = make_repository(place, PROGRAMS)
        self.base = git(self.repository, "rev-parse", "HEAD")
        self.store = ReferenceStore(self.repository / "references")
        self._runner = Runner(self.repository, place, PROGRAMS, installs=False)
        self._workflow = without_api(place)

    def judged(self, code: int, shard: str = "1/1") -> Judged:
        """Run the job of a pull request, which ends with this code."""
        shutil.rmtree(self.repository / "base", ignore_errors=True)
        git(self.repository, "worktree", "prune")
        known = {"github.event.pull_request.base.sha": self.base, "matrix.shard": shard}
        found = self._runner.run(self._workflow, "regress", known)
        assert found.code == code, found.text
        (directory,) = found.uploaded.values()
        junit = (directory / "junit.xml").read_text(encoding="utf-8")
        return Judged(found.code, found.summary, junit, found.text)

    def accept(self) -> None:
        """Answer a comment of somebody who accepts."""
        found = self._runner.run(self._workflow, "accept", ACCEPT)
        assert found.code == 0, found.text


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.opencl
@pytest.mark.timeout(600)
def test_the_workflow_in_an_empty_repository(tmp_path: Path) -> None:
    gated = Gated(tmp_path)
    # Without references a drive cannot be judged, which is no change that one accepts.
    found = gated.judged(4)
    assert found.page.startswith("### modeld regress: could not be judged")
    assert 'errors="2"' in found.junit
    assert "::error title=modeld regress" in found.said
    assert "If intended" not in found.page
    gated.accept()
    references = gated.store.all()
    assert {one.provenance["commit"] for one in references} == {gated.base}
    assert {one.provenance["reason"] for one in references} == {"because"}
    head = git(gated.repository, "rev-parse", "HEAD")
    assert git(gated.repository, "rev-parse", "origin/main") == head
    subject = git(gated.repository, "log", "-1", "--format=%s")
    assert subject == "Accept new model outputs: because"
    # The same model passes, here one of its shards.
    assert gated.judged(0, "1/2").junit.count('classname="modeld.drives"') == 1
    # Another training is judged by the old one, in metres.
    retrain(gated.repository, PROGRAMS, 1)
    commit(gated.repository, "Train again")
    (gated.repository / "model.gates").write_text("lateral_2s_max_m < 1e-6\n", encoding="utf-8")
    found = gated.judged(1)
    assert "### modeld regress: changed" in found.page
    assert "Over all drives" in found.page
    assert 'failures="2"' in found.junit
    # It is accepted, and what the old one left behind is removed.
    gated.accept()
    kept = gated.store.all()
    assert len(kept) == 2
    assert not {one.key.model for one in kept} & {one.key.model for one in references}
    # The pull request passes then, although its model still is another one than that of its base.
    found = gated.judged(0)
    assert "### modeld regress: passed" in found.page
    assert "identical" in found.page


@pytest.mark.slow
@pytest.mark.opencl
def test_pictures_are_pushed_to_a_branch_of_their_own(tmp_path: Path) -> None:
    """The step alone: two runs, the second on top of the first one's commit."""
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    (step,) = [one for one in action["runs"]["steps"] if one.get("id") == "pictures"]
    origin, repository = tmp_path / "origin.git", tmp_path / "repository"
    repository.mkdir()
    git(tmp_path, "init", "-q", "--bare", str(origin))
    git(repository, "init", "-q", "-b", "main")
    git(repository, "remote", "add", "origin", str(origin))
    (repository / "file").write_text("x", encoding="utf-8")
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", "first")
    before = git(repository, "rev-parse", "HEAD")
    for run in ("7", "8"):
        directory = tmp_path / run
        (directory / "out/pictures").mkdir(parents=True)
        (directory / "out/pictures/1-a-9.jpg").write_bytes(run.encode())
        environment = {
            "PATH": "/usr/bin:/bin",
            "GITHUB_RUN_ID": run,
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_ACTOR": "somebody",
            "BRANCH": "pictures",
            "SHARD": "1/2",
            "DIRECTORY": str(directory),
        }
        words = [BASH, "-eo", "pipefail", "-c", step["run"]]
        subprocess.run(words, cwd=repository, env=environment, check=True)
    files = git(origin, "ls-tree", "-r", "--name-only", "pictures").splitlines()
    assert files == ["7-1-1-of-2/1-a-9.jpg", "8-1-1-of-2/1-a-9.jpg"]
    # Neither the checkout nor its index is touched.
    assert git(repository, "rev-parse", "HEAD") == before
    assert git(repository, "status", "--porcelain") == ""


PAGE = (ROOT / "docs/new-training.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.timeout(600)
def test_the_commands_of_the_page_about_a_new_training(tmp_path: Path) -> None:
    for name, seed in (("models", "0"), ("trained", "1")):
        words = ["make-model", name, "--interface", "split-2025", "--seed", seed]
        run_modeld(tmp_path, PROGRAMS, *words)
    for seed in ("1", "2"):
        run_modeld(tmp_path, PROGRAMS, "make-drive", "drives", "--seconds", "1", "--seed", seed)
    (gates,) = re.findall(r"^# model.gates\n(.+?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "model.gates").write_text(gates, encoding="utf-8")
    run_page(PAGE, tmp_path, PROGRAMS)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "differences.html").is_file()
    assert len([*(tmp_path / "references").glob("*.reference")]) == 2


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.timeout(900)
def test_the_tutorial(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "tools/models", tmp_path / "tools/models")
    run_page((ROOT / "docs/tutorial.md").read_text(encoding="utf-8"), tmp_path, PROGRAMS)
    assert (tmp_path / "build/tutorial/differences.html").is_file()
