"""Does a compiled model compute what the ONNX file says? Run on the device, beside a reference.

`verify` is for plain models, `driving_check` for driving programs. The artifact is also written to
a temporary file, loaded and run again: its outputs must be the same bits. What was found is a
`Report`; a difference raises nothing until `Report.require` is called.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from runtime.artifact import from_memory
from runtime.device import Device, choose_device
from runtime.executor import Program, load_program
from runtime.program_cache import shared_cache
from scheduler.compile import CompiledModel
from scheduler.errors import SelfCheckError
from scheduler.node import toposort
from scheduler.onnx_backend_arrays import from_storage, to_storage
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model, load_model
from scheduler.onnx_import.element_types import storage_dtype
from scheduler.ops import Op
from scheduler.output_check import OutputCheck, check_output, check_parts
from scheduler.reference_runner import Reference
from scheduler.sample_inputs import sample_inputs
from scheduler.tensor import Tensor

Array = NDArray[Any]
Arrays = Mapping[str, Array]

SEEDS = 2
# An output that did not change gets this many seeds in all before anybody hears of it.
MOST_SEEDS = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What a self-check found.

    Attributes:
        model: name of what was checked.
        reference: the implementation it was compared with, and why not onnxruntime.
        seeds: how many sets of inputs were run.
        outputs: the worst comparison of each output over all seeds, worst first.
        parts: the same for each output slice by its own largest value, for information.
        constant: outputs that depend on no input.
        unchanged: outputs that never changed, neither here nor in the reference.
        failures: one sentence each; empty if all is well.
    """

    model: str
    reference: str
    seeds: int
    outputs: tuple[OutputCheck, ...]
    parts: tuple[OutputCheck, ...]
    constant: tuple[str, ...]
    unchanged: tuple[str, ...]
    failures: tuple[str, ...]

    def require(self) -> None:
        """Do nothing if all is well.

        Raises:
            SelfCheckError: names the outputs, how far they are off, and what to try.
        """
        if self.failures:
            raise SelfCheckError(f"{self.model}: {'; '.join(self.failures)}")

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "model": self.model,
            "reference": self.reference,
            "seeds": self.seeds,
            "outputs": [_plain(check) for check in self.outputs],
            "parts": [_plain(check) for check in self.parts],
            "constant": list(self.constant),
            "unchanged": list(self.unchanged),
            "failures": list(self.failures),
        }


def _plain(check: OutputCheck) -> dict[str, Any]:
    return {
        "name": check.name,
        "max_abs": check.max_abs,
        "max_rel": check.max_rel,
        "where": None if check.where is None else list(check.where),
        "part": check.part,
        "tolerance": check.tolerance,
        "problem": check.problem,
    }


def verify(
    compiled: CompiledModel,
    source: str | Path | OnnxModel,
    device: Device | str | None = None,
) -> Report:
    """Compare a plain model with a reference on seeded inputs (see `sample_inputs`).

    Args:
        compiled: by `compile_plain`; with or without binaries.
        source: what it was compiled from.
        device: to run it on, as for `runtime.load_program`.

    Raises:
        NoDeviceError, BuildError, RuntimeFault: it cannot be run.
        ModelError: no reference can run the model.
    """
    model = source if isinstance(source, OnnxModel) else load_model(source)
    opened = device if isinstance(device, Device) else choose_device(device)
    imported = _import_as_compiled(model, _input_shapes(compiled))
    constant = _constant_outputs(imported)
    reference = Reference(source)
    runs = _run_both(compiled, model, reference, opened, constant)
    half = bool(compiled.manifest["metadata"].get("precision")) or _has_halves(model)
    checks, parts = _worst(runs, half=half, slices=imported.metadata.output_slices)
    still = _unchanged(runs, constant)
    stuck = [name for name in still if not _is_still(runs, name, half=half)]
    advice = _advice(compiled)
    failures = [f'output "{c.name}"{_at(c)} is {c.problem}; {advice}' for c in checks if c.problem]
    failures += [f'output "{n}" is the same for all inputs, not in the reference' for n in stuck]
    failures += round_trip(compiled, opened, [("run", run.given, run.raw) for run in runs])
    why = f" ({reference.why_not})" if reference.why_not else ""
    return Report(
        model.name,
        f"{reference.name}{why}",
        len(runs),
        tuple(checks),
        tuple(parts),
        constant,
        tuple(name for name in still if name not in stuck),
        tuple(failures),
    )


def _input_shapes(compiled: CompiledModel) -> dict[str, tuple[int, ...]]:
    buffers = compiled.manifest["buffers"]
    used = (buffers[index] for index in compiled.manifest["entries"]["run"]["inputs"])
    return {buffer["name"]: tuple(buffer["shape"]) for buffer in used}


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Inputs and outputs as the device has them; outputs of both as the model types them."""

    given: dict[str, Array]
    raw: dict[str, Array]
    found: dict[str, Array]
    expected: dict[str, Array]


def _run_both(
    compiled: CompiledModel,
    model: OnnxModel,
    reference: Reference,
    device: Device,
    constant: Sequence[str],
) -> list[_Run]:
    """Run both on seeded inputs, until every output that can change has changed or seeds end."""
    codes = {
        v.name: v.type.tensor_type.elem_type for v in (*model.inputs, *model.proto.graph.output)
    }
    shapes = _input_shapes(compiled)
    runs: list[_Run] = []
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:
        while len(runs) < SEEDS or (len(runs) < MOST_SEEDS and _unchanged(runs, constant)):
            feeds = sample_inputs(model, shapes, np.random.default_rng(len(runs)))
            given = {name: to_storage(array, codes[name]) for name, array in feeds.items()}
            raw = copied(program.run(given))
            found = {name: from_storage(array, codes[name]) for name, array in raw.items()}
            runs.append(_Run(given, raw, found, reference.run(feeds)))
    return runs


def _worst(
    runs: Sequence[_Run], *, half: bool, slices: Mapping[str, tuple[int, int]]
) -> tuple[list[OutputCheck], list[OutputCheck]]:
    """Return the worst comparison of each output, and of each output slice, worst first."""
    outputs: dict[str, OutputCheck] = {}
    parts: dict[str, OutputCheck] = {}
    width = max((stop for _, stop in slices.values()), default=0)
    for run in runs:
        for name, expected in run.expected.items():
            found = run.found[name]
            inside = slices if expected.ndim and expected.shape[-1] >= width else {}
            _keep(outputs, check_output(name, found, expected, half=half, slices=inside))
            if found.shape == expected.shape:
                for part in check_parts(name, found, expected, inside):
                    _keep(parts, part)
    order: list[list[OutputCheck]] = [
        sorted(checks.values(), key=lambda check: -check.excess) for checks in (outputs, parts)
    ]
    return order[0], order[1]


def _keep(worst: dict[str, OutputCheck], check: OutputCheck) -> None:
    if check.name not in worst or check.excess > worst[check.name].excess:
        worst[check.name] = check


def _unchanged(runs: Sequence[_Run], constant: Sequence[str]) -> list[str]:
    """Return the outputs that depend on an input, but are the same for all seeds."""
    return [
        name
        for name, first in runs[0].raw.items()
        if name not in constant
        and first.size
        and all(run.raw[name].tobytes() == first.tobytes() for run in runs[1:])
    ]


def _is_still(runs: Sequence[_Run], name: str, *, half: bool) -> bool:
    """Whether the reference did not change either, but for roundings."""
    first = runs[0].expected[name]
    return not any(check_output(name, r.expected[name], first, half=half).problem for r in runs[1:])


def _has_halves(model: OnnxModel) -> bool:
    values = (*model.inputs, *model.proto.graph.output)
    return any(v.type.tensor_type.elem_type == TensorProto.FLOAT16 for v in values) or any(
        array.dtype == np.float16 for array in model.constants.values()
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
    """Return what differs after the artifact went through its file, one sentence each.

    Args:
        compiled: what is written to a temporary file.
        device: to run it on.
        seen: in the order in which they were run after a reset.
    """
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


def copied(outputs: Arrays) -> dict[str, Array]:
    """Return outputs that the next run does not overwrite."""
    return {name: array.copy() for name, array in outputs.items()}
