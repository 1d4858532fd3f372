"""The command models: what it prints, what it refuses, and who it asks before it switches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cereal.schema import new_event
from cereal.transport import ZmqTransport
from tests.other_user import (
    OWN_GROUP,
    STRANGER,
    line,
    needs_root,
    open_directory,
    process_of,
    tell,
)
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main

__all__ = ["open_directory"]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("artifacts")
    first = write_tiny_driving(place / "first.pkl", (64, 32))
    return first, write_tiny_driving(place / "second.pkl", (64, 32), bad_frame=1000)


@pytest.fixture
def place(tmp_path: Path) -> list[str]:
    """Options that name a store and a bus on which nobody is."""
    (tmp_path / "bus").mkdir()
    config = tmp_path / "config.toml"
    config.write_text(f'bus_address = "ipc://{tmp_path}/bus"\n', encoding="utf-8")
    return ["--store", str(tmp_path / "store"), "--config", str(config)]


def models(*arguments: object) -> int:
    return main(["models", *map(str, arguments)])


def printed(capsys: Capture, *arguments: object) -> dict[str, Any]:
    capsys.readouterr()
    assert models(*arguments, "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@contextmanager
def on_the_bus(directory: Path, service: str, **fields: Any) -> Iterator[None]:
    """Publish a message again and again."""
    transport = ZmqTransport(f"ipc://{directory}")
    publisher, done = transport.publisher(service), threading.Event()
    built = new_event(service, mono_time_ns=1, valid=True)
    for name, value in fields.items():
        setattr(getattr(built, service), name, value)
    data = built.to_bytes()

    def publish() -> None:
        while not done.wait(0.02):
            publisher.send(data)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        transport.close()


@pytest.mark.slow
@pytest.mark.opencl
def test_a_model_is_added_selected_and_taken_back(
    artifacts: tuple[Path, Path], place: list[str], capsys: Capture
) -> None:
    for version, artifact in enumerate(artifacts, 1):
        assert models("add", artifact, "--name", "ex", "--version", version, *place) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("ex@1: driving, ")
    assert said[0].endswith("take it with: modeld models select ex@1")
    assert models("select", "ex@1", *place) == 0
    assert capsys.readouterr().out.splitlines() == [
        "driving: ex@1 (nothing before)",
        "the daemon takes it at its next start, or with: systemctl reload modeld",
    ]
    assert models("select", "ex@2", *place) == 0
    assert capsys.readouterr().out.startswith("driving: ex@2 (before: ex@1)\n")
    found = printed(capsys, "list", *place)
    assert found["selected"] == {"driving": {"current": "ex@2", "previous": "ex@1"}}
    assert [one["current"] for one in found["models"]] == [[], ["driving"]]
    assert [one["previous"] for one in found["models"]] == [["driving"], []]
    assert all(one["sound"] and one["problem"] is None for one in found["models"])
    assert printed(capsys, "rollback", *place)["current"] == "ex@1"
    assert models("list", *place) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].split() == [
        *("model", "version", "kind", "sha256", "size", "added", "selected", "sound")
    ]
    assert rows[1].split()[:3] == ["ex", "1", "driving"]
    assert rows[1].split()[-2:] == ["driving", "yes"]
    assert rows[2].split()[-3:] == ["driving", "before", "yes"]
    assert models("select", "ex@2", "--role", "fallback", *place) == 0
    assert printed(capsys, "verify", "--run", *place)["problems"] == {"ex@1": None, "ex@2": None}


@pytest.mark.opencl
def test_damage_is_one_line_for_each_model(
    artifacts: tuple[Path, Path], place: list[str], tmp_path: Path, capsys: Capture
) -> None:
    for version, artifact in enumerate(artifacts, 1):
        assert models("add", artifact, "--name", "ex", "--version", version, *place) == 0
        with (tmp_path / f"store/ex@{version}/artifact.pkl").open("r+b") as file:
            file.write(b"\0")
    for action in ("list", "verify"):
        capsys.readouterr()
        assert models(action, *place) == 4
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 2
        assert all("expected sha256" in one for one in lines)
    assert models("select", "ex@1", *place) == 4
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "ex@1/artifact.pkl: expected sha256" in errors


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.parametrize("service", ["deviceState", "modelV2"])
def test_nothing_is_switched_while_the_car_drives(
    artifacts: tuple[Path, Path], place: list[str], tmp_path: Path, capsys: Capture, service: str
) -> None:
    for version, artifact in enumerate(artifacts, 1):
        assert models("add", artifact, "--name", "ex", "--version", version, *place) == 0
        assert models("select", f"ex@{version}", *place) == 0
    fields = {"started": True} if service == "deviceState" else {}
    with on_the_bus(tmp_path / "bus", service, **fields):
        for action in (["select", "ex@1"], ["rollback"]):
            capsys.readouterr()
            assert models(*action, *place) == 4
            refusal = capsys.readouterr().err
            assert "expected a parked car, but" in refusal
            assert service in refusal
            assert refusal.count("\n") == 1
        assert models("rollback", "--force", *place) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("driving: ex@1 (before: ex@2)")
    assert "although" in captured.err


@needs_root
def test_who_may_not_listen_cannot_tell(open_directory: Path) -> None:
    script = """
transport = ZmqTransport("ipc://" + arguments[0])
print("ready", flush=True)
sys.stdin.readline()
print(why_not_parked(transport, 0.1), flush=True)
"""
    with process_of(
        script,
        open_directory,
        user=STRANGER,
        group=OWN_GROUP,
        imports="from modeld.parked import why_not_parked",
    ) as child:
        assert line(child) == "ready"
        with on_the_bus(open_directory, "deviceState", started=True):
            tell(child)
            said = [line(child), line(child)]
    assert "nobody can tell, as deviceState may not be received" in said[1]


def test_a_bus_that_nobody_made_is_that_of_a_parked_car(
    place: list[str], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "bus").rmdir()
    (tmp_path / "store").mkdir()
    assert models("rollback", *place) == 4
    assert "expected a model before the selected one of driving" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 2, "the following arguments are required: ACTION"),
        (["remove"], 2, "invalid choice: 'remove'"),
        (["list"], 4, "expected a store of models, found none; modeld models add makes it"),
        (["select", "ex"], 4, "expected a store of models, found none"),
        (["select", "../ex"], 4, "name: expected 1 to 64"),
        (["select", "ex", "--role", "x"], 2, "invalid choice: 'x'"),
        (["add", "no.pkl", "--name", "X", "--version", "/"], 4, "found 'X'; version: expected"),
        (["add", "no.pkl", "--name", "x", "--version", "1"], 4, "no.pkl: cannot be read: No such"),
    ],
)
def test_what_cannot_be_is_one_line(
    tmp_path: Path, capsys: Capture, arguments: list[str], code: int, text: str
) -> None:
    where = ["--store", str(tmp_path / "store")] if arguments else []
    assert models(*arguments, *where) == code
    errors = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("usage")]
    error = next(one for one in errors if one.startswith("modeld: error: "))
    assert text in error
