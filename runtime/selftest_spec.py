"""What an artifact says of its self-test: seeds, and the values that the model gives for them.

Inputs and states before a run are not stored: a rule makes them of the seed
(`runtime.selftest_inputs`). Of each output, and of each state that the entry writes, evenly spaced
values are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.errors import ArtifactError
from runtime.fields import Fields

RULE: Final = 1  # how inputs and states are made of a seed, and which values are kept
# Values of one array that are kept: all of an output of the driving models (2576 at most). A prime,
# so that the step through larger arrays does not meet the same column of each row.
MAX_VALUES: Final = 4093
MAX_VECTORS: Final = 16
# What was measured: an array, or one that stays on the device.
KINDS: Final = ("output", "state")
# Of expected values that are all zero, this much is no difference.
SMALLEST_PEAK: Final = 1e-6

# Shape and dtype by name, by kind, by entry.
Ports = Mapping[str, Mapping[str, Mapping[str, tuple[tuple[int, ...], str]]]]


@dataclass(frozen=True, slots=True)
class ExpectedValues:
    """Values of one output or state after a run.

    Attributes:
        kind: "output" or "state".
        name: of it.
        shape: of the whole array.
        values: those at `positions(size)`, of its dtype.
        tolerance: of floats a share of the largest expected value, of integers a difference.
        share: so many of the values, as a share of all, may be further off.
    """

    kind: str
    name: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    tolerance: float
    share: float

    def plain(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
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
    """One run: states and inputs of a seed, and what must come of them.

    Attributes:
        seed: what states and inputs are made of.
        entry: that is run.
        expected: of each output, and of each state that the entry writes.
    """

    __test__ = False  # pytest takes what is called Test for one of its own

    seed: int
    entry: str
    expected: tuple[ExpectedValues, ...]

    def plain(self) -> dict[str, Any]:
        """Return it as the manifest has it."""
        return {
            "seed": self.seed,
            "entry": self.entry,
            "expected": [e.plain() for e in self.expected],
        }


def plain_self_test(vectors: tuple[TestVector, ...]) -> dict[str, Any]:
    """Return the manifest's `self_test`; {} for no vectors."""
    return {"rule": RULE, "vectors": [v.plain() for v in vectors]} if vectors else {}


def positions(size: int) -> NDArray[np.int64]:
    """Return which elements of an array of `size` are kept, evenly spaced from the first on."""
    count = min(size, MAX_VALUES)
    return np.arange(count, dtype=np.int64) * size // max(count, 1)


def parse_vectors(manifest: Mapping[str, Any], ports: Ports) -> tuple[TestVector, ...]:
    """Check `self_test` of a manifest and return its vectors, () where it has none.

    Raises:
        ArtifactError: names the first field that is wrong.
    """
    raw = Fields(manifest.get("self_test", {}), "self_test")
    if not raw.value:
        return ()
    rule = raw.number("rule", 1, 2**31)
    if rule != RULE:
        raise ArtifactError(
            f"self_test.rule: {rule}, this version knows {RULE}; compile the model again with this "
            "version"
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
    kind, name = fields.choice("kind", KINDS), fields.text("name")
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
