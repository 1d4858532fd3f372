"""The store of models: what it refuses, and that it is whole whatever interrupts a command."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import ModelInterfaceError, StoreError
from modeld.model_store import ModelStore, candidates
from modeld.store_manifest import ModelId, StoreManifest, parse_manifest
from modeld.store_selection import Selected
from runtime.artifact import read_artifact
from tests.runtime import tiny
from tests.tools.small_monitoring import write_small_monitoring
from tests.tools.tiny_driving import write_tiny_driving

ROOT = Path(__file__).parents[2]
A, B, M = ModelId("a", "1"), ModelId("b", "1"), ModelId("m", "1")
NOW_S = 1_795_392_000.0  # 2026-11-23T00:00:00Z


def nothing(_path: Path) -> None:
    """Stand for the self-test of artifacts that are known to run."""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("artifacts")
    return {
        "a": write_tiny_driving(place / "a.pkl", (64, 32)),
        "b": write_tiny_driving(place / "b.pkl", (64, 32), bad_frame=1000),
        "m": write_small_monitoring(place / "m.pkl"),
        "plain": tiny.write(place / "plain.pkl"),
    }


@pytest.fixture
def store(tmp_path: Path, artifacts: dict[str, Path]) -> ModelStore:
    """A store of a and b, of which b is selected and a was before."""
    made = ModelStore(tmp_path / "store", lock_wait_s=0.1)
    for model in (A, B, M):
        made.add(artifacts[model.name], model, now_s=NOW_S, self_test=nothing)
    made.select(A, "driving", self_test=nothing)
    made.select(B, "driving", self_test=nothing)
    return made


def damage(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def names(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.directory.iterdir())


# --- what is added ----------------------------------------------------------------------------


def test_what_is_added_is_the_artifact_and_a_manifest(
    store: ModelStore, artifacts: dict[str, Path]
) -> None:
    place = store.directory / "a@1"
    assert sorted(path.name for path in place.iterdir()) == ["artifact.pkl", "manifest.json"]
    assert (place / "artifact.pkl").read_bytes() == artifacts["a"].read_bytes()
    manifest = store.manifest(A)
    assert manifest == StoreManifest(
        name="a",
        version="1",
        kind="driving",
        sha256=manifest.sha256,
        size=artifacts["a"].stat().st_size,
        minimum_abi=1,
        interface="split-2025",
        added="2026-11-23T00:00:00Z",
    )
    digest = hashlib.sha256(artifacts["a"].read_bytes()).hexdigest()
    assert manifest.sha256 == digest
    assert json.loads(manifest.signed_bytes()).keys() >= {"name", "version", "sha256", "kind"}
    assert store.manifest(M).kind == "monitoring"
    assert [entry.problem for entry in store.entries()] == ["", "", ""]


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_modes_of_a_store_do_not_depend_on_the_umask(
    tmp_path: Path, artifacts: dict[str, Path], umask: int
) -> None:
    before = os.umask(umask)
    try:
        store = ModelStore(tmp_path / "var" / "lib" / "models")
        store.add(artifacts["a"], A, now_s=NOW_S, self_test=nothing)
        store.select(A, "driving", self_test=nothing)
    finally:
        os.umask(before)
    for path in [
        tmp_path / "var",
        tmp_path / "var" / "lib",
        store.directory,
        store.path_of(A).parent,
    ]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o755, path
    for path in (store.path_of(A), store.path_of(A).with_name("manifest.json")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert stat.S_IMODE((store.directory / "selection.json").stat().st_mode) == 0o644


def test_the_copy_is_tested_before_it_counts(tmp_path: Path, artifacts: dict[str, Path]) -> None:
    store = ModelStore(tmp_path / "store")
    seen: list[Path] = []

    def fail(path: Path) -> None:
        seen.append(path)
        read_artifact(path)
        raise ModelInterfaceError("the self-test failed")

    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        store.add(artifacts["a"], A, now_s=NOW_S, self_test=fail)
    assert seen[0].is_relative_to(store.directory)
    assert names(store) == [".lock"]


def test_adding_the_same_again_changes_nothing_and_another_is_refused(
    store: ModelStore, artifacts: dict[str, Path]
) -> None:
    again = store.add(artifacts["a"], A, now_s=NOW_S + 60, self_test=nothing)
    assert again == store.manifest(A)
    assert again.added == "2026-11-23T00:00:00Z"
    with pytest.raises(StoreError, match=r"found another one .* choose another version"):
        store.add(artifacts["b"], A, now_s=NOW_S, self_test=nothing)
    assert names(store) == [".lock", "a@1", "b@1", "m@1", "selection.json"]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda _path: None, "no.pkl: cannot be read: No such file"),
        (lambda path: path.write_bytes(b""), "no.pkl: the file is empty"),
        (lambda path: path.write_bytes(b"junk" * 100), "no.pkl: not a modeld artifact"),
        (lambda path: path.mkdir(), "no.pkl: cannot be read: Is a directory"),
    ],
)
def test_what_is_no_artifact_is_refused(
    tmp_path: Path, make: Callable[[Path], object], text: str
) -> None:
    store = ModelStore(tmp_path / "store")
    make(tmp_path / "no.pkl")
    with pytest.raises(StoreError, match=text) as caught:
        store.add(tmp_path / "no.pkl", A, now_s=NOW_S, self_test=nothing)
    assert "\n" not in str(caught.value)
    assert names(store) == [".lock"]


def test_a_damaged_artifact_and_one_of_another_kind_are_refused(
    tmp_path: Path, store: ModelStore, artifacts: dict[str, Path]
) -> None:
    flipped = tmp_path / "flipped.pkl"
    flipped.write_bytes(flip_last(artifacts["a"].read_bytes()))
    with pytest.raises(StoreError, match=r"flipped\.pkl: the data does not match its sha256"):
        store.add(flipped, ModelId("c", "1"), now_s=NOW_S, self_test=nothing)
    with pytest.raises(StoreError, match=r"plain\.pkl: kind: expected driving or monitoring"):
        store.add(artifacts["plain"], ModelId("c", "1"), now_s=NOW_S, self_test=nothing)


@pytest.mark.parametrize(
    "word", ["", ".", "..", "../x", "a/b", "A", "a b", "-a", ".a", "a\n", "a@b", "é", "a" * 65]
)
def test_names_that_could_leave_the_store_are_refused(word: str) -> None:
    with pytest.raises(StoreError, match=r"name: expected 1 to 64 .*; version: expected 1 to 64"):
        ModelId.checked(word, word)
    with pytest.raises(StoreError):
        ModelId.of(f"a@{word}")


# --- what is read -----------------------------------------------------------------------------


def changed(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps({**json.loads(data), **changes}).encode()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed(hook="rm"), "unknown hook"),
        (lambda data: data.replace(b'"kind"', b'"kin"'), "unknown kin; missing kind"),
        (changed(format=2), "format: expected 1, found 2"),
        (changed(size="12"), "size: expected int, found '12'"),
        (changed(size=True), "size: expected int, found True"),
        (changed(size=-1, kind="plain", sha256="0"), "kind: .*; sha256: .*; size: expected 1"),
        (changed(name="b"), "expected a@1, found b@1"),
        (changed(name="../a"), "name: expected 1 to 64"),
        (changed(added="yesterday"), "added: expected a time"),
        (changed(signature="abc"), "checks no signatures"),
        (changed(minimum_abi=2), "expected a minimum ABI of at most 1, found 2; update modeld"),
        (changed(sha256="0" * 64), "expected sha256 000000000000, found"),
        (lambda _data: b"[" * 60_000, "expected a JSON object"),
        (lambda _data: b"[]", "expected a JSON object"),
        (lambda _data: b'{"format": 1, "format": 1}', "a key that stands twice"),
        (lambda _data: b"\xff\xfe", "expected a JSON object"),
        (lambda data: data + b" " * 70_000, "expected at most 65536 bytes"),
        (lambda data: data[:-5], "expected a JSON object"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(
    store: ModelStore, change: Callable[[bytes], bytes], text: str
) -> None:
    damage(store.directory / "a@1" / "manifest.json", change)
    with pytest.raises(StoreError, match=text) as caught:
        store.verify(A)
    assert "\n" not in str(caught.value)
    assert str(store.directory) in str(caught.value)


def test_a_manifest_reads_back_what_was_written(store: ModelStore) -> None:
    manifest = store.manifest(A)
    assert parse_manifest(manifest.file_bytes()) == manifest
    assert b"signature" not in manifest.signed_bytes()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (flip_last, "the file was changed or is damaged"),
        (lambda data: data[:-1], "expected .* bytes, found"),
        (lambda data: data + b"\0", "expected .* bytes, found"),
    ],
)
def test_an_artifact_that_was_changed_is_found(
    store: ModelStore, change: Callable[[bytes], bytes], text: str
) -> None:
    damage(store.path_of(A), change)
    with pytest.raises(StoreError, match=text):
        store.verify(A)
    assert [bool(entry.problem) for entry in store.entries()] == [True, False, False]
    with pytest.raises(StoreError, match=text):
        store.select(A, "driving", self_test=nothing)
    with pytest.raises(StoreError, match=text):
        store.rollback("driving", self_test=nothing)
    assert store.selection()["driving"] == Selected(B, A)


def test_what_else_lies_in_a_store_is_named(store: ModelStore) -> None:
    (store.directory / "notes.txt").write_text("x", encoding="utf-8")
    (store.directory / "c@1").mkdir()
    (store.directory / "d@1").symlink_to(store.directory / "a@1")
    problems = {e.directory.name: e.problem for e in store.entries() if e.problem}
    assert sorted(problems) == ["c@1", "d@1", "notes.txt"]
    assert "remove it, it is no model of this store" in problems["notes.txt"]
    assert "c@1/manifest.json: expected it, got No such file" in problems["c@1"]
    assert "expected no symbolic link" in problems["d@1"]


@pytest.mark.parametrize("mode", [0o775, 0o757])
@pytest.mark.parametrize("place", ["", "b@1", "b@1/artifact.pkl", "b@1/manifest.json"])
def test_what_others_may_write_is_refused(store: ModelStore, mode: int, place: str) -> None:
    (store.directory / place).chmod(mode)
    with pytest.raises(StoreError, match=rf"writable by its owner only, found mode 0{mode:o}"):
        store.select(B, "driving", self_test=nothing)
    if not place:
        with pytest.raises(StoreError, match="chmod go-w"):
            candidates(store.directory, "driving")


def test_a_missing_store_and_a_missing_model_say_what_to_do(
    tmp_path: Path, store: ModelStore
) -> None:
    with pytest.raises(StoreError, match="found none; modeld models add makes it"):
        ModelStore(tmp_path / "no").entries()
    assert not (tmp_path / "no").exists()
    with pytest.raises(StoreError, match="no such model; see modeld models list"):
        store.select(ModelId("x", "1"), "driving", self_test=nothing)


def test_a_name_alone_means_its_one_version(store: ModelStore, artifacts: dict[str, Path]) -> None:
    assert store.find("a") == store.find("a@1") == A
    store.add(artifacts["b"], ModelId("a", "2"), now_s=NOW_S, self_test=nothing)
    with pytest.raises(StoreError, match="expected one version of 'a', found several: a@1, a@2"):
        store.find("a")
    with pytest.raises(StoreError, match="expected one version of 'x', found none"):
        store.find("x")
    with pytest.raises(StoreError, match="name: expected"):
        store.find("[a]*")


# --- what is selected -------------------------------------------------------------------------


def test_selecting_keeps_what_was_before_and_rolling_back_swaps(store: ModelStore) -> None:
    assert store.selection() == {"driving": Selected(B, A)}
    assert store.rollback("driving", self_test=nothing) == Selected(A, B)
    assert store.rollback("driving", self_test=nothing) == Selected(B, A)
    # Selecting what is selected must not make it its own predecessor.
    assert store.select(B, "driving", self_test=nothing) == Selected(B, A)
    assert candidates(store.directory, "driving")[0][0] == store.path_of(B)
    assert candidates(store.directory, "driving") == ([store.path_of(B), store.path_of(A)], [])


def test_each_role_has_its_own(store: ModelStore) -> None:
    store.select(M, "monitoring", self_test=nothing)
    store.select(A, "fallback", self_test=nothing)
    assert store.selection() == {
        "driving": Selected(B, A),
        "fallback": Selected(A),
        "monitoring": Selected(M),
    }
    assert candidates(store.directory, "monitoring") == ([store.path_of(M)], [])
    with pytest.raises(StoreError, match="expected a model of kind monitoring for monitoring"):
        store.select(A, "monitoring", self_test=nothing)
    with pytest.raises(StoreError, match="kind driving for fallback, found monitoring"):
        store.select(M, "fallback", self_test=nothing)
    with pytest.raises(StoreError, match="role: expected one of driving, fallback, monitoring"):
        store.select(A, "cooking", self_test=nothing)
    with pytest.raises(StoreError, match="expected a model before the selected one of fallback"):
        store.rollback("fallback", self_test=nothing)


def test_a_model_that_fails_its_self_test_is_not_selected(store: ModelStore) -> None:
    def fail(path: Path) -> None:
        raise ModelInterfaceError(f"{path}: the self-test failed")

    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        store.select(A, "driving", self_test=fail)
    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        store.rollback("driving", self_test=fail)
    assert store.selection()["driving"] == Selected(B, A)


def test_a_damaged_selected_model_gives_way_to_the_one_before(
    store: ModelStore, caplog: pytest.LogCaptureFixture
) -> None:
    damage(store.path_of(B), flip_last)
    found, problems = candidates(store.directory, "driving")
    assert found == [store.path_of(A)]
    assert len(problems) == 1
    assert "b@1/artifact.pkl: expected sha256" in caplog.text
    damage(store.path_of(A), flip_last)
    with pytest.raises(
        StoreError, match=r"b@1.*; .*a@1.*add it again, or choose another"
    ) as caught:
        candidates(store.directory, "driving")
    assert "\n" not in str(caught.value)


def test_what_a_daemon_loads_is_checked_to_its_last_byte(store: ModelStore) -> None:
    store.check(store.path_of(A), "driving")
    with pytest.raises(StoreError, match="expected a model of kind driving for fallback"):
        store.check(store.path_of(M), "fallback")
    for path in (
        store.path_of(A).with_name("x.pkl"),
        store.directory / "x" / str(A) / "artifact.pkl",
    ):
        with pytest.raises(StoreError, match="remove it"):
            store.check(path, "driving")
    with pytest.raises(StoreError, match="it is no model of this store"):
        store.check(store.directory / ".." / "artifact.pkl", "driving")
    damage(store.path_of(A), flip_last)
    with pytest.raises(StoreError, match="expected sha256"):
        store.check(store.path_of(A), "driving")


def test_nothing_selected_says_what_to_do(store: ModelStore) -> None:
    with pytest.raises(
        StoreError, match="expected a model selected for monitoring, found none; choose one with"
    ):
        candidates(store.directory, "monitoring")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "expected a JSON object"),
        (b'{"cooking": {"current": "a@1", "previous": ""}}', "role: expected one of"),
        (b'{"driving": {"current": "a@1"}}', "expected current and previous"),
        (b'{"driving": {"current": "../a@1", "previous": ""}}', "name: expected 1 to 64"),
        (b'{"driving": {"current": 3, "previous": ""}}', "expected texts"),
        (b'{"driving": "a@1"}', "expected current and previous"),
        (b" " * 10_000, "expected a JSON object"),
    ],
)
def test_a_damaged_selection_is_refused(store: ModelStore, content: bytes, text: str) -> None:
    (store.directory / "selection.json").write_bytes(content)
    with pytest.raises(StoreError, match=rf"selection\.json: .*{text}.*select the models again"):
        candidates(store.directory, "driving")


# --- two commands, and commands that do not end -----------------------------------------------


def test_of_two_commands_one_waits_for_the_other(
    store: ModelStore, artifacts: dict[str, Path]
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(_path: Path) -> None:
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(
        target=lambda: store.add(artifacts["a"], ModelId("c", "1"), now_s=NOW_S, self_test=wait)
    )
    thread.start()
    assert inside.wait(60)
    with pytest.raises(StoreError, match="another command holds it; try again"):
        store.select(A, "driving", self_test=nothing)
    # Readers need no lock, and see nothing that is not whole.
    assert [entry.directory.name for entry in store.entries()] == ["a@1", "b@1", "m@1"]
    patient = ModelStore(store.directory, lock_wait_s=60)
    second = threading.Thread(target=lambda: patient.select(A, "driving", self_test=nothing))
    second.start()
    go_on.set()
    thread.join(60)
    second.join(60)
    assert store.selection()["driving"] == Selected(A, B)
    assert "c@1" in names(store)


@pytest.mark.parametrize("how", ["kill", "fail"])
@pytest.mark.parametrize("action", ["add", "select", "rollback"])
def test_a_command_that_is_interrupted_anywhere_leaves_the_old_or_the_new(
    store: ModelStore, artifacts: dict[str, Path], action: str, how: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.modeld.interrupted_store",
         store.directory, artifacts["a"], action, how],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    *stopped, last = steps
    old = {"models": ["a@1", "b@1", "m@1"], "selected": ["b@1", "a@1"]}
    new = {**old, **({"models": ["a@1", "b@1", "c@1", "m@1"]} if action == "add" else {})}
    if action != "add":
        new["selected"] = ["a@1", "b@1"]
    assert len(stopped) >= 6, "the action has fewer steps than its files"
    for found in stopped:
        assert found["code"] in ((-signal.SIGKILL,) if how == "kill" else (0, 4)), found
        assert {key: found[key] for key in old} in (old, new), found
        assert not found["problems"], found
        assert found["later"]["hidden"] == [".lock"], found
        assert found["later"]["selected"][0] == "b@1"
        if how == "fail":
            assert found["hidden"] == [".lock"], found
    assert {key: last[key] for key in new} == new
    # Both were met: what is stopped early is undone, what is stopped late is done.
    assert {key: stopped[0][key] for key in old} == old
    assert {key: stopped[-1][key] for key in old} == new


def test_a_full_disk_leaves_nothing(store: ModelStore, artifacts: dict[str, Path]) -> None:
    script = """
import resource, sys
from pathlib import Path
from modeld.errors import StoreError
from modeld.model_store import ModelStore
from modeld.store_manifest import ModelId
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    store, model = ModelStore(Path(sys.argv[1])), ModelId("c", "1")
    store.add(Path(sys.argv[2]), model, now_s=0, self_test=print)
except StoreError as error:
    print(error)
"""
    said = subprocess.check_output(
        [sys.executable, "-c", script, store.directory, artifacts["a"]], cwd=ROOT, text=True
    )
    assert "cannot be changed: File too large; correct that, and see modeld models list" in said
    assert said.count("\n") == 1
    assert names(store) == [".lock", "a@1", "b@1", "m@1", "selection.json"]


def test_a_store_that_cannot_be_looked_at_is_no_defect(tmp_path: Path) -> None:
    # As of a closed directory, which is none for root: the system refuses the name.
    with pytest.raises(StoreError, match=r"expected a store of models, got File name too long; "):
        candidates(tmp_path / ("x" * 300), "driving")
