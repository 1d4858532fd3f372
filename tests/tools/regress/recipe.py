"""Runs the workflow that docs/ci.md hands out, step by step, in a repository on this machine.

The steps are read out of the workflow and the action, so that what is tested is what is copied.
What GitHub gives (files for outputs, a summary, the event) is made here; its own actions are
stood in for. By hand, with packages from the registry and all times: ``python -m
tests.tools.regress.recipe``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]  # it has no types; mkdocs brings it

ROOT: Final = Path(__file__).parents[3]
ACTION: Final = ROOT / ".github/actions/modeld-regress"
EXAMPLE: Final = ACTION / "example.yml"
BASH, GIT = shutil.which("bash") or "bash", shutil.which("git") or "git"
_EXPRESSION: Final = re.compile(r"\$\{\{\s*([\w.-]+)\s*\}\}")
_IS: Final = re.compile(r"([\w.-]+) (==|!=) '([^']*)'")
_MARK: Final = "exit code of the line above: "


@dataclass
class Steps:
    """What some steps of a job left.

    Attributes:
        code: exit code of the first step that failed; 0: none did.
        text: all that they printed.
        summary: the page of the job.
        uploaded: directories of uploaded artifacts by name.
        seconds: of each step that ran something, by id.
    """

    code: int = 0
    text: str = ""
    summary: str = ""
    uploaded: dict[str, Path] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class Runner:
    """Stands in for GitHub's runner.

    Args:
        repository: checkout in which jobs run.
        place: for what the runner makes.
        programs: directory whose `python` and `modeld` the steps find.
        installs: whether the step that installs is run; else `programs` has all it would bring.
    """

    def __init__(self, repository: Path, place: Path, programs: Path, *, installs: bool) -> None:
        self._repository, self._place, self._installs = repository, place, installs
        self._programs = programs
        self._runs = 0
        self._cached: dict[Path, Path] = {}

    def run(self, workflow: Path, job: str, known: Mapping[str, str]) -> Steps:
        """Run a job of a workflow.

        Args:
            workflow: its file.
            job: name of the job.
            known: values of the expressions that GitHub knows: of the event, the matrix, ...
        """
        self._runs += 1
        temporary = self._place / f"run-{self._runs}"
        temporary.mkdir(parents=True)
        context = {"runner.os": "Linux", "runner.arch": "X64", "github.sha": "0" * 40} | dict(known)
        # How this machine reaches its registry of packages is its own matter.
        environment = {
            name: text
            for name, text in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "REQUESTS_")) or name.lower().endswith("_proxy")
        }
        environment |= {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "HOME": str(self._place),
            "RUNNER_TEMP": str(temporary),
            "GITHUB_RUN_ID": str(self._runs),
            "GITHUB_RUN_ATTEMPT": "1",
            "GITHUB_ACTOR": "somebody",
            "GITHUB_SERVER_URL": "https://git.example",
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_STEP_SUMMARY": str(temporary / "summary"),
        }
        found = Steps()
        steps = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"][job]["steps"]
        self._steps(steps, context, environment, found)
        for kept, path in self._cached.items():
            copied(path, kept)
        self._cached.clear()
        summary = temporary / "summary"
        found.summary = summary.read_text(encoding="utf-8") if summary.exists() else ""
        return found

    def _steps(
        self,
        steps: Sequence[Mapping[str, Any]],
        context: dict[str, str],
        environment: dict[str, str],
        found: Steps,
    ) -> None:
        for number, step in enumerate(steps):
            condition = step.get("if", "success()")
            if condition != "always()" and (found.code or not holds(condition, context)):
                continue
            name = str(step.get("id", number))
            given = {key: filled(str(text), context) for key, text in step.get("with", {}).items()}
            if "uses" in step:
                self._use(step["uses"], given, (context, environment), found)
            elif name != "install" or self._installs:
                self._script(name, step, (context, environment), found)

    def _use(
        self,
        action: str,
        given: Mapping[str, str],
        known: tuple[dict[str, str], dict[str, str]],
        found: Steps,
    ) -> None:
        name = action.partition("@")[0]
        if name == "actions/checkout" and "path" in given:
            words = ["worktree", "add", "--detach", "--force", given["path"], given["ref"]]
            git(self._repository, *words)
        elif name.endswith("/modeld-regress"):
            self._composite(given, known, found)
        elif name == "actions/upload-artifact":
            found.uploaded[given["name"]] = Path(given["path"])
        elif name == "actions/cache":
            for path in map(Path, given["path"].splitlines()):
                self._cached[self._place / "cached" / path.name] = path
                copied(self._place / "cached" / path.name, path)
        else:
            assert name in ("actions/checkout", "actions/setup-python"), name

    def _composite(
        self,
        given: Mapping[str, str],
        known: tuple[dict[str, str], dict[str, str]],
        found: Steps,
    ) -> None:
        action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
        unknown = set(given) - set(action["inputs"])
        assert not unknown, f"the action has no input {unknown}"
        context, environment = known
        inputs = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
        own = context | {f"inputs.{name}": text for name, text in (inputs | dict(given)).items()}
        own["github.action_path"] = str(ACTION)
        self._steps(action["runs"]["steps"], own, environment, found)

    def _script(
        self,
        name: str,
        step: Mapping[str, Any],
        known: tuple[dict[str, str], dict[str, str]],
        found: Steps,
    ) -> None:
        context, environment = known
        outputs, more = (Path(environment["RUNNER_TEMP"]) / file for file in ("outputs", "env"))
        for file in (outputs, more):
            file.write_text("", encoding="utf-8")
        own = {key: filled(str(text), context) for key, text in step.get("env", {}).items()}
        # Nothing that somebody typed may stand in the script itself.
        assert "${{" not in step["run"], step["run"]
        started_ns = time.perf_counter_ns()
        done = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self._repository,
            env=environment | {"GITHUB_OUTPUT": str(outputs), "GITHUB_ENV": str(more)} | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        found.seconds[name] = (time.perf_counter_ns() - started_ns) * 1e-9
        found.text += done.stdout
        found.code = found.code or done.returncode
        environment |= dict(_pairs(more))
        context |= {f"steps.{name}.outputs.{key}": text for key, text in _pairs(outputs)}


def copied(one: Path, other: Path) -> None:
    """Copy what there is of a directory into another one."""
    if one.is_dir():
        shutil.copytree(one, other, dirs_exist_ok=True)


def _pairs(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, text = line.partition("=")
        yield key, text


def filled(text: str, context: Mapping[str, str]) -> str:
    """Return a text with its expressions replaced; one that nobody knows is an error."""
    # What a step that did not run would have said is empty.
    return _EXPRESSION.sub(
        lambda found: context.get(found[1], "") if "steps." in found[1] else context[found[1]],
        text,
    )


def holds(condition: str, context: Mapping[str, str]) -> bool:
    """Say whether the condition of a step holds."""
    if condition == "success()":
        return True
    parts = condition.split(" && ")
    values = []
    for part in parts:
        found = _IS.fullmatch(part)
        assert found, f"a condition that this runner cannot read: {part}"
        values.append((context.get(found[1], "") == found[3]) == (found[2] == "=="))
    return all(values)


def git(repository: Path, *words: str) -> str:
    name = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.org")
    done = subprocess.run(
        [GIT, "-C", str(repository), *name, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def make_repository(place: Path, programs: Path) -> Path:
    """Make the repository of a model: models, drives and gates, pushed to an origin beside it."""
    repository, origin = place / "repository", place / "origin.git"
    subprocess.run([GIT, "init", "-q", "--bare", str(origin)], check=True)
    subprocess.run([GIT, "init", "-q", "-b", "main", str(repository)], check=True)
    git(repository, "remote", "add", "origin", str(origin))
    (repository / ".gitignore").write_text("/base/\n", encoding="utf-8")
    retrain(repository, programs, 0)
    (repository / "model.gates").write_text(
        "lateral_2s_max_m < 100\nall.artifact_ratio < 1.05\n", encoding="utf-8"
    )
    for seed in (1, 2):
        words = ["make-drive", "drives", "--seconds", "1", "--seed", str(seed)]
        run_modeld(repository, programs, *words)
    commit(repository, "Models, drives and gates")
    return repository


def retrain(repository: Path, programs: Path, seed: int) -> None:
    """Put another training into the repository."""
    words = ["make-model", "models", "--interface", "split-2025", "--seed", str(seed)]
    run_modeld(repository, programs, *words)


def run_modeld(repository: Path, programs: Path, *words: str) -> None:
    subprocess.run(
        [str(programs / "modeld"), *words], cwd=repository, check=True, capture_output=True
    )


def run_page(page: str, place: Path, programs: Path) -> None:
    """Run what a page shows behind prompts, as its reader would: in order, in one shell.

    A command ends with 0, or with the code that ``$ echo $?`` below it shows. What is shown below
    it is printed: these lines, with any words in place of those that have digits; ``...`` is text
    that is left out.
    """
    blocks = "".join(re.findall(r"^```\n(\$ .*?)^```$", page, re.MULTILINE | re.DOTALL))
    shown = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", blocks, re.MULTILINE)
    assert shown, "the page shows no command"
    script = "".join(f"{line}\nprintf '\\n{_MARK}%s\\n' $?\n" for line, _ in shown)
    done = subprocess.run(
        [BASH, "-c", script],
        cwd=place,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    printed = done.stdout.split(f"\n{_MARK}")
    codes = [text.partition("\n")[0] for text in printed[1:]]
    for number, (line, sample) in enumerate(shown):
        text = printed[number].partition("\n")[2] if number else printed[0]
        if line == "echo $?":
            continue
        follower, wanted = shown[number + 1] if number + 1 < len(shown) else ("", "")
        expected = wanted.strip() if follower == "echo $?" else "0"
        assert codes[number] == expected, (line, text)
        skeletons = {skeleton(one) for one in text.splitlines()}
        unseen = [one for one in sample.splitlines() if one and skeleton(one) not in skeletons]
        assert [one for one in unseen if one != "..."] == [], (line, text)


def skeleton(line: str) -> str:
    """Return a line with its spaces as one and its words with digits as ``#``."""
    return " ".join(re.sub(r"\S*\d\S*", "#", line).split())


def commit(repository: Path, why: str) -> str:
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", why)
    git(repository, "push", "-q", "-f", "origin", "HEAD:refs/heads/main")
    return git(repository, "rev-parse", "HEAD")


def main() -> None:
    """Go through the page in an empty repository, with all that GitHub would install."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="do it here, and keep it")
    args = parser.parse_args()
    place = args.keep or Path(tempfile.mkdtemp(prefix="modeld-recipe-"))
    place.mkdir(parents=True, exist_ok=True)
    venv.create(place / "venv", with_pip=True)
    programs = Path(sys.executable).parent
    repository = make_repository(place, programs)
    base = git(repository, "rev-parse", "HEAD")
    runner = Runner(repository, place, place / "venv/bin", installs=True)
    known = {"github.event.pull_request.base.sha": base}
    asked = {"steps.asked.outputs.reason": "first", "steps.asked.outputs.branch": "main"}
    for title, job, more in (
        ("references", "accept", asked),
        ("the same model", "regress", {"matrix.shard": "1/1"}),
        ("another training", "regress", {"matrix.shard": "1/1"}),
    ):
        if title == "another training":
            retrain(repository, programs, 1)
            commit(repository, "Train again")
            git(repository, "worktree", "prune")
        shutil.rmtree(repository / "base", ignore_errors=True)
        workflow = without_api(place)
        found = runner.run(workflow, job, known | more)
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in found.seconds.items())
        sys.stdout.write(f"{title}: code {found.code}; seconds: {seconds}\n")
        sys.stdout.write(found.text if found.code else found.summary)
    if args.keep is None:
        shutil.rmtree(place)


def without_api(place: Path) -> Path:
    """Return the example without the step that asks GitHub for the branch of a pull request."""
    content = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    steps = content["jobs"]["accept"]["steps"]
    content["jobs"]["accept"]["steps"] = [one for one in steps if one.get("id") != "asked"]
    path = place / "workflow.yml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
