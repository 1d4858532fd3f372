"""A store of models: a directory for each model version, and the selection.

A new version is made next to its place and renamed, so that a killed command leaves nothing that
counts. One small file has the present and the previous selection (docs/formats/model-store.md, ADR
0091).
"""

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from modeld.errors import ModeldError, NothingSelectedError, StoreError
from modeld.store import files
from modeld.store.records import (
    MAX_MANIFEST_BYTES,
    ROLES,
    SELECTION,
    Entry,
    ModelId,
    Selected,
    StoreManifest,
    checked_copy,
    checked_role,
    parse_manifest,
    read_selection,
    word_problems,
    write_selection,
)
from runtime.errors import RuntimeFault
from runtime.format.artifact import Artifact, read_artifact
from runtime.format.manifest import ABI

logger = logging.getLogger(__name__)

DEFAULT_STORE: Final = Path("/var/lib/modeld/models")
ARTIFACT: Final = "artifact.pkl"
MANIFEST: Final = "manifest.json"
_UNFINISHED: Final = re.compile(r"\.adding-.*|\..*\.new")
# A self-test and a copy of a large model take seconds.
LOCK_WAIT_S: Final = 30.0

# Runs an artifact on the device; raises ModeldError or RuntimeFault.
SelfTest = Callable[[Path], None]


class ModelStore:
    """The models of one directory, which `add` makes.

    A command waits for another one `lock_wait_s`.
    """

    def __init__(self, directory: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self.directory = directory
        self._lock_wait_s = lock_wait_s

    def path_of(self, model: ModelId) -> Path:
        """Return the path of a model version's artifact."""
        return self.directory / str(model) / ARTIFACT

    # --- reading ------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return the entries by name, each checked to its last byte; StoreError without a store."""
        self._check_store()
        found = []
        for path in sorted(self.directory.iterdir()):
            if path.name.startswith(".") or path.name == SELECTION:
                continue
            manifest = None
            try:
                manifest = self.manifest(_id_of(path))
                artifact = self._read(manifest)
            except ModeldError as error:
                found.append(Entry(path, manifest, str(error)))
                continue
            digests = (artifact.sha256, artifact.program_sha256)
            found.append(Entry(path, manifest, "", *digests, artifact.manifest.lineage))
        return found

    def manifest(self, model: ModelId) -> StoreManifest:
        """Return the facts of a model version; its artifact is not looked at.

        Raises StoreError if it is missing, or its manifest is damaged or another's.
        """
        place = self.directory / str(model)
        if not place.is_dir():
            raise StoreError(f"{place}: no such model; see modeld models list")
        for path in (place, place / MANIFEST):
            files.check_mode(path)
        try:
            manifest = parse_manifest(files.read_bounded(place / MANIFEST, MAX_MANIFEST_BYTES))
        except StoreError as error:
            raise StoreError(f"{place / MANIFEST}: {error}") from error
        except OSError as error:
            raise _unreadable(place / MANIFEST, error) from error
        if manifest.id != model:
            raise StoreError(f"{place / MANIFEST}: expected {model}, found {manifest.id}")
        return manifest

    def verify(self, model: ModelId) -> StoreManifest:
        """Check a model version to its last byte; nothing runs.

        Raises StoreError if it is damaged, was changed, or is for another runtime.
        """
        manifest = self.manifest(model)
        self._read(manifest)
        return manifest

    def _read(self, manifest: StoreManifest) -> Artifact:
        """Return the artifact of a model version after checking it, as `verify`."""
        self._verify_file(manifest.id)
        path = self.path_of(manifest.id)
        try:
            artifact = read_artifact(path)
        except RuntimeFault as error:
            raise StoreError(str(error)) from error
        if artifact.manifest.kind != manifest.kind:
            raise StoreError(
                f"{path}: expected kind {manifest.kind}, found {artifact.manifest.kind}"
            )
        return artifact

    def selection(self) -> dict[str, Selected]:
        """Return the selected model for each role.

        Raises StoreError if there is no such store, or the file is damaged.
        """
        self._check_store()
        return read_selection(self.directory)

    def find(self, text: str) -> ModelId:
        """Return the model version that NAME or NAME@VERSION means.

        Raises StoreError if there is none, or several versions have the name.
        """
        if "@" in text:
            model = ModelId.of(text)
            self.manifest(model)
            return model
        problems = word_problems("name", text)
        if problems:
            raise StoreError("; ".join(problems))
        self._check_store()
        places = sorted(path.name for path in self.directory.glob(f"{text}@*"))
        if len(places) == 1:
            return _id_of(self.directory / places[0])
        found = f"several: {', '.join(places)}" if places else "none; see modeld models list"
        raise StoreError(f"{self.directory}: expected one version of {text!r}, found {found}")

    def candidates(self, role: str) -> tuple[list[Path], list[str]]:
        """Return a role's artifacts, the best first, and the problems of the others.

        The first is the selected one, checked to its last byte, the second its predecessor: `check`
        it before its use. A damaged one is logged and left out. Raises StoreError if nothing usable
        is selected.
        """
        selected = self.selection().get(checked_role(role), Selected())
        if selected.current is None:
            raise NothingSelectedError(
                f"{self.directory}: expected a model selected for {role}, found none; choose one "
                f"with modeld models select NAME --role {role}"
            )
        found: list[Path] = []
        problems: list[str] = []
        for model in (selected.current, selected.previous):
            if model is None:
                continue
            try:
                # The second is used only if the first fails, and is checked then.
                manifest = self.manifest(model) if found else self._verify_file(model)
                _check_kind(manifest, role)
            except ModeldError as error:
                logger.error("model of the store not usable: %s", error)  # noqa: TRY400 -- the message is for a user
                problems.append(str(error))
            else:
                found.append(self.path_of(model))
        if not found:
            raise StoreError(
                f"{'; '.join(problems)}; add it again, or choose another with modeld models select"
            )
        return found, problems

    def check(self, path: Path, role: str) -> None:
        """Check an artifact to its last byte, before a daemon loads it for a role.

        Raises StoreError if it is damaged, was changed, is of another kind, or not of this store.
        """
        model = _id_of(path.parent)
        if path != self.path_of(model):
            raise StoreError(f"{path}: expected {self.path_of(model)}; remove it")
        _check_kind(self._verify_file(model), role)

    # --- changing -----------------------------------------------------------------------------

    def add(
        self, source: Path, model: ModelId, *, now_s: float, self_test: SelfTest
    ) -> StoreManifest:
        """Copy an artifact into the store, check it and run the copy's self-test on the device.

        An existing id with other content is refused. Raises StoreError, RuntimeFault, or the errors
        of `self_test`, and leaves nothing.
        """
        with self.changing(make=True):
            beside = self.directory / f".adding-{model}"
            place = self.directory / str(model)
            beside.mkdir(files.DIRECTORY_MODE)
            try:
                beside.chmod(files.DIRECTORY_MODE)
                manifest = checked_copy(source, beside / ARTIFACT, model, now_s)
                if place.is_symlink() or place.exists():
                    return self._already_there(model, manifest)
                self_test(beside / ARTIFACT)
                files.write_new(beside / MANIFEST, manifest.file_bytes())
                files.sync_directory(beside)
                beside.rename(place)
                files.sync_directory(self.directory)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        return manifest

    def select(self, model: ModelId, role: str, *, self_test: SelfTest) -> Selected:
        """Make a model version the one that a role runs, after checking and running it.

        A damaged one or one of another kind is a StoreError. The selection stays then, and when
        `self_test` raises.
        """
        with self.changing():
            selection = self.selection()
            before = selection.get(checked_role(role), Selected())
            self._prove(model, role, self_test)
            if before.current == model:
                return before
            return self._switch(selection, role, Selected(model, before.current))

    def rollback(self, role: str, *, self_test: SelfTest) -> Selected:
        """Swap the selected model version with its predecessor.

        If there is none or it is damaged, raises StoreError. The selection stays then, and when
        `self_test` raises.
        """
        with self.changing():
            selection = self.selection()
            before = selection.get(checked_role(role), Selected())
            if before.previous is None:
                raise StoreError(
                    f"{self.directory}: expected a model before the selected one of {role}, found "
                    "none; choose one with modeld models select"
                )
            self._prove(before.previous, role, self_test)
            return self._switch(selection, role, Selected(before.previous, before.current))

    def _prove(self, model: ModelId, role: str, self_test: SelfTest) -> None:
        _check_kind(self.verify(model), role)
        self_test(self.path_of(model))

    def _switch(self, selection: dict[str, Selected], role: str, new: Selected) -> Selected:
        write_selection(self.directory, {**selection, role: new})
        return new

    def _already_there(self, model: ModelId, new: StoreManifest) -> StoreManifest:
        there = self.verify(model)
        if there != replace(new, added=there.added):
            raise StoreError(
                f"{self.directory / str(model)}: expected the same artifact, found another one "
                f"(file sha256 {there.file_sha256[:12]}, new {new.file_sha256[:12]}); choose "
                "another version"
            )
        return there

    def _verify_file(self, model: ModelId) -> StoreManifest:
        """Compare the artifact's file with the manifest, and the manifest with this runtime."""
        manifest, path = self.manifest(model), self.path_of(model)
        files.check_mode(path)
        try:
            size = path.stat().st_size
            digest = files.digest_of(path) if size == manifest.size else ""
        except OSError as error:
            raise _unreadable(path, error) from error
        if size != manifest.size:
            raise StoreError(f"{path}: expected {manifest.size} bytes, found {size}; add it again")
        if digest != manifest.file_sha256:
            raise StoreError(
                f"{path}: expected file sha256 {manifest.file_sha256[:12]}, found "
                f"{digest[:12]}: the file was changed or is damaged; add it again"
            )
        if manifest.minimum_abi > ABI:
            raise StoreError(
                f"{path}: expected a minimum ABI of at most {ABI}, found {manifest.minimum_abi}; "
                "update modeld"
            )
        return manifest

    def _check_store(self) -> None:
        try:
            is_there = self.directory.is_dir()
        except OSError as error:
            # A directory above it may be closed to this user.
            raise StoreError(
                f"{self.directory}: expected a store of models, got {error.strerror}; let this "
                "process look into the directories above it, or correct models_dir"
            ) from error
        if not is_there:
            raise StoreError(
                f"{self.directory}: expected a store of models, found none; modeld models add "
                "makes it, --store names another"
            )
        files.check_mode(self.directory)

    @contextmanager
    def changing(self, *, make: bool = False) -> Iterator[None]:
        """Hold the lock of the store; first remove the remains of killed commands."""
        try:
            made = files.make_directory(self.directory) if make else []
            self._check_store()
            with files.locked(self.directory, self._lock_wait_s):
                # Its maker no longer holds the lock, so it was killed.
                for path in sorted(self.directory.iterdir()):
                    if _UNFINISHED.fullmatch(path.name):
                        logger.info("%s: removed, a killed command left it", path)
                        files.remove_tree(path)
                try:
                    yield
                except BaseException:
                    files.unmake(self.directory, made)
                    raise
        except OSError as error:
            raise StoreError(
                f"{error.filename or self.directory}: cannot be changed: {error.strerror}; "
                "correct that, and see modeld models list for what is there"
            ) from error


def _check_kind(manifest: StoreManifest, role: str) -> None:
    if manifest.kind != ROLES[role]:
        raise StoreError(
            f"{manifest.id}: expected a model of kind {ROLES[role]} for {role}, found "
            f"{manifest.kind}; choose another"
        )


def _id_of(place: Path) -> ModelId:
    """Return the id in the name of a directory of the store."""
    try:
        return ModelId.of(place.name)
    except StoreError as error:
        raise StoreError(f"{place}: {error}; remove it, it is no model of this store") from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be read: {error.strerror}; add the model again")


def remove(store: ModelStore, model: ModelId, *, force: bool = False) -> None:
    """Remove a model version, even a damaged one; a killed command leaves all or nothing of it.

    `force` removes also a formerly selected one, and its roles cannot go back then. Raises
    StoreError if it is missing, or is selected.
    """
    with store.changing():
        place = store.directory / str(model)
        if not place.is_symlink() and not place.exists():
            raise StoreError(f"{place}: no such model; see modeld models list")
        selection = store.selection()
        current = [role for role, one in selection.items() if one.current == model]
        before = [role for role, one in selection.items() if one.previous == model]
        if current:
            raise StoreError(
                f"{place}: expected a model that is not selected, but it is for "
                f"{', '.join(current)}; select another first"
            )
        if before and not force:
            raise StoreError(
                f"{place}: expected a model that nobody goes back to, but it was selected "
                f"before for {', '.join(before)}; --force removes it nevertheless"
            )
        if before:
            changed = {role: Selected(selection[role].current) for role in before}
            write_selection(store.directory, {**selection, **changed})
        # Under the hidden name the next command removes it, if this one is killed.
        beside = store.directory / f".adding-{model}"
        place.rename(beside)
        files.sync_directory(store.directory)
        files.remove_tree(beside)


def version_at(store: ModelStore, artifact: Path) -> ModelId | None:
    """Return the model version that a path of an artifact names; None: none of this store."""
    place = artifact.parent
    if place.parent.resolve() != store.directory.resolve():
        return None
    try:
        model = ModelId.of(place.name)
    except StoreError:
        return None
    return model if artifact.name == store.path_of(model).name else None
