"""Bounds of run-time integers: an index that is known to be inside is not tested."""

from collections.abc import Callable

import numpy as np
import pytest

from scheduler.context import CompileContext
from scheduler.debug.kernel_table import source_of
from scheduler.device.spec import SPECS
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import emitted, loaded

SIZE = 600
LARGEST = 2**31 - 1
ENDS = [0, 1, 5, 31, 254, 255, 256, 599, 600, 601, 65535, LARGEST]
GIVEN = np.array([*ENDS, *(-n - 1 for n in ENDS)], np.int32)
Index = Callable[[Tensor], Tensor]
# The index, of a Tensor or an array, and how often lanes are chosen for it.
CASES: dict[str, tuple[Index, int]] = {
    "any": (lambda i: i, 3),
    "masked": (lambda i: i & 511, 0),
    "masked by too much": (lambda i: i & 1023, 1),
    "clipped": (lambda i: i.clip(0, 599), 2),
    "clipped, from the end": (lambda i: i.clip(-600, 599), 2 + 1),
    "one too far": (lambda i: i.clip(0, 600), 2 + 1),
    "one too far below": (lambda i: i.clip(-601, 599), 2 + 2),
    "of arithmetic": (lambda i: 599 - (i.clip(-4, 5) + 4) * 7, 2),
    "a sum that wraps around": (lambda i: i.clip(0, LARGEST) + 1, 2 + 3),
    "shifted": (lambda i: (i >> 22) + 512, 1),
}


@pytest.mark.opencl
def test_an_index_is_tested_as_far_as_its_bounds_do_not() -> None:
    i, x = Tensor.input("i", (GIVEN.size,), dt.int32), Tensor.input("x", (SIZE,))
    values, context = np.arange(SIZE, dtype=np.float32), CompileContext(SPECS["cpu"])
    outputs = {f"y{n}": x.gather(of(i)) for n, (of, _) in enumerate(CASES.values())}
    for (name, (_, chosen)), output in zip(CASES.items(), outputs.values(), strict=True):
        manifest = emitted({"y": output}, (), context).manifest
        text = source_of(manifest, manifest["kernels"][0]["name"])
        assert text.count("M_CHOOSE(") == chosen, f"{name}: {text}"
    made = emitted(outputs, (), context)
    with loaded(made.manifest, made.data) as program:
        found = program.run({"i": GIVEN, "x": values})
    for (name, (of, _)), y in zip(CASES.items(), outputs, strict=True):
        rows = np.asarray(of(GIVEN))  # type: ignore[arg-type]
        expected = np.clip(np.where(rows < 0, rows + np.int64(SIZE), rows), 0, SIZE - 1)
        assert np.array_equal(found[y], values[expected]), name


@pytest.mark.opencl
@pytest.mark.parametrize("kind", [dt.int8, dt.uint8, dt.int16, dt.uint32, dt.int64, dt.uint64])
def test_indices_of_every_type_stay_inside(kind: dt.DType) -> None:
    least, most = int(dt.min_value(kind)), int(dt.max_value(kind))
    given = [v for v in (0, 1, 100, 127, 599, 600, -1, -128, -600, -601, least, most) if least <= v]
    given = [v for v in given if v <= most]
    i, x = Tensor.input("i", (len(given),), kind), Tensor.input("x", (SIZE,))
    made = emitted({"y": x.gather(i)}, (), CompileContext(SPECS["cpu"]))
    values = np.arange(SIZE, dtype=np.float32)
    expected = [min(max(v + SIZE if v < 0 else v, 0), SIZE - 1) for v in given]
    with loaded(made.manifest, made.data) as program:
        found = program.run({"i": np.array(given, kind.np), "x": values})["y"]
    assert found.tolist() == expected
