"""The self-check: a compiled model runs on the device beside a reference.

`verify` is for plain models, `verify_driving` for driving programs. The artifact is also written,
loaded and run again: its outputs must be the same bits. A difference raises nothing until
`Report.require` is called.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runtime.opencl.device import Device, choose_device
from runtime.run.executor import load_program
from scheduler.check.arbitration import Arbiter
from scheduler.check.outputs import OutputCheck, Rounding, check_output, rounding_of
from scheduler.check.reference_runner import Reference
from scheduler.check.runs import Run, Subject, input_shapes, judged, run_both, unchanged
from scheduler.check.sample_inputs import Kind
from scheduler.compile import CompiledModel
from scheduler.errors import SelfCheckError
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model, load_model
from scheduler.onnx_import.element_types import storage_dtype
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]
Arrays = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings of a self-check."""

    model: str  # name of what was checked
    reference: str  # the implementation it was compared with, and why not onnxruntime
    seeds: int  # how many sets of standard normals were run
    outputs: tuple[OutputCheck, ...]  # the worst comparison of each output, worst first
    parts: tuple[OutputCheck, ...]  # the same for each output slice by its own largest value
    constant: tuple[str, ...]  # outputs that depend on no input
    unchanged: tuple[str, ...]  # outputs that never changed, neither here nor in the reference
    failures: tuple[str, ...]  # one sentence each; empty if all is well
    kinds: tuple[str, ...] = ()  # the other kinds of inputs that were run
    left_out: tuple[str, ...] = ()  # those that were not, with the reason
    reason: str = ""  # why more than the usual difference is allowed; "" if it is not

    def require(self) -> None:
        """Raise SelfCheckError on failures: the outputs, how far they are off, and what to try."""
        if self.failures:
            raise SelfCheckError(f"{self.model}: {'; '.join(self.failures)}")

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)


def verify(
    compiled: CompiledModel,
    source: str | Path | OnnxModel,
    device: Device | str | None = None,
) -> Report:
    """Compare a plain model with a reference on seeded inputs (see `sample_inputs`).

    `source` is what it was compiled from, `device` as for `runtime.load_program`.

    Raises:
        NoDeviceError, BuildError, RuntimeFault: it cannot be run.
        ModelError: no reference can run the model.
    """
    model = source if isinstance(source, OnnxModel) else load_model(source)
    opened = device if isinstance(device, Device) else choose_device(device)
    imported = _import_as_compiled(model, input_shapes(compiled))
    constant = _constant_outputs(imported)
    reference = Reference(source)
    rounding, reason = rounding_of(
        model, stores_halves=bool(compiled.manifest["metadata"].get("precision"))
    )
    subject = Subject(compiled, model, imported, rounding)
    runs, left_out = run_both(subject, reference, opened, constant)
    checks, parts = judged(runs, subject, Arbiter(source, rounding))
    normal = [run for run in runs if run.kind is Kind.NORMAL]
    still = unchanged(normal, constant)
    stuck = [name for name in still if not _is_still(normal, name, rounding)]
    advice = _advice(compiled)
    failures = [f'output "{c.name}"{_at(c)} is {c.problem}; {advice}' for c in checks if c.problem]
    failures += [f'output "{n}" is the same for all inputs, not in the reference' for n in stuck]
    failures += round_trip(compiled, opened, [("run", run.given, run.raw) for run in runs])
    why = f" ({reference.why_not})" if reference.why_not else ""
    return Report(
        model.name,
        f"{reference.name}{why}",
        len(normal),
        tuple(checks),
        tuple(parts),
        constant,
        tuple(name for name in still if name not in stuck),
        tuple(failures),
        tuple(dict.fromkeys(run.kind.value for run in runs if run.kind is not Kind.NORMAL)),
        tuple(f"{kind} ({why})" for kind, why in left_out.items()),
        reason,
    )


def _import_as_compiled(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> ImportedModel:
    """Import a model again, with the sizes that its symbolic dimensions were bound to."""
    inputs = {
        value.name: Tensor.input(
            value.name, shapes[value.name], storage_dtype(value.type.tensor_type.elem_type)
        )
        for value in model.inputs
        if value.name in shapes
    }
    return import_model(model, inputs)


def _constant_outputs(imported: ImportedModel) -> tuple[str, ...]:
    return tuple(
        name
        for name, output in imported.outputs.items()
        if not any(n.op is Op.BUFFER and n.arg.kind == "input" for n in toposort([output.node]))
    )


def _is_still(runs: Sequence[Run], name: str, rounding: Rounding) -> bool:
    """Whether the reference did not change either, but for roundings."""
    first = runs[0].expected[name]
    return not any(
        check_output(name, run.expected[name], first, rounding=rounding).problem for run in runs[1:]
    )


def _at(check: OutputCheck) -> str:
    if check.where is None:
        return ""
    part = f" ({check.part})" if check.part else ""
    return f" at [{', '.join(map(str, check.where))}]{part}"


def _advice(compiled: CompiledModel) -> str:
    if compiled.manifest["metadata"].get("precision"):
        return "try --precision fp32"
    return "try TUNED=0 SCHEDULE_CACHE=0, or another --device, and report the model"


# Entry, inputs, and the outputs that were seen.
Seen = tuple[str, Arrays, Arrays]


def round_trip(compiled: CompiledModel, device: Device, seen: Iterable[Seen]) -> list[str]:
    """Return what differs after writing and loading, for `seen` in order after a reset."""
    with tempfile.TemporaryDirectory(prefix="modeld-verify-") as directory:
        path = Path(directory) / "model.pkl"
        compiled.write(path)
        with load_program(path, device) as program:
            for entry, given, before in seen:
                names = different(before, program.run(given, entry))
                if names:
                    what = f"{entry} gives other values for {', '.join(names)}"
                    return [f"after it was written and loaded, {what}; report the model"]
    return []


def different(before: Arrays, after: Arrays) -> list[str]:
    """Return the names of outputs that are not the same, bit by bit."""
    return [name for name in before if before[name].tobytes() != after[name].tobytes()]
