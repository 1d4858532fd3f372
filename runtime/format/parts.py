"""Parsers for the parts of a manifest, with typed and bounded access to its dictionaries.

The parts are the code of kernels, images, the megakernel, the self-test and the lineage. All
functions raise ArtifactError, which names the first field that is missing, has the wrong type or is
out of range.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ArtifactError

MAX_ITEMS: Final = 200_000  # buffers, kernels, or launches of one entry; current models need 300


class Fields:
    """One dictionary of the manifest. Every failure is an ArtifactError that names the field."""

    def __init__(self, value: object, where: str) -> None:
        if type(value) is not dict:
            raise ArtifactError(f"{where}: expected a dict, found {type(value).__name__}")
        self.value: dict[str, Any] = value
        self.where = where

    def get(self, key: str, kind: type) -> Any:
        """Return field `key`, whose type must be exactly `kind` (a bool is not an int)."""
        if key not in self.value:
            raise ArtifactError(f"{self.where}: the field {key!r} is missing")
        item = self.value[key]
        if type(item) is not kind:
            raise ArtifactError(
                f"{self.where}.{key}: expected {kind.__name__}, found {type(item).__name__}"
            )
        return item

    def text(self, key: str) -> str:
        """Return field `key`, a str."""
        item: str = self.get(key, str)
        return item

    def number(self, key: str, low: int, high: int) -> int:
        """Return field `key`, an int in [low, high]."""
        return in_range(self.get(key, int), low, high, f"{self.where}.{key}")

    def items(self, key: str, limit: int = MAX_ITEMS) -> list[Any]:
        """Return field `key`, a list of at most `limit` items of any type."""
        item: list[Any] = self.get(key, list)
        if len(item) > limit:
            raise ArtifactError(f"{self.where}.{key}: {len(item)} items, at most {limit} expected")
        return item

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return field `key`, one of the strings in `allowed`."""
        item = self.text(key)
        if item not in allowed:
            raise ArtifactError(
                f"{self.where}.{key}: unknown value {item[:80]!r}, expected one of "
                f"{', '.join(allowed)}"
            )
        return item

    def numbers(self, key: str, low: int, high: int, limit: int = MAX_ITEMS) -> tuple[int, ...]:
        """Return field `key`, a list of integers in [low, high], as a tuple."""
        items = self.items(key, limit)
        for item in items:
            if type(item) is not int or not low <= item <= high:
                in_range(item, low, high, f"{self.where}.{key}")
        return tuple(items)


def in_range(value: object, low: int, high: int, where: str) -> int:
    """Return `value`, which must be an int in [low, high]; `where` names it in the error."""
    if type(value) is not int:
        raise ArtifactError(f"{where}: expected int, found {type(value).__name__}")
    if not low <= value <= high:
        raise ArtifactError(f"{where}: {value} is outside {low}..{high}")
    return value


# --- The key `code` of kernels ----------------------------------------------------------------
# It informs readers of an artifact and is not needed to run it. When loading, only the numbers of
# images that a kernel reads and writes are compared with the device's limits.

# More bytes of local memory, or accesses in the source, than any kernel has.
_MAX_COUNT: Final = 2**31 - 1
# The fields of `code`:
#   kind           text: `contract`, `reduce`, `map` or `custom`
#   start, end     range of characters in the program's source with the function, without callees
#   writes         number of written `args`, which come first; the others are only read
#   float64        whether the kernel computes in float64
#   local_bytes    local memory of a work-group
#   image_reads    texel reads in the source (one in a loop counts once; also in the next two)
#   gated_reads    reads that a condition may replace by a fill value
#   image_writes   texel writes
_COUNTS: Final = ("local_bytes", "image_reads", "gated_reads", "image_writes")


def check_code(kernel: Fields, source: str, args: int) -> int:
    """Check the key `code` of a kernel, which may be missing; return how many `args` it writes."""
    if "code" not in kernel.value:
        return 1
    code = Fields(kernel.get("code", dict), f"{kernel.where}.code")
    code.text("kind")
    code.get("float64", bool)
    writes = code.number("writes", 0, args)
    for key in _COUNTS:
        code.number(key, 0, _MAX_COUNT)
    start, end = code.number("start", 0, len(source)), code.number("end", 0, len(source))
    if start > end:
        raise ArtifactError(f"{code.where}: start {start} is behind end {end}")
    return writes


# --- Images in the buffer table. A texel has four elements (CL_RGBA) --------------------------
#     {"kind": "image", "dtype": "float16", "image": [width, height], ...}

# The key of an image's size, and the kind of an intermediate image. A weight can be an image too.
_IMAGE: Final = "image"
TEXEL: Final = 4
_IMAGE_DTYPES: Final = ("float16", "float32")
_MAX_EXTENT: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """The size of a two-dimensional image, in texels."""

    width: int
    height: int


def parse_image(fields: Fields, kind: str, dtype: str, size: int) -> ImageSpec | None:
    """Return the size of a buffer's image; None if the buffer (of `size` bytes) is not an image."""
    if _IMAGE not in fields.value:
        if kind == _IMAGE:
            raise ArtifactError(f"{fields.where}: kind {_IMAGE} without its width and height")
        return None
    extent = fields.numbers(_IMAGE, 1, _MAX_EXTENT)
    if len(extent) != 2:
        raise ArtifactError(f"{fields.where}.{_IMAGE}: expected width and height, found {extent}")
    if kind not in (_IMAGE, "weight") or dtype not in _IMAGE_DTYPES:
        raise ArtifactError(
            f"{fields.where}.{_IMAGE}: expected {_IMAGE} or weight of "
            f"{' or '.join(_IMAGE_DTYPES)}, found {kind} of {dtype}"
        )
    needed = extent[0] * extent[1] * TEXEL * np.dtype(dtype).itemsize
    if needed != size:
        raise ArtifactError(
            f"{fields.where}.{_IMAGE}: {extent[0]}x{extent[1]} texels of {dtype} take {needed} "
            f"bytes, size is {size}"
        )
    return ImageSpec(extent[0], extent[1])


# --- The megakernel ---------------------------------------------------------------------------
#     "replay": {"program": 2, "functions": [{"name": "map_1f", "args": 3}, ...]}
#     "kernels": [{..., "function": 0}, ...]
# A kernel refers to its function by index. Their names and argument counts must agree, so a damaged
# index cannot make a function read the arguments of another kernel.

# Work-items are counted in an int, and every work-group counts one too many.
MAX_MEGAKERNEL_ITEMS: Final = 2**31 - 2**17
MAX_TABLE_WORDS: Final = 1 << 24  # 8-byte words, all entries together; current models need 2000
RECORD_WORDS: Final = 3  # function, work-items, index of the first argument word


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One function of the megakernel."""

    name: str  # name of the kernel
    args: int  # number of the kernel's arguments


@dataclass(frozen=True, slots=True)
class MegakernelSpec:
    """The megakernel of an artifact."""

    program: int  # index of the program that contains the kernel `replay`
    functions: tuple[FunctionSpec, ...]  # its functions, to which kernels refer by index


def parse_megakernel(raw: dict[str, Any], program_count: int) -> MegakernelSpec | None:
    """Parse the key `replay`; return None if it is missing or empty."""
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
    """Return the index of a kernel's function; -1 if the kernel is launched separately.

    `size` is the kernel's global size. `images` has for each argument whether it is an image.
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
    """Check that a table of records with these argument counts fits MAX_TABLE_WORDS."""
    words = sum(RECORD_WORDS + count for count in counts)
    if words > MAX_TABLE_WORDS:
        raise ArtifactError(
            f"manifest.entries: a table of {words} words for the megakernel, "
            f"at most {MAX_TABLE_WORDS} allowed"
        )


# --- The self-test: seeds, and the model's values for them ------------------------------------
# A rule derives the inputs and states of a run from the seed (`runtime.run.selftest`). Evenly
# spaced values of each output, and of each state that the entry writes, are stored.

SELF_TEST_RULE: Final = 1  # version of the rule for inputs and states, and for the kept values
# Maximum number of values to keep of one array: all values of each output of the driving models
# (2576 at most). It is prime, so that the step through larger arrays does not hit the same column
# of each row.
MAX_VALUES: Final = 4093
MAX_VECTORS: Final = 16
# Kinds of compared values: arrays that the host reads, and arrays that stay on the device.
_EXPECTED_KINDS: Final = ("output", "state")
# Reference magnitude if all expected values are smaller, such as zero.
SMALLEST_PEAK: Final = 1e-6

# Entry -> kind -> name -> (shape, dtype).
Ports = Mapping[str, Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]]]


@dataclass(frozen=True, slots=True)
class ExpectedValues:
    """The expected values of one output or state after a run."""

    kind: str  # "output" or "state"
    name: str
    shape: tuple[int, ...]  # shape of the whole array
    values: NDArray[Any]  # the values at `positions(size)`, in the array's dtype
    tolerance: float  # floats: relative to the largest expected value; integers: absolute
    share: float  # the share of values that may exceed the tolerance

    def plain(self) -> dict[str, Any]:
        """Return the values as plain data for the manifest."""
        values = np.asarray(self.values, order="C")
        return {
            "kind": self.kind,
            "name": self.name,
            "values": values.astype(values.dtype.newbyteorder("<")).tobytes(),
            "tolerance": self.tolerance,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class TestVector:
    """One run: a seed for its states and inputs, and the values expected after it."""

    __test__ = False  # otherwise pytest collects classes whose name begins with Test

    seed: int
    entry: str
    expected: tuple[ExpectedValues, ...]  # one per output and per state that the entry writes

    def plain(self) -> dict[str, Any]:
        """Return the vector as plain data for the manifest."""
        return {
            "seed": self.seed,
            "entry": self.entry,
            "expected": [e.plain() for e in self.expected],
        }


def plain_self_test(vectors: tuple[TestVector, ...]) -> dict[str, Any]:
    """Return the manifest's `self_test`; {} if there are no vectors."""
    return {"rule": SELF_TEST_RULE, "vectors": [v.plain() for v in vectors]} if vectors else {}


def positions(size: int) -> NDArray[np.int64]:
    """Return the indices of the values to keep of an array, evenly spaced from the first on."""
    count = min(size, MAX_VALUES)
    return np.arange(count, dtype=np.int64) * size // max(count, 1)


def parse_vectors(manifest: Mapping[str, Any], ports: Ports) -> tuple[TestVector, ...]:
    """Check the key `self_test` of a manifest; return its vectors, () if it has none."""
    raw = Fields(manifest.get("self_test", {}), "self_test")
    if not raw.value:
        return ()
    rule = raw.number("rule", 1, 2**31)
    if rule != SELF_TEST_RULE:
        raise ArtifactError(
            f"self_test.rule: {rule}, this version knows {SELF_TEST_RULE}; compile the model "
            "again with this version"
        )
    return tuple(
        _parse_vector(Fields(item, f"self_test.vectors[{index}]"), ports)
        for index, item in enumerate(raw.items("vectors", MAX_VECTORS))
    )


def _parse_vector(fields: Fields, ports: Ports) -> TestVector:
    entry = fields.text("entry")
    if entry not in ports:
        raise ArtifactError(f"{fields.where}.entry: there is no entry {entry[:80]!r}")
    return TestVector(
        seed=fields.number("seed", 0, 2**32),
        entry=entry,
        expected=tuple(
            _parse_expected(Fields(item, f"{fields.where}.expected[{index}]"), ports[entry])
            for index, item in enumerate(fields.items("expected"))
        ),
    )


def _parse_expected(
    fields: Fields, ports: Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]]
) -> ExpectedValues:
    kind, name = fields.choice("kind", _EXPECTED_KINDS), fields.text("name")
    if name not in ports[kind]:
        raise ArtifactError(f"{fields.where}.name: there is no {kind} {name[:80]!r}")
    shape, dtype = ports[kind][name]
    stored = np.dtype(dtype).newbyteorder("<")
    content: bytes = fields.get("values", bytes)
    count = min(math.prod(shape), MAX_VALUES)
    if len(content) != count * stored.itemsize:
        raise ArtifactError(
            f"{fields.where}.values: {len(content)} bytes, expected {count} values of {dtype}"
        )
    bounds = {}
    for key in ("tolerance", "share"):
        bounds[key] = fields.get(key, float)
        if not 0 <= bounds[key] < math.inf:
            raise ArtifactError(f"{fields.where}.{key}: {bounds[key]}, expected 0 or more")
    values = np.frombuffer(content, stored).astype(dtype)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ArtifactError(f"{fields.where}.values: not all are finite")
    return ExpectedValues(kind, name, shape, values, bounds["tolerance"], bounds["share"])


# --- The lineage: facts about the model's origin, as short texts by name ----------------------
# The compiler writes the producer and metadata of the ONNX files, and the user's notes (`modeld
# compile --note`). Nothing is computed from it (docs/formats/artifact.md).

# Enough for four models with a dozen facts each, yet short enough for lists and health messages.
MAX_FACTS: Final = 64
MAX_FACT_NAME: Final = 96  # characters
MAX_FACT_TEXT: Final = 200  # characters


def lineage_problem(key: str, value: str) -> str:
    """Return a phrase about an invalid key or value; "" if both are valid."""
    if (
        not 1 <= len(key) <= MAX_FACT_NAME
        or not key.isprintable()
        or key != key.strip()
        or "=" in key
    ):
        return f"expected a name of 1 to {MAX_FACT_NAME} printable characters, found {key[:120]!r}"
    if len(value) > MAX_FACT_TEXT or not value.isprintable():
        return f"expected at most {MAX_FACT_TEXT} printable characters, found {value[:240]!r}"
    return ""


def fitted_lineage(facts: Mapping[str, str], room: int = MAX_FACTS) -> dict[str, str]:
    """Return `facts` from other programs in the form of an artifact's lineage, sorted by name.

    At most `room` facts are kept, the first by name. Those with an invalid name are left out. An
    invalid value is replaced by its length and digest.
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

    Raises ArtifactError if it has too many entries, or one that is not a short printable text.
    """
    if "lineage" not in top.value:
        return {}
    found: dict[str, str] = top.get("lineage", dict)
    where = f"{top.where}.lineage"
    if len(found) > MAX_FACTS:
        raise ArtifactError(f"{where}: {len(found)} entries, at most {MAX_FACTS} expected")
    for key, value in found.items():
        if type(value) is not str:
            raise ArtifactError(f"{where}: expected str, found {type(value).__name__}")
        if problem := lineage_problem(key, value):
            raise ArtifactError(f"{where}: {problem}")
    return found
