"""The origin of a model, stored in its artifact: short texts by short names.

The compiler writes who made the ONNX files and what these say of themselves, and the notes of who
compiled them (`modeld compile --note`). Nothing is computed from it (docs/formats/artifact.md).
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from runtime.errors import ArtifactError
from runtime.format.fields import Fields

# Enough for four models of a dozen facts each; what lists and health messages show stays short.
MAX_ENTRIES: Final = 64
MAX_KEY: Final = 96  # characters
MAX_VALUE: Final = 200  # characters


def lineage_problem(key: str, value: str) -> str:
    """Return what a key or a value should be and is not, in a phrase; "" if both are right."""
    if not 1 <= len(key) <= MAX_KEY or not key.isprintable() or key != key.strip() or "=" in key:
        return f"expected a name of 1 to {MAX_KEY} printable characters, found {key[:120]!r}"
    if len(value) > MAX_VALUE or not value.isprintable():
        return f"expected at most {MAX_VALUE} printable characters, found {value[:240]!r}"
    return ""


def fitted(facts: Mapping[str, str], room: int = MAX_ENTRIES) -> dict[str, str]:
    """Return foreign `facts` in the form that an artifact has, by name, the same each time.

    At most `room` are kept, the first ones by name. Those whose name does not fit are left out; a
    value that does not fit is replaced by its length and digest.
    """
    found: dict[str, str] = {}
    for key, value in sorted(facts.items()):
        if not value or lineage_problem(key, ""):
            continue
        digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
        long = f"({len(value)} characters, sha256 {digest[:16]})"
        found[key] = long if lineage_problem(key, value) else value
    return dict(list(found.items())[: max(0, room)])


def parse_lineage(top: Fields) -> dict[str, str]:
    """Check the key `lineage` of a manifest, which may be missing, and return it.

    Raises ArtifactError if it has too many entries, or one that is no short printable text.
    """
    if "lineage" not in top.value:
        return {}
    found: dict[str, str] = top.get("lineage", dict)
    where = f"{top.where}.lineage"
    if len(found) > MAX_ENTRIES:
        raise ArtifactError(f"{where}: {len(found)} entries, at most {MAX_ENTRIES} expected")
    for key, value in found.items():
        if type(value) is not str:
            raise ArtifactError(f"{where}: expected str, found {type(value).__name__}")
        if problem := lineage_problem(key, value):
            raise ArtifactError(f"{where}: {problem}")
    return found
