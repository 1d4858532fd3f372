"""The self-check of a driving program: its two models beside a reference, then itself.

Called by `modeld compile --verify`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from runtime.artifact import from_memory
from runtime.device import Device, choose_device
from runtime.entry import TensorSpec
from runtime.executor import Program
from runtime.program_cache import shared_cache
from scheduler.check.runs import copied
from scheduler.check.self_check import Array, Arrays, Report, Seen, different, round_trip, verify
from scheduler.compile import CompiledModel, CompileOptions, compile_plain, driving_sizes
from scheduler.onnx_import import OnnxModel, load_model

# For each camera.
FRAMES = 4


def verify_driving(
    compiled: CompiledModel,
    models: Mapping[str, str | Path | OnnxModel],
    options: CompileOptions,
    device: Device | str | None = None,
) -> list[Report]:
    """Compare the models of a driving program with a reference, and the program with itself.

    Each model is compiled as a plain one for this. The program is run on a few frames, for each
    camera: outputs must be finite, differ from frame to frame, and be the same after a reset.

    Args:
        compiled: by `compile_driving`.
        models: role -> what it was compiled from.
        options: what it was compiled with.
        device: as for `verify`.

    Raises:
        NoDeviceError, BuildError, RuntimeFault, ModelError: as `verify`.
    """
    opened = device if isinstance(device, Device) else choose_device(device)
    reports = []
    for source in models.values():
        model = source if isinstance(source, OnnxModel) else load_model(source)
        plain = compile_plain(model, bind=driving_sizes(model), **options)
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
                frame[spec.name] = rng.integers(0, 256, spec.shape).astype(np.uint8)
            elif spec.name.endswith("_transform"):
                shift = [[0.5, 0.0, 8.0 * index], [0.0, 0.5, 4.0], [0.0, 0.0, 1.0]]
                frame[spec.name] = np.array(shift, spec.dtype)
            else:  # one of several: a desire, the side of the road
                hot = np.zeros(spec.shape, spec.dtype)
                hot.reshape(-1)[index % hot.size] = 1
                frame[spec.name] = hot
        frames.append(frame)
    return frames
