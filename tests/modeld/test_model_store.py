"""The store of models: what it refuses, and that it is whole whatever interrupts a command."""

import fcntl
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import ModelInterfaceError, StoreError
from modeld.store.model_store import ModelStore, remove, version_at
from modeld.store.records import ModelId, Selected, StoreManifest, parse_manifest
from runtime.format.artifact import read_artifact
from tests.cereal.shared import largest_file
from tests.modeld.bench import small_artifacts

ROOT = Path(__file__).parents[2]
A, B, C, M = (ModelId(name, "1") for name in "abcm")
NOW_S = 1_795_392_000.0  # 2026-11-23T00:00:00Z
Change = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def artifacts() -> Path:
    return small_artifacts()


class Store(ModelStore):
    """A store whose artifacts are known to run: nothing is tested unless a test wants it."""

    def put(self, artifact: Path, model: ModelId, self_test: Any = None) -> StoreManifest:
        return self.add(artifact, model, now_s=NOW_S, self_test=self_test or (lambda _path: None))

    def choose(self, model: ModelId, role: str = "driving", self_test: Any = None) -> Selected:
        return self.select(model, role, self_test=self_test or (lambda _path: None))

    def back(self, role: str = "driving", self_test: Any = None) -> Selected:
        return self.rollback(role, self_test=self_test or (lambda _path: None))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    def damage(self, change: Change, model: ModelId = A, name: str = "artifact.pkl") -> None:
        path = self.path_of(model).with_name(name)
        path.write_bytes(change(path.read_bytes()))


@pytest.fixture
def empty(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path, artifacts: Path) -> Store:
    """A store of a and b, of which b is selected and a was before."""
    made = Store(tmp_path / "store", lock_wait_s=0.1)
    for model in (A, B, M):
        made.put(artifacts / f"{model.name}.pkl", model)
    made.choose(A)
    made.choose(B)
    return made


def refuse(_path: Path) -> None:
    raise ModelInterfaceError("the self-test failed")


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


WHOLE = [".lock", "a@1", "b@1", "m@1", "selection.json"]


def test_what_is_added_is_the_artifact_and_a_manifest(store: Store, artifacts: Path) -> None:
    place, content = store.directory / "a@1", (artifacts / "a.pkl").read_bytes()
    assert sorted(path.name for path in place.iterdir()) == ["artifact.pkl", "manifest.json"]
    assert (place / "artifact.pkl").read_bytes() == content
    manifest = store.manifest(A)
    assert manifest == StoreManifest(
        name="a",
        version="1",
        kind="driving",
        file_sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        minimum_abi=1,
        interface="split-2025",
        added="2026-11-23T00:00:00Z",
    )
    assert json.loads(manifest.signed_bytes()).keys() >= {"name", "version", "sha256", "kind"}
    assert b"signature" not in manifest.signed_bytes()
    assert parse_manifest(manifest.file_bytes()) == manifest
    assert store.manifest(M).kind == "monitoring"
    assert [entry.problem for entry in store.entries()] == ["", "", ""]


@pytest.mark.parametrize("umask", [0o077, 0o000])
def test_modes_of_a_store_do_not_depend_on_the_umask(
    tmp_path: Path, artifacts: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "var" / "lib" / "models")
        store.put(artifacts / "a.pkl", A)
        store.choose(A)
    finally:
        os.umask(before)
    places = [tmp_path / "var", *(tmp_path / "var").rglob("*")]
    assert len(places) == 8
    for place in places:
        mode = stat.S_IMODE(place.stat().st_mode)
        assert place.name == ".lock" or mode == (0o755 if place.is_dir() else 0o644), place


def test_the_copy_is_tested_before_it_counts(empty: Store, artifacts: Path) -> None:
    seen: list[Path] = []

    def fail(path: Path) -> None:
        seen.append(path)
        read_artifact(path)
        refuse(path)

    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        empty.put(artifacts / "a.pkl", A, fail)
    assert seen[0].is_relative_to(empty.directory)
    assert not empty.directory.exists()


def test_adding_the_same_again_changes_nothing_and_another_is_refused(
    store: Store, artifacts: Path
) -> None:
    later = NOW_S + 60
    again = store.add(artifacts / "a.pkl", A, now_s=later, self_test=lambda _path: None)
    assert again == store.manifest(A)
    assert again.added == "2026-11-23T00:00:00Z"
    with pytest.raises(StoreError, match=r"found another one .* choose another version"):
        store.put(artifacts / "b.pkl", A)
    assert store.names() == WHOLE


def test_entries_have_the_digests_of_the_artifacts(store: Store, artifacts: Path) -> None:
    artifact = read_artifact(artifacts / "a.pkl")
    entry = store.entries()[0]
    assert (entry.sha256, entry.program_sha256) == (artifact.sha256, artifact.program_sha256)
    assert entry.sha256 != store.manifest(A).file_sha256


def test_what_is_removed_is_neither_selected_nor_gone_back_to(store: Store) -> None:
    with pytest.raises(StoreError, match=r"b@1: expected a model that is not selected, .* driving"):
        remove(store, B, force=True)
    with pytest.raises(StoreError, match=r"a@1: .* but it is for driving; --force"):
        remove(store, A)
    assert store.names() == WHOLE
    remove(store, M)
    assert store.names() == [name for name in WHOLE if name != "m@1"]
    remove(store, A, force=True)
    assert store.names() == [".lock", "b@1", "selection.json"]
    assert store.selection() == {"driving": Selected(B)}
    with pytest.raises(StoreError, match="a@1: no such model"):
        remove(store, A)


def test_a_damaged_version_is_removed_and_a_path_names_its_version(store: Store) -> None:
    store.damage(lambda _data: b"{}", M, "manifest.json")
    assert version_at(store, store.path_of(M)) == M
    assert version_at(store, store.path_of(M).with_name("other.pkl")) is None
    assert version_at(store, store.directory.parent / "m@1" / "artifact.pkl") is None
    remove(store, M)
    assert version_at(store, store.path_of(M)) == M
    assert "m@1" not in store.names()


# How the file is made, of a sound one and of one that is neither driving nor monitoring.
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path, _: path, "no.pkl: cannot be read: No such file"),
        (lambda path, _: path.touch(), "no.pkl: the file is empty"),
        (lambda path, _: path.write_bytes(b"junk" * 100), "no.pkl: not a modeld artifact"),
        (
            lambda path, _: path.mkdir(),
            "no.pkl: cannot be read: expected an ordinary file, found a directory",
        ),
        (
            lambda path, sound: path.write_bytes(flip_last(sound.read_bytes())),
            r"no\.pkl: the data does not match its sha256",
        ),
        (
            lambda path, sound: shutil.copy(sound.with_name("plain.pkl"), path),
            r"no\.pkl: kind: expected driving or monitoring",
        ),
    ],
    ids=["missing", "empty", "junk", "directory", "flipped", "plain"],
)
def test_what_is_no_artifact_of_ours_is_refused(
    empty: Store, tmp_path: Path, artifacts: Path, make: Callable[[Path, Path], object], text: str
) -> None:
    path = tmp_path / "no.pkl"
    make(path, artifacts / "a.pkl")
    with pytest.raises(StoreError, match=text) as caught:
        empty.put(path, A)
    assert "\n" not in str(caught.value)
    # Nor is a store left that nothing is in; one that was there before stays.
    assert not empty.directory.exists()
    empty.directory.mkdir()
    with pytest.raises(StoreError, match=text):
        empty.put(path, A)
    assert empty.names() == [".lock"]


def test_who_waited_for_a_store_that_is_gone_is_told_to_try_again(
    tmp_path: Path, artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "above" / "store")
    with pytest.raises(ModelInterfaceError):
        store.put(artifacts / "a.pkl", A, refuse)
    # Directories above that it made go, too.
    assert not store.directory.parent.exists()
    lock = store.directory / ".lock"
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _how: lock.unlink())
    with pytest.raises(StoreError, match="removed by another command that failed; try again"):
        store.put(artifacts / "a.pkl", A)


@pytest.mark.parametrize(
    "word", ["", ".", "..", "../x", "a/b", "A", "a b", "-a", ".a", "a\n", "a@b", "é", "a" * 65]
)
def test_names_that_could_leave_the_store_are_refused(word: str) -> None:
    with pytest.raises(StoreError, match=r"name: expected 1 to 64 .*; version: expected 1 to 64"):
        ModelId.checked(word, word)
    with pytest.raises(StoreError):
        ModelId.of(f"a@{word}")
    assert str(ModelId.checked("a" * 64, "1.0-b_2")) == "a" * 64 + "@1.0-b_2"


def changed(**changes: Any) -> Change:
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
        (changed(sha256="0" * 64), "expected file sha256 000000000000, found"),
        (lambda _data: b"[" * 60_000, "expected a JSON object"),
        (lambda _data: b"[]", "expected a JSON object"),
        (lambda _data: b'{"format": 1, "format": 1}', "a duplicate key"),
        (lambda _data: b"\xff\xfe", "expected a JSON object"),
        (lambda data: data + b" " * 70_000, "expected at most 65536 bytes"),
        (lambda data: data[:-5], "expected a JSON object"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(store: Store, change: Change, text: str) -> None:
    store.damage(change, A, "manifest.json")
    with pytest.raises(StoreError, match=text) as caught:
        store.verify(A)
    assert "\n" not in str(caught.value)
    assert str(store.directory) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (flip_last, "the file was changed or is damaged"),
        (lambda data: data[:-1], "expected .* bytes, found"),
        (lambda data: data + b"\0", "expected .* bytes, found"),
    ],
)
def test_an_artifact_that_was_changed_is_found(store: Store, change: Change, text: str) -> None:
    store.damage(change)
    for use in (store.verify, store.choose, lambda _model: store.back()):
        with pytest.raises(StoreError, match=text):
            use(A)
    assert [bool(entry.problem) for entry in store.entries()] == [True, False, False]
    assert store.selection()["driving"] == Selected(B, A)


def test_what_else_lies_in_a_store_is_named(store: Store) -> None:
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
def test_what_others_may_write_is_refused(store: Store, mode: int, place: str) -> None:
    (store.directory / place).chmod(mode)
    with pytest.raises(StoreError, match=rf"writable by its owner only, found mode 0{mode:o}"):
        store.choose(B)
    if not place:
        with pytest.raises(StoreError, match="chmod go-w"):
            store.candidates("driving")


def test_a_missing_store_and_a_missing_model_say_what_to_do(tmp_path: Path, store: Store) -> None:
    with pytest.raises(StoreError, match="found none; modeld models add makes it"):
        ModelStore(tmp_path / "no").entries()
    assert not (tmp_path / "no").exists()
    with pytest.raises(StoreError, match="no such model; see modeld models list"):
        store.choose(ModelId("x", "1"))
    # As of a closed directory, which is none for root: the system refuses the name.
    with pytest.raises(StoreError, match=r"expected a store of models, got File name too long; "):
        ModelStore(tmp_path / ("x" * 300)).candidates("driving")


def test_a_name_alone_means_its_one_version(store: Store, artifacts: Path) -> None:
    assert store.find("a") == store.find("a@1") == A
    store.put(artifacts / "b.pkl", ModelId("a", "2"))
    for name, text in {
        "a": "expected one version of 'a', found several: a@1, a@2",
        "x": "expected one version of 'x', found none",
        "[a]*": "name: expected",
    }.items():
        with pytest.raises(StoreError, match=text):
            store.find(name)


def test_selecting_keeps_what_was_before_and_rolling_back_swaps(store: Store) -> None:
    assert store.selection() == {"driving": Selected(B, A)}
    assert store.back() == Selected(A, B)
    assert store.back() == Selected(B, A)
    # Selecting what is selected must not make it its own predecessor.
    assert store.choose(B) == Selected(B, A)
    assert store.candidates("driving") == ([store.path_of(B), store.path_of(A)], [])


def test_each_role_has_its_own(store: Store) -> None:
    said = "expected a model selected for monitoring, found none; choose one with"
    with pytest.raises(StoreError, match=said):
        store.candidates("monitoring")
    store.choose(M, "monitoring")
    store.choose(A, "fallback")
    assert store.selection() == {
        "driving": Selected(B, A),
        "fallback": Selected(A),
        "monitoring": Selected(M),
    }
    assert store.candidates("monitoring") == ([store.path_of(M)], [])
    for model, role, text in (
        (A, "monitoring", "expected a model of kind monitoring for monitoring"),
        (M, "fallback", "kind driving for fallback, found monitoring"),
        (A, "cooking", "role: expected one of driving, fallback, monitoring"),
    ):
        with pytest.raises(StoreError, match=text):
            store.choose(model, role)
    with pytest.raises(StoreError, match="expected a previously selected model for fallback"):
        store.back("fallback")


def test_a_model_that_fails_its_self_test_is_not_selected(store: Store) -> None:
    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        store.choose(A, "driving", refuse)
    with pytest.raises(ModelInterfaceError, match="the self-test failed"):
        store.back("driving", refuse)
    assert store.selection()["driving"] == Selected(B, A)


def test_what_a_daemon_loads_is_checked_to_its_last_byte(store: Store) -> None:
    store.check(store.path_of(A), "driving")
    elsewhere = store.directory / "x" / str(A) / "artifact.pkl"
    for path, role, text in (
        (store.path_of(M), "fallback", "expected a model of kind driving for fallback"),
        (store.path_of(A).with_name("x.pkl"), "driving", "remove it"),
        (elsewhere, "driving", "remove it"),
        (store.directory / ".." / "artifact.pkl", "driving", "it is no model of this store"),
    ):
        with pytest.raises(StoreError, match=text):
            store.check(path, role)
    store.damage(flip_last)
    with pytest.raises(StoreError, match="expected file sha256"):
        store.check(store.path_of(A), "driving")


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
def test_a_damaged_selection_is_refused(store: Store, content: bytes, text: str) -> None:
    (store.directory / "selection.json").write_bytes(content)
    with pytest.raises(StoreError, match=rf"selection\.json: .*{text}.*select the models again"):
        store.candidates("driving")


def test_a_full_disk_leaves_nothing(store: Store, artifacts: Path) -> None:
    said = r"cannot be changed: File too large; correct that, and see modeld models list for"
    with largest_file(4096), pytest.raises(StoreError, match=said) as caught:
        store.put(artifacts / "a.pkl", C)
    assert "\n" not in str(caught.value)
    assert store.names() == WHOLE
