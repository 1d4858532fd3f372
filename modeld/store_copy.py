"""Copies an artifact into a store of models, and says what it is."""

from datetime import UTC, datetime
from pathlib import Path

from modeld import store_files
from modeld.errors import StoreError
from modeld.store_manifest import ModelId, StoreManifest, parse_manifest
from runtime.artifact import read_artifact
from runtime.errors import RuntimeFault


def checked_copy(source: Path, target: Path, model: ModelId, now_s: float) -> StoreManifest:
    """Copy an artifact and return its manifest; the copy is what is checked.

    Args:
        source: The artifact.
        target: A file that is not there yet.
        model: What the manifest calls it.
        now_s: The time, seconds since 1970 in UTC.

    Raises:
        StoreError: it is no sound artifact of a kind that a daemon runs.
        OSError: the target cannot be written.
    """
    try:
        sha256, size = store_files.copy_new(source, target)
    except OSError as error:
        if error.filename != str(source):
            raise
        raise StoreError(f"{source}: cannot be read: {error.strerror}") from error
    try:
        artifact = read_artifact(target)
    except RuntimeFault as error:
        raise StoreError(str(error).replace(str(target), str(source))) from error
    interface = artifact.manifest.metadata.get("interface")
    name = interface.get("name", "") if isinstance(interface, dict) else ""
    manifest = StoreManifest(
        name=model.name,
        version=model.version,
        kind=artifact.manifest.kind,
        file_sha256=sha256,
        size=size,
        minimum_abi=artifact.manifest.raw["abi"],
        interface=name if isinstance(name, str) else "",
        added=datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    try:
        # As the next reader will: what it would refuse is not added.
        return parse_manifest(manifest.file_bytes())
    except StoreError as error:
        raise StoreError(f"{source}: {error}") from error
