"""The store of models is whole whatever comes between or interrupts a command at any step.

This file is a program, too: it runs an action of a store again and again, each time stopped one
step later, and prints what is left. Its arguments are a store to copy, an artifact, the action, and
how it is stopped: "kill" (SIGKILL) or "fail" (the step fails with a full disk). Steps are what
Python's audit hooks see of files below the store: openings, makings, renamings, removals, changes
of mode.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import StoreError
from modeld.store.model_store import ModelStore, remove
from modeld.store.records import ModelId, Selected
from tests.modeld.bench import small_artifacts
from tests.support.selection import quick_cases

ROOT = Path(__file__).parents[2]
A, B, C = (ModelId.of(text) for text in ("a@1", "b@1", "c@1"))
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree")


def nothing(_path: Path) -> None:
    """Stand for the self-test of artifacts that are known to run."""


def actions(store: ModelStore, artifact: Path) -> dict[str, Callable[[], Any]]:
    return {
        "add": lambda: store.add(artifact, C, now_s=1.8e9, self_test=nothing),
        "select": lambda: store.select(A, "driving", self_test=nothing),
        "rollback": lambda: store.rollback("driving", self_test=nothing),
        "remove": lambda: remove(store, A, force=True),
    }


def stop_at(step: int, how: str, place: Path) -> None:
    """Stop this process at a step, counted from 1, that changes what is below `place`."""
    left = step

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in EVENTS or not str(arguments[0]).startswith(str(place)):
            return
        left -= 1
        if left == 0 and how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    sys.addaudithook(hook)


def state(store: ModelStore) -> dict[str, Any]:
    selected = store.selection()["driving"]
    return {
        "models": [entry.directory.name for entry in store.entries()],
        "problems": [entry.problem for entry in store.entries() if entry.problem],
        "selected": [str(selected.current), str(selected.previous)],
        "hidden": sorted(p.name for p in store.directory.iterdir() if p.name.startswith(".")),
    }


def interrupted(template: Path, artifact: Path, action: str, how: str, step: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        store = ModelStore(Path(directory) / "store")
        shutil.copytree(template, store.directory)
        child = os.fork()
        if child == 0:
            stop_at(step, how, store.directory)
            try:
                actions(store, artifact)[action]()
            except StoreError as error:
                os.write(2, f"{error}\n".encode())
                os._exit(4)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        found = {"step": step, "code": code, **state(store)}
        # The next command, whichever it is, removes what is left.
        store.select(B, "driving", self_test=nothing)
        found["later"] = state(store)
        return found


def main() -> None:
    template, artifact, action, how = sys.argv[1:]
    step, code = 0, 1
    while code != 0:
        step += 1
        found = interrupted(Path(template), Path(artifact), action, how, step)
        code = found["code"]
        os.write(1, json.dumps(found).encode() + b"\n")


def test_of_two_commands_one_waits_for_the_other(store: ModelStore) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(_path: Path) -> None:
        inside.set()
        assert go_on.wait(60)

    def select(patient: ModelStore) -> None:
        patient.select(A, "driving", self_test=nothing)

    artifact = small_artifacts() / "a.pkl"
    first = threading.Thread(target=lambda: store.add(artifact, C, now_s=0, self_test=wait))
    first.start()
    assert inside.wait(60)
    with pytest.raises(StoreError, match="another command holds it; try again"):
        select(store)
    # Readers need no lock, and see nothing that is not whole.
    assert [entry.directory.name for entry in store.entries()] == ["a@1", "b@1"]
    second = threading.Thread(target=select, args=[ModelStore(store.directory, lock_wait_s=60)])
    second.start()
    go_on.set()
    first.join(60)
    second.join(60)
    assert store.selection()["driving"] == Selected(A, B)
    assert store.entries()[-1].directory.name == "c@1"


@pytest.mark.parametrize("how", [pytest.param("kill", marks=pytest.mark.slow), "fail"])
@pytest.mark.parametrize("action", quick_cases(["add", "select", "rollback", "remove"], "add"))
def test_a_command_that_is_interrupted_anywhere_leaves_the_old_or_the_new(
    store: ModelStore, action: str, how: str
) -> None:
    arguments = (store.directory, small_artifacts() / "a.pkl", action, how)
    done = subprocess.run(
        [sys.executable, "-m", "tests.modeld.test_interrupted_store", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    *stopped, last = [json.loads(line) for line in done.stdout.splitlines()]
    old = {"models": ["a@1", "b@1"], "selected": ["b@1", "a@1"]}
    new = {**old, "selected": ["a@1", "b@1"]}
    if action == "add":
        new = {**old, "models": ["a@1", "b@1", "c@1"]}
    allowed = [old, new]
    if action == "remove":
        # First nobody goes back to it any more, then it is gone.
        new = {"models": ["b@1"], "selected": ["b@1", "None"]}
        allowed = [old, {**old, "selected": new["selected"]}, new]
    assert len(stopped) >= 6, "the action has fewer steps than its files"
    for found in stopped:
        assert found["code"] in ((-signal.SIGKILL,) if how == "kill" else (0, 4)), found
        assert {key: found[key] for key in old} in allowed, found
        assert not found["problems"], found
        assert found["later"]["hidden"] == [".lock"], found
        assert found["later"]["selected"][0] == "b@1"
        if how == "fail" and action != "remove":
            assert found["hidden"] == [".lock"], found
    assert {key: last[key] for key in new} == new
    # Both were met: what is stopped early is undone, what is stopped late is done.
    assert {key: stopped[0][key] for key in old} == old
    assert {key: stopped[-1][key] for key in old} == new


if __name__ == "__main__":
    main()
