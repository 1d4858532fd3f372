"""The store of models: one directory per model version, and the selected models.

A new version is created in a temporary directory, which is then renamed, so a killed command never
leaves an incomplete version. One small file has the current and the previous selection
(docs/formats/model-store.md, ADR 0091).
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
# Longest wait for another command. Copying and testing a large model takes seconds.
LOCK_WAIT_S: Final = 30.0

# Runs an artifact's self-test on the device; raises ModeldError or RuntimeFault.
SelfTest = Callable[[Path], None]


class ModelStore:
    """The model store in one directory, which `add` creates.

    Methods that change the store wait up to `lock_wait_s` for another command's lock.
    """

    def __init__(self, directory: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self.directory = directory
        self._lock_wait_s = lock_wait_s

    def path_of(self, model: ModelId) -> Path:
        """Return the path of a model version's artifact."""
        return self.directory / str(model) / ARTIFACT

    # --- Methods that read the store ----------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return all entries by name, with every artifact fully checked.

        Raises StoreError if there is no store.
        """
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
        """Return the manifest of a model version without checking its artifact.

        Raises StoreError if the version is missing, or its manifest is damaged or names another
        version.
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
        """Check every byte of a model version without running it; return its manifest.

        Raises StoreError if it is damaged, was changed or needs a newer runtime.
        """
        manifest = self.manifest(model)
        self._read(manifest)
        return manifest

    def _read(self, manifest: StoreManifest) -> Artifact:
        """Return the artifact of a model version, checked as in `verify`."""
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
        """Return the selected models by role.

        Raises StoreError if there is no store, or the selection file is damaged.
        """
        self._check_store()
        return read_selection(self.directory)

    def find(self, text: str) -> ModelId:
        """Return the model version named NAME or NAME@VERSION.

        Raises StoreError if there is none, or if NAME has several versions.
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
        """Return the artifacts to try for a role, best first, and the problems of unusable ones.

        They are the selected model and its predecessor. The first of the list is fully checked; use
        `check` before loading the second. Damaged ones are logged and omitted. Raises StoreError if
        no usable model is selected.
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
                # The second one is used only if the first fails, so it is fully checked only then.
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
        """Check every byte of an artifact before a daemon loads it for a role.

        Raises StoreError if it is damaged, was changed, has the wrong kind or is not in this store.
        """
        model = _id_of(path.parent)
        if path != self.path_of(model):
            raise StoreError(f"{path}: expected {self.path_of(model)}; remove it")
        _check_kind(self._verify_file(model), role)

    # --- Methods that change the store --------------------------------------------------------

    def add(
        self, source: Path, model: ModelId, *, now_s: float, self_test: SelfTest
    ) -> StoreManifest:
        """Copy an artifact into the store, check it and run the copy's self-test on the device.

        `now_s`, Unix time, is recorded as the time of adding. An existing id with different content
        is an error. Raises StoreError, RuntimeFault or the errors of `self_test`, and then leaves
        no files.
        """
        with self.changing(make=True):
            temporary = self.directory / f".adding-{model}"
            place = self.directory / str(model)
            temporary.mkdir(files.DIRECTORY_MODE)
            try:
                temporary.chmod(files.DIRECTORY_MODE)
                manifest = checked_copy(source, temporary / ARTIFACT, model, now_s)
                if place.is_symlink() or place.exists():
                    return self._already_there(model, manifest)
                self_test(temporary / ARTIFACT)
                files.write_new(temporary / MANIFEST, manifest.file_bytes())
                files.sync_directory(temporary)
                temporary.rename(place)
                files.sync_directory(self.directory)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
        return manifest

    def select(self, model: ModelId, role: str, *, self_test: SelfTest) -> Selected:
        """Select a model version for a role, after a check and a self-test.

        Raises StoreError if it is damaged or has the wrong kind, or the errors of `self_test`. The
        selection does not change then.
        """
        with self.changing():
            selection = self.selection()
            before = selection.get(checked_role(role), Selected())
            self._check_and_test(model, role, self_test)
            if before.current == model:
                return before
            return self._switch(selection, role, Selected(model, before.current))

    def rollback(self, role: str, *, self_test: SelfTest) -> Selected:
        """Swap the selected model version with its predecessor.

        Raises StoreError if there is none or it is damaged, or the errors of `self_test`. The
        selection does not change then.
        """
        with self.changing():
            selection = self.selection()
            before = selection.get(checked_role(role), Selected())
            if before.previous is None:
                raise StoreError(
                    f"{self.directory}: expected a previously selected model for {role}, found "
                    "none; choose one with modeld models select"
                )
            self._check_and_test(before.previous, role, self_test)
            return self._switch(selection, role, Selected(before.previous, before.current))

    def _check_and_test(self, model: ModelId, role: str, self_test: SelfTest) -> None:
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
        """Check the artifact's file against the manifest, and the manifest against this runtime."""
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
            # This user may lack access to a parent directory.
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
        """Hold the store's lock in the block; first remove temporary files of killed commands.

        With `make`, create the store if it is missing.
        """
        try:
            made = files.make_directory(self.directory) if make else []
            self._check_store()
            with files.locked(self.directory, self._lock_wait_s):
                # A command that creates such files holds the lock, so this one was killed.
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
    """Return the id in the name of a directory in the store; raise StoreError if it is not one."""
    try:
        return ModelId.of(place.name)
    except StoreError as error:
        raise StoreError(f"{place}: {error}; remove it, it is no model of this store") from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be read: {error.strerror}; add the model again")


def remove(store: ModelStore, model: ModelId, *, force: bool = False) -> None:
    """Remove a model version, even a damaged one. The removal is atomic.

    A previously selected version is removed only with `force`; its roles then have no previous
    model. Raises StoreError if it is missing or selected.
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
                f"{place}: expected a model that is not a previous selection, but it is "
                f"for {', '.join(before)}; --force removes it anyway"
            )
        if before:
            changed = {role: Selected(selection[role].current) for role in before}
            write_selection(store.directory, {**selection, **changed})
        # If this command is killed, the next one removes the directory because of its hidden name.
        temporary = store.directory / f".adding-{model}"
        place.rename(temporary)
        files.sync_directory(store.directory)
        files.remove_tree(temporary)


def version_at(store: ModelStore, artifact: Path) -> ModelId | None:
    """Return the model version whose artifact has this path; None if it is not in this store."""
    place = artifact.parent
    if place.parent.resolve() != store.directory.resolve():
        return None
    try:
        model = ModelId.of(place.name)
    except StoreError:
        return None
    return model if artifact.name == store.path_of(model).name else None
