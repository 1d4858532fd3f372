"""Run an action of a store again and again, each time stopped one step later; print what is left.

Arguments: a store to copy, an artifact, the action, and how it is stopped: "kill" (SIGKILL) or
"fail" (the step fails with a full disk). Steps are what Python's audit hooks see of files below the
store: openings, makings, renamings, removals, changes of mode.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modeld.errors import StoreError
from modeld.model_store import ModelStore
from modeld.store_manifest import ModelId

A, B, C = (ModelId.of(text) for text in ("a@1", "b@1", "c@1"))
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree")


def nothing(_path: Path) -> None:
    """Stand for the self-test of artifacts that are known to run."""


def actions(store: ModelStore, artifact: Path) -> dict[str, Callable[[], Any]]:
    return {
        "add": lambda: store.add(artifact, C, now_s=1.8e9, self_test=nothing),
        "select": lambda: store.select(A, "driving", self_test=nothing),
        "rollback": lambda: store.rollback("driving", self_test=nothing),
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


if __name__ == "__main__":
    main()
