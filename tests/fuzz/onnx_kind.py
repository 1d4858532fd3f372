"""Kind `onnx`: random models, imported against onnxruntime or onnx, compiled against the graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from scheduler.context import FAST, CompileContext, Stages
from scheduler.device.spec import SPECS
from scheduler.ir.dtype import float64
from scheduler.ir.node import toposort
from scheduler.onnx_import import import_model
from scheduler.onnx_import.context import run_time_inputs
from scheduler.passes.halves.precision import FP16
from scheduler.pipeline import schedule
from scheduler.tensor.tensor import Tensor
from tests.fuzz.case import Case, Name, Variant
from tests.fuzz.judge import Judge
from tests.fuzz.onnx_programs import Feeds, by_onnx, by_onnxruntime, model_of
from tests.fuzz.rounding import Known

Array = NDArray[Any]
# Of what others compute in another order, with other functions: see numerics.md, "How close".
FLOAT_TOLERANCE = 2e-5
HALF_TOLERANCE = 4e-3
# onnxruntime's tanh and sigmoid are polynomials: some 1e-7 away, however small the value is (seen
# in an LSTM whose states are 1e-6, multiplied by 41 afterwards).
ABSOLUTE_TOLERANCE = 2e-6
# Models that are computed with `--precision fp16`.
HALF_EVERY = 4


def make(name: Name, numerics: str = FAST) -> Case:
    """Return a model as a program, some with halves stored."""
    return with_precision(model(name), numerics)


def with_precision(case: Case, numerics: str = FAST) -> Case:
    """Return some programs as they are with halves stored, others as they are."""
    name = case.name
    if name.seed % HALF_EVERY != 1 or case.problem or not case.outputs:
        return case
    stored = _with_halves(case.outputs, name.row, numerics)
    variant = Variant(f"{case.variants[0].label} fp16", case.outputs, precision=FP16)
    return Case(name, stored, [variant], case.runs)


def model(name: Name) -> Case:
    """Return a model as it is; what is wrong with its import is its problem."""
    return imported_case(name, *model_of(name.seed))


def imported_case(name: Name, proto: onnx.ModelProto, feeds: Feeds, label: str) -> Case:
    """Return a model, its import compared with onnxruntime or onnx."""
    imported = import_model(proto)
    tensors = list(imported.outputs.values())
    known = _judged(tensors, feeds)
    problem = _disagreement(known, by_onnxruntime(proto, feeds), feeds, proto)
    outputs = {n: t for n, t in imported.outputs.items() if t.size and _has_types(t, name.row)}
    read = {i for t in outputs.values() for i in run_time_inputs(t)}
    given = {n: v for n, v in feeds.items() if n in read}
    variants = [Variant(label, outputs)]
    return Case(name, outputs, variants, [given], problem=problem)


def _with_halves(outputs: Mapping[str, Tensor], row: str, numerics: str) -> dict[str, Tensor]:
    """Return what the outputs mean where halves are stored."""
    stages = Stages()
    context = CompileContext(SPECS[row], precision=FP16, numerics=numerics, stages=stages)
    schedule({n: t.node for n, t in outputs.items()}, context=context)
    name, roots = stages.graphs[-1]
    assert name == "half storage"
    return {n: Tensor.of(root) for n, root in zip(outputs, roots, strict=True)}


def _has_types(tensor: Tensor, row: str) -> bool:
    return SPECS[row].float64 or all(n.dtype is not float64 for n in toposort([tensor.node]))


def _judged(tensors: Sequence[Tensor], feeds: Feeds) -> list[Known]:
    judge = Judge(feeds)
    return [judge.of(t.node) for t in tensors]


def _disagreement(
    known: Sequence[Known], reference: Sequence[Array] | None, feeds: Feeds, model: onnx.ModelProto
) -> str:
    """Return how an import differs from onnxruntime, unless onnx's own evaluator agrees."""
    first = "" if reference is None else _differs(known, reference)
    if reference is not None and not first:
        return ""
    other = by_onnx(model, feeds)
    if other is None:
        return f"onnxruntime: {first}" if first else ""
    second = _differs(known, other)
    return f"onnxruntime: {first or 'cannot'}; onnx: {second}" if second else ""


def _differs(known: Sequence[Known], reference: Sequence[Array]) -> str:
    for i, (ours, theirs) in enumerate(zip(known, reference, strict=True)):
        value = ours.value
        if value.shape != theirs.shape or value.dtype.kind != theirs.dtype.kind:
            if theirs.dtype.kind in ("V", value.dtype.kind):
                continue  # carried types
            return f"output {i}: {value.dtype}{value.shape}, expected {theirs.dtype}{theirs.shape}"
        wrong = _outside(ours, theirs)
        if wrong.any():
            at = tuple(int(j) for j in np.argwhere(wrong)[0])
            found = f"ours {value[at]!r}, theirs {theirs[at]!r}"
            return f"output {i} at {list(at)}: {found} ({int(wrong.sum())} differ)"
    return ""


def _outside(ours: Known, theirs: Array) -> Array:
    """Whether elements of a reference are beyond what rounding explains."""
    value = ours.value
    a, b = value.astype(np.float64), theirs.astype(np.float64)
    if value.dtype.kind != "f":
        near = (ours.error > 0) & (np.abs(a - b) <= ours.error)
        return np.asarray((value != theirs) & ~near)
    with np.errstate(all="ignore"):
        finite = np.isfinite(b)
        tolerance = HALF_TOLERANCE if value.dtype == np.float16 else FLOAT_TOLERANCE
        scale = float(np.abs(b[finite]).max(initial=0.0))
        limit = 4 * ours.error + tolerance * (np.abs(b) + min(scale, 1e6)) + ABSOLUTE_TOLERANCE
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        return np.asarray(~same & ~(np.abs(a - b) <= limit) & ~np.isinf(ours.error))
