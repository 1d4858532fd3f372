"""The self-check: compares a compiled model on a device with a reference implementation.

`verify` checks plain models, `verify_driving` driving programs. If a difference exceeds the
tolerance, `Arbiter` evaluates the model in float64 and decides whether it is a failure. The
artifact is also written, loaded and run again, which must give the same bits. Failures are
collected in a `Report`; its `require` raises an error for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.format.artifact import from_memory
from runtime.format.interfaces import parse_interface
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.entry import TensorSpec
from runtime.run.executor import Program, load_program
from scheduler.check.outputs import Arbiter, OutputCheck, Rounding, check_output, rounding_of
from scheduler.check.references import Reference
from scheduler.check.runs import Run, Subject, copied, input_shapes, judged, run_both, unchanged
from scheduler.check.sample_inputs import Kind
from scheduler.compile import CompiledModel, CompileOptions, compile_plain, driving_sizes
from scheduler.errors import SelfCheckError
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import ImportedModel, OnnxModel, import_model, load_model
from scheduler.onnx_import.element_types import storage_dtype
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]
Arrays = Mapping[str, Array]
# Entry, inputs, and outputs of an earlier run.
_Seen = tuple[str, Arrays, Arrays]

# Number of frames that a driving program is checked with.
FRAMES = 4
# The NV12 frames: width and height in pixels, stride in bytes, byte offset of the chroma plane.
GEOMETRY = (320, 200, 384, 384 * 200)
# Size of a frame: 200 rows of luma and 100 of chroma. An artifact's frame buffer is usually larger.
PAYLOAD_BYTES = 384 * (200 + 100)
# Inputs that are one-hot vectors.
ONE_OF_SEVERAL = ("desire", "traffic_convention")


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a self-check."""

    model: str  # name of the checked model
    reference: str  # name of the reference, and the reason if it is not onnxruntime
    seeds: int  # number of sets of standard normal inputs; for a driving program, of frames
    outputs: tuple[OutputCheck, ...]  # the worst comparison of each output, worst first
    # the worst comparison of each named output slice, relative to its own largest value
    parts: tuple[OutputCheck, ...]
    constant: tuple[str, ...]  # outputs that depend on no input
    # outputs that depend on an input but were the same for all inputs, here and in the reference
    unchanged: tuple[str, ...]
    failures: tuple[str, ...]  # one sentence each; empty if the check passed
    kinds: tuple[str, ...] = ()  # the kinds of inputs that were run besides standard normals
    left_out: tuple[str, ...] = ()  # the skipped kinds of inputs, each with the reason
    reason: str = ""  # the reason for a larger tolerance than usual, or ""

    def require(self) -> None:
        """Raise SelfCheckError if there are failures; the message lists them with advice."""
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

    `source` is the model it was compiled from. `device` is as for `runtime.load_program`.

    Raises:
        NoDeviceError, BuildError, RuntimeFault: the program cannot be run.
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
    failures += [f'output "{n}" is the same for all inputs, unlike in the reference' for n in stuck]
    failures += _round_trip(compiled, opened, [("run", run.given, run.raw) for run in runs])
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


def verify_driving(
    compiled: CompiledModel,
    models: Sequence[str | Path | OnnxModel],
    options: CompileOptions,
    device: Device | str | None = None,
) -> list[Report]:
    """Compare the models of a driving program with a reference, and check the whole program.

    Each model is compiled as a plain program for its comparison. The outputs of the driving program
    for a few frames must be finite, differ between frames, and be reproduced after a reset.
    `models` and `options` are those of the compilation. The last report is about the whole program.
    Errors are those of `verify`.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    interface = parse_interface(compiled.manifest["metadata"]["interface"])
    reports = []
    for source in models:
        model = source if isinstance(source, OnnxModel) else load_model(source)
        plain = compile_plain(model, bind=driving_sizes(model, interface), **options)
        reports.append(verify(plain, source, opened))
    return [*reports, _verify_frames(compiled, opened)]


def _import_as_compiled(model: OnnxModel, shapes: Mapping[str, tuple[int, ...]]) -> ImportedModel:
    """Import a model again, with the sizes to which its symbolic dimensions were bound."""
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
    """Whether the reference's output is also the same in all runs, except for rounding."""
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


def _round_trip(compiled: CompiledModel, device: Device, seen: Iterable[_Seen]) -> list[str]:
    """Write the artifact, load it, and return a message if it gives other bits, else nothing.

    `seen` are the entries to run, in this order, with inputs and expected outputs.
    """
    with tempfile.TemporaryDirectory(prefix="modeld-verify-") as directory:
        path = Path(directory) / "model.pkl"
        compiled.write(path)
        with load_program(path, device) as program:
            for entry, given, before in seen:
                names = _different(before, program.run(given, entry))
                if names:
                    what = f"{entry} returns different values for {', '.join(names)}"
                    return [f"after writing and loading the artifact, {what}; report the model"]
    return []


def _different(before: Arrays, after: Arrays) -> list[str]:
    """Return the names of outputs that are not bitwise equal."""
    return [name for name in before if before[name].tobytes() != after[name].tobytes()]


def _verify_frames(compiled: CompiledModel, device: Device) -> Report:
    """Check the outputs of a driving program for a few frames, before and after a reset."""
    failures: list[str] = []
    seen: list[_Seen] = []
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:
        for entry in program.entries:
            if not program.entry_outputs(entry):
                continue
            frames = _frames(program.entry_inputs(entry))
            program.reset()
            first = [copied(program.run(frame, entry)) for frame in frames]
            program.reset()
            again = [copied(program.run(frame, entry)) for frame in frames]
            failures += _frame_failures(entry, first, again)
            program.reset()
            seen.append((entry, frames[0], copied(program.run(frames[0], entry))))
    # Only the first entry starts with the states of a freshly loaded program.
    failures += _round_trip(compiled, device, seen[:1])
    name = str(compiled.manifest["name"])
    # The four empty fields are for comparisons with a reference.
    return Report(name, "itself, after a reset", FRAMES, (), (), (), (), tuple(failures))


def _frame_failures(entry: str, first: Sequence[Arrays], again: Sequence[Arrays]) -> list[str]:
    found = []
    for name in first[0]:
        if not all(np.isfinite(run[name]).all() for run in first):
            found.append(f'{entry}: output "{name}" is not finite')
        if any(_different({name: a[name]}, b) for a, b in zip(first, again, strict=True)):
            found.append(f'{entry}: output "{name}" is not the same after a reset')
        if not any(_different({name: first[0][name]}, run) for run in first[1:]):
            found.append(f'{entry}: output "{name}" is the same for all frames')
    return found


def _frames(specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return the inputs of a few frames: noise, and a view that moves from frame to frame."""
    rng = np.random.default_rng(0)
    frames = []
    for index in range(FRAMES):
        frame: dict[str, Array] = {}
        for spec in specs:
            if spec.dtype == np.uint8:
                size = min(spec.shape[0], PAYLOAD_BYTES)
                frame[spec.name] = rng.integers(0, 256, size).astype(np.uint8)
            elif spec.name.endswith("_geometry"):
                frame[spec.name] = np.array(GEOMETRY, spec.dtype)
            elif spec.name.endswith("_transform"):
                shift = [[0.5, 0.0, 8.0 * index], [0.0, 0.5, 4.0], [0.0, 0.0, 1.0]]
                frame[spec.name] = np.array(shift, spec.dtype)
            elif spec.name in ONE_OF_SEVERAL:
                hot = np.zeros(spec.shape, spec.dtype)
                hot.reshape(-1)[index % hot.size] = 1
                frame[spec.name] = hot
            else:  # speeds and times
                frame[spec.name] = rng.uniform(0.1, 1.0, spec.shape).astype(spec.dtype)
        frames.append(frame)
    return frames
