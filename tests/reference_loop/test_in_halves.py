"""A model in halves publishes what the same model in float32 does, whose weights are halves.

Both read and return float32, so all that could differ are roundings in between, of which wide
halves (docs/adr/0045-half-precision.md) have none. What is allowed are the regression's tolerances.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.narrow_models import in_halves
from runtime import load_program
from scheduler.compile import compile_driving
from tests.reference_loop.compare import series_of
from tests.reference_loop.drive import CAR, Drive, make_drive
from tests.reference_loop.product import play
from tests.reference_loop.revisions import TABLE
from tests.reference_loop.warps import Picture
from tests.scheduler.support.revisions import models_of
from tools.compare.tolerances import Tolerance, read_tolerances

pytestmark = pytest.mark.opencl
FRAMES = 40
FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
LISTS = re.compile(r"\b(laneLines|roadEdges|leadsV3|disengagePredictions)\b(?=\.)")


def with_halves(model: onnx.ModelProto, *, values: bool) -> onnx.ModelProto:
    """Return a model whose weights and float32 inputs are rounded to halves.

    Args:
        model: in float32, without nested graphs.
        values: they are halves as well, between float32 inputs and outputs.
    """
    made = in_halves(model) if values else onnx.ModelProto.FromString(model.SerializeToString())
    graph = made.graph
    constants = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    for tensor in (*graph.initializer, *constants) if not values else ():
        if tensor.data_type == FLOAT:
            half = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(half.astype(np.float32), tensor.name))
    inner, before, behind = {}, [], []
    for old, value in zip(model.graph.input, graph.input, strict=True):
        if old.type.tensor_type.elem_type == FLOAT:
            name = inner[value.name] = f"{value.name}_inner"
            value.type.tensor_type.elem_type = FLOAT
            before.append(_cast(value.name, name if values else f"{name}_half", HALF))
            if not values:
                before.append(_cast(f"{name}_half", name, FLOAT))
    for old, value in zip(model.graph.output, graph.output, strict=True):
        if values and old.type.tensor_type.elem_type == FLOAT:
            inner[value.name] = f"{value.name}_inner"
            value.type.tensor_type.elem_type = FLOAT
            behind.append(_cast(inner[value.name], value.name, FLOAT))
    for node in graph.node:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    del graph.node[:]
    graph.node.extend([*before, *nodes, *behind])
    return made


def _cast(source: str, target: str, code: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=code)


def published(name: str, drive: Drive, to: Path, *, values: bool) -> list[Any]:
    """Return the messages of a revision's example in halves."""
    to.mkdir()
    for role, path in models_of(name).items():
        onnx.save(with_halves(onnx.load(path), values=values), to / f"{role}.onnx")
    models = [to / f"{role}.onnx" for role in models_of(name)]
    compile_driving(models, interface=name).write(to / "driving.pkl")
    with load_program(to / "driving.pkl") as program:
        return play(program, CAR, drive)


def beyond(expected: Sequence[Any], found: Sequence[Any]) -> dict[str, int]:
    """Return fields that are further apart than the regression lets, each with its first frame."""
    ours, theirs, table = series_of(expected), series_of(found), read_tolerances()
    assert ours.keys() == theirs.keys()
    wrong: dict[str, int] = {}
    for field, by_frame in ours.items():
        service, _, rest = field.partition(".")
        allowed = table.of(service, LISTS.sub(r"\1[]", rest).replace("@valid", ".valid"))
        for index, values in by_frame.items():
            if not allowed.ignore and not near(values, theirs[field].get(index, []), allowed):
                wrong.setdefault(field, index)
    return wrong


def near(values: list[Any], others: list[Any], allowed: Tolerance) -> bool:
    if not values or not isinstance(values[0], float):
        return values == others
    a, b = np.array(values), np.array(others)
    size = np.maximum(np.abs(a), np.abs(b))
    limit = np.maximum(allowed.absolute, allowed.relative * size)
    return a.shape == b.shape and bool(((np.abs(a - b) <= limit) | (a == b)).all())


@pytest.mark.slow  # kernels of wide halves have quick tests in tests/scheduler/passes
@pytest.mark.parametrize("name", TABLE)
def test_messages_are_those_of_float32_with_weights_of_halves(
    name: str, pictures: list[Picture], tmp_path: Path
) -> None:
    drive = make_drive(pictures, FRAMES)
    wide, plain = (
        published(name, drive, tmp_path / str(values), values=values) for values in (True, False)
    )
    assert sum(map(bool, wide)) > FRAMES // 2
    assert beyond(plain, wide) == {}
