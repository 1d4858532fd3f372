"""The tests that come with the onnx package: models, arrays in, arrays out.

Of one kind each: "node" (single operators, made by code), "simple", "pytorch-operator",
"pytorch-converted" (files), "light" (known networks with made-up weights).
"""

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

Values = list[Any]
KINDS = ("light", "pytorch-converted", "pytorch-operator", "simple", "node")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One test of onnx's suite: its kind, and what onnx's loader says of it."""

    kind: str
    source: TestCase

    @property
    def name(self) -> str:
        """Its id: unique, and what known failures are listed by."""
        return self.source.name if self.kind == "node" else f"{self.kind}/{self.source.name}"

    def model(self) -> onnx.ModelProto:
        return self.source.model or onnx.load(self._path())

    def data_sets(self, model: onnx.ModelProto) -> Iterator[tuple[Values, Values]]:
        """Yield inputs and expected outputs of each run."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_plain(x) for x in inputs], [_plain(x) for x in outputs]
        elif self.kind == "light":
            yield self._dummy_data(model)
        else:
            for directory in sorted(self._path().parent.glob("test_data_set*")):
                yield (
                    _read(directory, "input", model.graph.input),
                    _read(directory, "output", model.graph.output),
                )

    def _path(self) -> Path:
        if self.kind == "light":
            return Path(DATA_DIR) / "light" / Path(self.source.url or "").name
        return Path(self.source.model_dir or "") / "model.onnx"

    def _dummy_data(self, model: onnx.ModelProto) -> tuple[Values, Values]:
        """Return the made-up inputs that onnx stores the outputs of these networks for."""
        known = {tensor.name for tensor in model.graph.initializer}
        inputs = [
            Runner.generate_dummy_data(value, name=self.name)
            for value in model.graph.input
            if value.name not in known
        ]
        path = self._path()
        outputs = [
            numpy_helper.to_array(onnx.load_tensor(path.with_name(f"{path.stem}_output_{i}.pb")))
            for i in range(len(model.graph.output))
        ]
        return inputs, outputs


@functools.cache
def all_cases() -> tuple[SuiteCase, ...]:
    """Return every test, the long ones first, in the same order in every process."""
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # Expected values are computed with infinities and NaN on purpose.
        warnings.simplefilter("ignore")
        for kind in KINDS:
            loaded = load_model_tests(kind="real" if kind == "light" else kind)
            found += [SuiteCase(kind, case) for case in sorted(loaded, key=lambda c: c.name)]
    return tuple(found)


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    # Some expected scalars are no arrays.
    return np.asarray(value) if isinstance(value, np.generic) else value


def _read(directory: Path, role: str, values: Sequence[onnx.ValueInfoProto]) -> Values:
    """Return what the files `<role>_<n>.pb` hold."""
    found: Values = []
    for path, value in zip(_numbered(directory, role), values, strict=False):
        kind = value.type.WhichOneof("value")
        if kind == "sequence_type":
            sequence = onnx.SequenceProto.FromString(path.read_bytes())
            found.append(numpy_helper.to_list(sequence))
        else:
            found.append(numpy_helper.to_array(onnx.load_tensor(path)))
    return found


def _numbered(directory: Path, role: str) -> Iterator[Path]:
    number = 0
    while (path := directory / f"{role}_{number}.pb").exists():
        yield path
        number += 1
