"""Removes model versions from a store, and finds the version that the path of an artifact names."""

from pathlib import Path

from modeld.errors import StoreError
from modeld.store import files
from modeld.store.manifest import ModelId
from modeld.store.model_store import ModelStore
from modeld.store.selection import Selected, write_selection


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
