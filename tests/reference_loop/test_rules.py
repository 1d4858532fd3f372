"""What the reference's equality with the product does not say of it: it is plain, and compares.

Rules of the car, of heads and of angles are worked by hand in tests/modeld, the warp on the device
in tests/scheduler/driving/test_warp.py: the reference equals those that are tested there.
"""

import ast
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.reference_loop.compare import differences
from tests.reference_loop.warps import Picture, bilinear, nearest, view

OURS = {"cereal", "runtime", "scheduler", "modeld", "tools"}
# Beside the reference: what plays a drive through the product, and the tests.
BESIDE = {"product.py", "drive.py", "conftest.py"}


def test_the_reference_imports_nothing_of_the_packages() -> None:
    files = [p for p in Path(__file__).parent.glob("*.py") if p.name not in BESIDE]
    files = [p for p in files if not p.name.startswith("test_")]
    allowed = {f"tests.reference_loop.{path.stem}" for path in files}
    assert "tests.reference_loop.loop" in allowed
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names.append(str(node.module))
            for name in names:
                assert name.split(".")[0] not in OURS, (path.name, name)
                assert not name.startswith("tests") or name in allowed, (path.name, name)


PLANE = np.array([[0, 100], [50, 200]], np.uint8)


def moved(x: float, y: float = 0.0, scale: float = 1.0, w: float = 1.0) -> np.ndarray:
    return np.array([[scale, 0, x], [0, scale, y], [0, 0, w]], np.float32)


@pytest.mark.parametrize(
    ("warp", "m", "seen"),
    [
        # Half a pixel right and down: the mean of four, 87.5, rounds up; the border repeats.
        (bilinear, moved(0.5, 0.5), [[88, 150], [125, 200]]),
        # 1/32 of the way from 0 to 100: 3.125; less than half of 1/32 is none of it.
        (bilinear, moved(1 / 32), [[3]]),
        (bilinear, moved(1 / 70), [[0]]),
        (bilinear, moved(0, 0, 0, 0), [[0, 0], [0, 0]]),
        # 0.5 and 1.5 round to even: 0 and 2, which the border makes 1.
        (nearest, moved(0.5), [[0, 100], [50, 200]]),
        (nearest, moved(6, 6, 0), [[200]]),
        (nearest, moved(0, 0, 0, 0), [[0, 0], [0, 0]]),
    ],
)
def test_warps_by_hand(warp: Any, m: np.ndarray, seen: list[list[int]]) -> None:
    size = (len(seen), len(seen[0]))
    assert warp(PLANE, m, size).tolist() == seen
    # Columns of a wider buffer are no part of the plane.
    assert warp(np.tile(PLANE, 3)[:, 2:4], m, size).tolist() == seen


def test_channels_are_rows_before_columns() -> None:
    luma = np.arange(256 * 512, dtype=np.uint32).astype(np.uint8)
    data = np.concatenate([luma, np.zeros(256 * 256, np.uint8)])
    found = view(Picture(data, 512, 256, 512, 256 * 512, 0), moved(0), "nearest")
    rows = luma.reshape(256, 512)
    assert found[:4, 0, 0].tolist() == [rows[0, 0], rows[1, 0], rows[0, 1], rows[1, 1]]


def message(**fields: object) -> dict[str, dict[str, Any]]:
    return {"m": {"id": 3, "list": [0.0, 1000.0], "lines": [{"t": [0.5]}], **fields}}


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (message(list=[0.11, 1000.0]), "m.list"),
        (message(list=[0.0, math.nan]), "m.list"),
        (message(list=[0.0]), "m.list"),
        (message(id=4), "m.id"),
        (message(lines=[{"t": [0.50001]}]), "m.lines.t"),
        (message(extra=[1.0]), "m.extra"),
    ],
)
def test_a_field_that_differs_is_named(other: dict[str, dict[str, Any]], field: str) -> None:
    (line,) = differences([message(), None, message()], [other, None, message()])
    assert line.startswith(field)


def test_what_is_equal_enough_and_who_is_silent() -> None:
    same: list[Any] = [message(), None, message()]
    assert differences(same, same) == []
    assert differences(same, [message(list=[0.09, 999.91]), None, message(extra=[], none=0)]) == []
    (line,) = differences(same, [message(), message(), None])
    assert "[1, 2]" in line
