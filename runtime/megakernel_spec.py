"""The megakernel of a manifest, typed and checked; used by `runtime.manifest` only.

    "replay": {"program": 2, "functions": [{"name": "map_1f", "args": 3}, ...]}
    "kernels": [{..., "function": 0}, ...]

A kernel names its function by number; name and number of arguments must be those of the function,
so a damaged number cannot make one function read the arguments of another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from runtime.errors import ArtifactError
from runtime.fields import Fields

# Work-items are counted with int, and every work-group counts one too many.
MAX_MEGAKERNEL_ITEMS: Final = 2**31 - 2**17
MAX_TABLE_WORDS: Final = 1 << 24  # of 8 bytes, all entries together; today's models need 2000
RECORD_WORDS: Final = 3  # function, work-items, where the arguments are


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One function of the megakernel: the kernel it is the text of, and its arguments."""

    name: str
    args: int


@dataclass(frozen=True, slots=True)
class MegakernelSpec:
    """The program with the kernel `replay`, and its functions by number."""

    program: int
    functions: tuple[FunctionSpec, ...]


def parse_megakernel(raw: dict[str, Any], program_count: int) -> MegakernelSpec | None:
    """Return what the key `replay` says; None where it is missing or empty.

    Raises:
        ArtifactError: a field is missing, mistyped or out of range.
    """
    if "replay" not in raw or raw["replay"] == {}:
        return None
    fields = Fields(raw["replay"], "replay")
    functions = []
    for number, item in enumerate(fields.items("functions")):
        function = Fields(item, f"replay.functions[{number}]")
        functions.append(FunctionSpec(function.text("name"), function.number("args", 1, 1024)))
    return MegakernelSpec(fields.number("program", 0, program_count - 1), tuple(functions))


def parse_function(
    fields: Fields,
    megakernel: MegakernelSpec | None,
    size: tuple[int, int, int],
    images: Sequence[bool],
) -> int:
    """Return the number of a kernel's function, -1 where it is launched by itself.

    Args:
        fields: of the kernel.
        megakernel: of the manifest.
        size: its global size.
        images: for each of its arguments, whether it is an image.

    Raises:
        ArtifactError: there is no such function, or the kernel is not what it takes.
    """
    if "function" not in fields.value:
        return -1
    count = 0 if megakernel is None else len(megakernel.functions)
    number = fields.number("function", -1, count - 1)
    if number < 0 or megakernel is None:
        return -1
    function = megakernel.functions[number]
    if (function.name, function.args) != (fields.text("name"), len(images)):
        raise ArtifactError(
            f"{fields.where}.function: {number} is {function.name[:80]!r} with {function.args} "
            f"arguments, the kernel is {fields.text('name')[:80]!r} with {len(images)}"
        )
    if any(images):
        raise ArtifactError(
            f"{fields.where}.args: {images.index(True)} is an image, expected buffers for a kernel "
            "with a function"
        )
    groups = fields.numbers("local", 1, 1, 3)
    if size[1:] != (1, 1) or size[0] > MAX_MEGAKERNEL_ITEMS or len(groups) != 3:
        raise ArtifactError(
            f"{fields.where}.global: {list(size)}, expected [n, 1, 1] with n at most "
            f"{MAX_MEGAKERNEL_ITEMS} for a kernel with a function"
        )
    return number


def check_table(counts: Iterable[int]) -> None:
    """Check that the table has a size that can be.

    Args:
        counts: for each record, its number of arguments.

    Raises:
        ArtifactError: it has more words than MAX_TABLE_WORDS.
    """
    words = sum(RECORD_WORDS + count for count in counts)
    if words > MAX_TABLE_WORDS:
        raise ArtifactError(
            f"manifest.entries: a table of {words} words for the megakernel, "
            f"at most {MAX_TABLE_WORDS} allowed"
        )
