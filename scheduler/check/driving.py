"""The self-check of a driving program: its models beside a reference, then itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runtime.format.artifact import from_memory
from runtime.format.interfaces import parse_interface
from runtime.opencl.device import Device, choose_device
from runtime.opencl.program_cache import shared_cache
from runtime.run.entry import TensorSpec
from runtime.run.executor import Program
from scheduler.check.runs import copied
from scheduler.check.self_check import Array, Arrays, Report, Seen, different, round_trip, verify
from scheduler.compile import CompiledModel, CompileOptions, compile_plain, driving_sizes
from scheduler.onnx_import import OnnxModel, load_model

FRAMES = 4
# Width, height, stride and offset of the chroma plane: small enough for any capacity.
GEOMETRY = (320, 200, 384, 384 * 200)
PAYLOAD_BYTES = 384 * (200 + 100)
ONE_OF_SEVERAL = ("desire", "traffic_convention")


def verify_driving(
    compiled: CompiledModel,
    models: Sequence[str | Path | OnnxModel],
    options: CompileOptions,
    device: Device | str | None = None,
) -> list[Report]:
    """Compare the models of a driving program with a reference, and the program with itself.

    Each model is compiled as a plain one for this. The outputs of a few frames must be finite,
    differ from frame to frame, and be the same after a reset. Arguments and errors are those of
    `verify`.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    interface = parse_interface(compiled.manifest["metadata"]["interface"])
    reports = []
    for source in models:
        model = source if isinstance(source, OnnxModel) else load_model(source)
        plain = compile_plain(model, bind=driving_sizes(model, interface), **options)
        reports.append(verify(plain, source, opened))
    return [*reports, _verify_frames(compiled, opened)]


def _verify_frames(compiled: CompiledModel, device: Device) -> Report:
    failures: list[str] = []
    seen: list[Seen] = []
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
    # Only the first entry finds the states of a program that was just loaded.
    failures += round_trip(compiled, device, seen[:1])
    name = str(compiled.manifest["name"])
    return Report(name, "itself, after a reset", FRAMES, (), (), (), (), tuple(failures))


def _frame_failures(entry: str, first: Sequence[Arrays], again: Sequence[Arrays]) -> list[str]:
    found = []
    for name in first[0]:
        if not all(np.isfinite(run[name]).all() for run in first):
            found.append(f'{entry}: output "{name}" is not finite')
        if any(different({name: a[name]}, b) for a, b in zip(first, again, strict=True)):
            found.append(f'{entry}: output "{name}" is not the same after a reset')
        if not any(different({name: first[0][name]}, run) for run in first[1:]):
            found.append(f'{entry}: output "{name}" is the same for all frames')
    return found


def _frames(specs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """Return inputs of a few frames: noise, seen by a camera that the model sees a part of."""
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
