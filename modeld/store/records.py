"""The records of the model store: the manifest next to each artifact, and the selection.

Both are small JSON files of plain data. They are fully checked before any value is used
(docs/formats/model-store.md).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from modeld.errors import StoreError
from modeld.store import files
from runtime.errors import RuntimeFault
from runtime.format.artifact import read_artifact

FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 1 << 16
# A name or version. It begins with a letter or digit, so it is never a hidden file or "..".
_WORD: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_ADDED: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)
_KINDS: Final = ("driving", "monitoring")
_TEXT: Final = re.compile(r"[ -~]{0,128}")
_MAX_SIZE: Final = 1 << 40
_MAX_ABI: Final = 1 << 16


@dataclass(frozen=True, slots=True, order=True)
class ModelId:
    """Name and version of a model, NAME@VERSION as text."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @staticmethod
    def of(text: str) -> "ModelId":
        """Return the id written as NAME@VERSION; raise StoreError if the text is malformed."""
        name, separator, version = text.partition("@")
        if not separator:
            raise StoreError(f"{text!r}: expected NAME@VERSION; see modeld models list")
        return ModelId.checked(name, version)

    @staticmethod
    def checked(name: str, version: str) -> "ModelId":
        """Return the id with a name and a version; raise StoreError if one is invalid."""
        problems = word_problems("name", name) + word_problems("version", version)
        if problems:
            raise StoreError("; ".join(problems))
        return ModelId(name, version)


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """The manifest of a model version: the facts stored next to its artifact."""

    name: str
    version: str
    kind: str  # kind of artifact, "driving" or "monitoring"
    file_sha256: str  # digest of the artifact file, hexadecimal; `sha256` in the manifest
    size: int  # size of the file in bytes
    minimum_abi: int  # lowest ABI of a runtime that can run it
    interface: str  # name of the model's interface, for display
    added: str  # time of adding in UTC, such as "2026-11-22T23:00:00Z"

    @property
    def id(self) -> ModelId:
        """Name and version of the model."""
        return ModelId(self.name, self.version)

    def _content(self) -> dict[str, Any]:
        names = {"file_sha256": "sha256"}
        values = {names.get(name, name): value for name, value in asdict(self).items()}
        return {"format": FORMAT, **values}

    def signed_bytes(self) -> bytes:
        """Return the bytes to sign: all fields except the signature, as canonical JSON."""
        return json.dumps(self._content(), sort_keys=True, separators=(",", ":")).encode("ascii")

    def file_bytes(self) -> bytes:
        """Return the content of the manifest file."""
        content = {**self._content(), "signature": ""}
        return (json.dumps(content, indent=1) + "\n").encode("ascii")


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory of the store."""

    directory: Path
    manifest: StoreManifest | None  # None if it is damaged
    problem: str  # defect in one line; "" if there is none
    sha256: str = ""  # digest of the artifact's content; "" if it is unreadable
    program_sha256: str = ""  # digest of its program; "" if it is unreadable
    lineage: Mapping[str, str] = field(default_factory=dict)  # origin of the model


def word_problems(what: str, text: str) -> list[str]:
    """Return the problems of a name or version; `what` is "name" or "version"."""
    if _WORD.fullmatch(text):
        return []
    expected = "1 to 64 of a-z 0-9 . _ - that begin with a letter or digit"
    return [f"{what}: expected {expected}, found {text[:80]!r}"]


def parse_manifest(data: bytes) -> StoreManifest:
    """Return the manifest in a file's content.

    Raises StoreError if it is too long, is not JSON, or a field is missing, unknown or invalid.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        raise StoreError(f"expected at most {MAX_MANIFEST_BYTES} bytes, found {len(data)}")
    content = _plain_object(data)
    if content.get("format") != FORMAT:
        raise StoreError(f"format: expected {FORMAT}, found {_shown(content.get('format'))}")
    unknown = sorted(set(content) - set(_TYPES))
    missing = sorted(set(_TYPES) - set(content))
    if unknown or missing:
        found = [f"unknown {', '.join(unknown)[:200]}"] if unknown else []
        found += [f"missing {', '.join(missing)}"] if missing else []
        raise StoreError(f"expected the fields {', '.join(_TYPES)}; {'; '.join(found)}")
    problems = [
        f"{name}: expected {kind.__name__}, found {_shown(content[name])}"
        for name, kind in _TYPES.items()
        if type(content[name]) is not kind
    ]
    problems = problems or _value_problems(content)
    if problems:
        raise StoreError("; ".join(problems))
    names = {"sha256": "file_sha256"}
    return StoreManifest(
        **{
            names.get(name, name): content[name]
            for name in _TYPES
            if name not in ("format", "signature")
        }
    )


def _plain_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object without duplicate keys; raise StoreError if the data is not one."""
    try:
        content = json.loads(data, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"expected a JSON object, found {str(error)[:100]}") from error
    if not isinstance(content, dict):
        raise StoreError(f"expected a JSON object, found {_shown(content)}")
    return content


# Fields of a manifest and their types, in the order of the file.
_TYPES: Final[Mapping[str, type]] = {
    "format": int,
    "name": str,
    "version": str,
    "kind": str,
    "sha256": str,
    "size": int,
    "minimum_abi": int,
    "interface": str,
    "added": str,
    "signature": str,
}


def _value_problems(content: Mapping[str, Any]) -> list[str]:
    problems = [p for name in ("name", "version") for p in word_problems(name, content[name])]
    if content["kind"] not in _KINDS:
        problems.append(
            f"kind: expected {' or '.join(_KINDS)}, found {_shown(content['kind'])}; compile the "
            "model without --plain"
        )
    for name, pattern, what in (
        ("sha256", _SHA256, "64 hexadecimal digits"),
        ("added", _ADDED, "a time like 2026-11-22T23:00:00Z"),
        ("interface", _TEXT, "at most 128 printable characters"),
    ):
        if not pattern.fullmatch(content[name]):
            problems.append(f"{name}: expected {what}, found {_shown(content[name])}")
    for name, low, high in (("size", 1, _MAX_SIZE), ("minimum_abi", 1, _MAX_ABI)):
        if not low <= content[name] <= high:
            problems.append(f"{name}: expected {low}..{high}, found {_shown(content[name])}")
    if content["signature"]:
        problems.append("signature: expected none, as this version checks no signatures")
    return problems


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a duplicate key")
    return found


def _shown(value: object) -> str:
    return repr(value)[:80]


def checked_copy(source: Path, target: Path, model: ModelId, now_s: float) -> StoreManifest:
    """Copy an artifact to a new file, check the copy and return its manifest.

    Raises:
        StoreError: It is not a sound artifact of a kind that a daemon runs.
        OSError: The target cannot be written.
    """
    try:
        sha256, size = files.copy_new(source, target)
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
        # Make sure that readers will accept the manifest.
        return parse_manifest(manifest.file_bytes())
    except StoreError as error:
        raise StoreError(f"{source}: {error}") from error


# --- The current and the previous selection, by role ------------------------------------------
# One small file has both and is replaced atomically. Two symbolic links could not be moved
# together: a command killed in between would leave a model that is its own predecessor.

# Role of a selected model -> required kind of artifact.
ROLES: Final[Mapping[str, str]] = {
    "driving": "driving",
    "fallback": "driving",
    "monitoring": "monitoring",
}
SELECTION: Final = "selection.json"
# A longer file is truncated when it is read, and is then invalid JSON.
_MAX_SELECTION_BYTES: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class Selected:
    """The current and the previous model of one role; None if there is none."""

    current: ModelId | None = None
    previous: ModelId | None = None


def checked_role(role: str) -> str:
    """Return `role`; raise StoreError if there is no such role."""
    if role not in ROLES:
        raise StoreError(f"role: expected one of {', '.join(ROLES)}, found {role!r}")
    return role


def read_selection(store: Path) -> dict[str, Selected]:
    """Return the selection by role; {} if no model was ever selected.

    Raises StoreError if the file is damaged or writable by others.
    """
    path = store / SELECTION
    try:
        data = files.read_bounded(path, _MAX_SELECTION_BYTES)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}; remove it, and select the models again"
        ) from error
    files.check_mode(path)
    try:
        content = _plain_object(data)
        return {role: _selected(role, content[role]) for role in map(checked_role, content)}
    except StoreError as error:
        raise StoreError(f"{path}: {error}; remove it, and select the models again") from error


def write_selection(store: Path, selection: Mapping[str, Selected]) -> None:
    """Replace the selection file. The caller holds the store's lock."""
    content = {
        role: {"current": str(one.current or ""), "previous": str(one.previous or "")}
        for role, one in sorted(selection.items())
    }
    data = (json.dumps(content, indent=1) + "\n").encode("ascii")
    files.replace_file(store / SELECTION, data)


def _selected(role: str, value: object) -> Selected:
    if not isinstance(value, dict) or set(value) != {"current", "previous"}:
        raise StoreError(f"{role}: expected current and previous, found {str(value)[:80]!r}")
    if not all(isinstance(text, str) for text in value.values()):
        raise StoreError(f"{role}: expected texts NAME@VERSION, found {str(value)[:80]!r}")
    current, previous = (
        ModelId.of(value[key]) if value[key] else None for key in ("current", "previous")
    )
    return Selected(current, previous)
