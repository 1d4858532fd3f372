"""A driving artifact seen as a model: frames and vehicle state in, parsed outputs out.

Everything that depends on the model (camera sizes, output slices, what to do after a dropped frame)
comes from the artifact's metadata. Wraps a ``runtime`` Program; warp, queues, vision and policy run
inside it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.frames import FrameFormat
from modeld.errors import CameraSizeError, ModelInterfaceError
from modeld.frame_sync import FramePair
from modeld.output_layout import OutputLayout, read_output_layout
from modeld.parse_outputs import DrivingOutputs, OutputParser

INTERFACE: Final = "split-2025"
DROP_POLICIES: Final = ("skip", "run")


class DrivingProgram(Protocol):
    """The part of ``runtime.Program`` that the daemon uses."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The artifact's metadata."""

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Replay an entry; the outputs are reused by the next run."""

    def reset(self) -> None:
        """Reset the state buffers."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of one frame.

    Attributes:
        frames: Main and extra frame.
        main_transform: (3, 3) float32, model pixels to main camera pixels.
        extra_transform: (3, 3) float32, model pixels to extra camera pixels.
        desire_pulse: (8,) float32.
        traffic_convention: (1, 2) float32.
    """

    frames: FramePair
    main_transform: NDArray[np.float32]
    extra_transform: NDArray[np.float32]
    desire_pulse: NDArray[np.float32]
    traffic_convention: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Outcome of one run.

    Attributes:
        outputs: Parsed outputs; those of the last finite run if this one was not finite.
        raw: Raw vectors by role, reused by the next run.
        finite: All raw values are finite.
        execution_time_s: From inputs ready to outputs parsed.
    """

    outputs: DrivingOutputs
    raw: Mapping[str, NDArray[np.float32]]
    finite: bool
    execution_time_s: float

    def raw_bytes(self) -> bytes:
        """Return all raw vectors in the order the models run, float32."""
        return b"".join(vector.tobytes() for vector in self.raw.values())


class DrivingModel:
    """One artifact bound to one camera format.

    Attributes:
        format: Layout of the frames that ``run`` takes.
        skip_on_drop: After a dropped frame only the queues advance.
        checkpoints: Name of each model's checkpoint, by role.
    """

    def __init__(self, program: DrivingProgram, camera: FrameFormat) -> None:
        """Check the artifact's metadata and choose the entry points.

        Raises:
            ModelInterfaceError: The artifact is not a driving model of the 2025 split interface.
            CameraSizeError: It was not compiled for this camera.
        """
        metadata = program.metadata
        layout = check_interface(metadata)
        _check_camera(metadata, camera)
        self.format = camera
        self.skip_on_drop = metadata["drop_policy"] == "skip"
        self.checkpoints = {
            role: str(model.get("checkpoint", "")) for role, model in metadata["models"].items()
        }
        self._program = program
        size = f"{camera.width}x{camera.height}"
        self._run_entry = _require_entry(program, f"run:{size}")
        self._prepare_entry = _require_entry(program, f"prepare:{size}")
        self._parser = OutputParser(layout)
        self._widths = layout.widths
        self._payload = camera.payload_bytes

    def prepare(self, inputs: ModelInputs) -> None:
        """Advance the picture and desire queues without inference.

        Raises:
            CameraSizeError: A frame has another format than the model was bound to.
        """
        self._program.run(self._named(inputs), entry=self._prepare_entry)

    def run(self, inputs: ModelInputs) -> ModelResult:
        """Run the model on one frame.

        Non-finite outputs are not parsed, and reset the queues, which would otherwise feed them
        back for seconds (see ADR 0022).

        Raises:
            CameraSizeError: A frame has another format than the model was bound to.
        """
        start_ns = time.perf_counter_ns()
        named = self._named(inputs)
        named["traffic_convention"] = inputs.traffic_convention
        results = self._program.run(named, entry=self._run_entry)
        raw = {role: results[f"{role}_outputs"] for role in self._widths}
        finite = all(bool(np.isfinite(vector).all()) for vector in raw.values())
        if finite:
            self._parser.parse(raw)
        else:
            self._program.reset()
        elapsed_s = (time.perf_counter_ns() - start_ns) * 1e-9
        return ModelResult(self._parser.outputs, raw, finite, elapsed_s)

    def warm_up(self) -> float:
        """Run once on zeros and reset the state; the first run of a program is slow.

        Returns:
            Duration of that run in seconds.

        Raises:
            ModelInterfaceError: The program's outputs do not have the sizes the metadata promises.
        """
        frame = np.zeros(self._payload, np.uint8)
        transform = np.zeros((3, 3), np.float32)
        start_ns = time.perf_counter_ns()
        results = self._program.run(
            {
                "road_frame": frame,
                "wide_frame": frame,
                "road_transform": transform,
                "wide_transform": transform,
                "desire": np.zeros(8, np.float32),
                "traffic_convention": np.array([[1.0, 0.0]], np.float32),
            },
            entry=self._run_entry,
        )
        elapsed_s = (time.perf_counter_ns() - start_ns) * 1e-9
        for role, width in self._widths.items():
            vector = results.get(f"{role}_outputs")
            if vector is None or vector.size != width or vector.dtype != np.float32:
                found = "nothing" if vector is None else f"{vector.dtype} {vector.shape}"
                raise ModelInterfaceError(
                    f"artifact entry {self._run_entry!r}: output {role}_outputs: expected float32 "
                    f"(1, {width}), got {found}; recompile the artifact"
                )
        self._program.reset()
        return elapsed_s

    def _named(self, inputs: ModelInputs) -> dict[str, NDArray[Any]]:
        """Return the inputs of the prepare entry under the program's names."""
        for frame in (inputs.frames.main, inputs.frames.extra):
            if frame.format != self.format:
                raise CameraSizeError(
                    f"frame {frame.frame_id}: expected {self.format}, got {frame.format}; the "
                    "camera changed its format, restart the daemon"
                )
        return {
            "road_frame": inputs.frames.main.data[: self._payload],
            "wide_frame": inputs.frames.extra.data[: self._payload],
            "road_transform": inputs.main_transform,
            "wide_transform": inputs.extra_transform,
            "desire": inputs.desire_pulse,
        }


def check_interface(metadata: Mapping[str, Any]) -> OutputLayout:
    """Return the output layout of a driving artifact.

    Args:
        metadata: of the artifact.

    Raises:
        ModelInterfaceError: It is not a driving model of the 2025 split interface.
    """
    if metadata.get("interface") != INTERFACE:
        raise ModelInterfaceError(
            f"artifact metadata: expected interface {INTERFACE!r}, got "
            f"{metadata.get('interface')!r}; compile a vision and a policy model without --plain"
        )
    if metadata.get("drop_policy") not in DROP_POLICIES:
        raise ModelInterfaceError(
            f"artifact metadata: drop_policy: expected one of {', '.join(DROP_POLICIES)}, got "
            f"{metadata.get('drop_policy')!r}; recompile the artifact"
        )
    models = metadata.get("models")
    if not isinstance(models, Mapping) or not models:
        raise ModelInterfaceError(
            "artifact metadata: expected models with their output slices, got none; recompile the "
            "artifact"
        )
    return read_output_layout(models)


def _check_camera(metadata: Mapping[str, Any], camera: FrameFormat) -> None:
    cameras = metadata.get("cameras", ())
    same_size = [
        entry
        for entry in cameras
        if (entry["width"], entry["height"]) == (camera.width, camera.height)
    ]
    if not same_size:
        sizes = ", ".join(f"{entry['width']}x{entry['height']}" for entry in cameras) or "none"
        raise CameraSizeError(
            f"camera {camera.width}x{camera.height}: the artifact was compiled for {sizes}; "
            f"recompile it with --camera {camera.width}x{camera.height}"
        )
    entry = same_size[0]
    for name in ("stride", "uv_offset", "payload_bytes"):
        expected, found = entry[name], getattr(camera, name)
        if expected != found:
            raise CameraSizeError(
                f"camera {camera.width}x{camera.height}: {name}: the artifact expects {expected}, "
                f"got {found}; publish frames in the padded layout"
            )


def _require_entry(program: DrivingProgram, name: str) -> str:
    if name not in program.entries:
        raise ModelInterfaceError(
            f"artifact: expected entry {name!r}, got {', '.join(program.entries) or 'none'}; "
            "recompile the artifact"
        )
    return name
