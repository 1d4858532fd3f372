"""Runs a driving artifact as a model: frames and vehicle state in, parsed outputs out.

An artifact is a file with a compiled model; loaded, it is a ``runtime`` Program. It runs the image
warps, the networks and their histories, the queues of earlier inputs. `DrivingModel` wraps a
program. All properties of the model are read from its interface, the description in the artifact's
metadata. The entry point ``run`` does inference; ``prepare`` only advances the histories.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cereal.frames import Frame, nv12_format
from modeld.errors import ModelInterfaceError
from modeld.frames.camera_input import CameraInput
from modeld.frames.frame_sync import FramePair
from modeld.outputs.fill_message import ModelMessage
from modeld.outputs.parse_outputs import DrivingOutputs, OutputParser, check_heads, check_vector
from runtime.errors import ArtifactError
from runtime.format.interfaces import DESIRE_WIDTH, HOST_INPUTS, Interface, parse_interface

if TYPE_CHECKING:
    from runtime.run.entry import TensorSpec

RUN: Final = "run"
PREPARE: Final = "prepare"
# Format of the warm-up frame; any size would do.
_WARM_UP_FORMAT: Final = nv12_format(64, 32)


class DrivingProgram(Protocol):
    """The part of ``runtime.Program`` that the daemon uses."""

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the entry points."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The artifact's metadata."""

    def entry_inputs(self, entry: str | None = None) -> "tuple[TensorSpec, ...]":
        """Return the inputs of an entry."""

    def run(
        self, inputs: Mapping[str, NDArray[Any]], entry: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Run an entry; the next run overwrites the returned arrays."""

    def reset(self) -> None:
        """Reset the state buffers."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of one frame. A model uses those that its interface names."""

    frames: FramePair
    main_transform: NDArray[np.float32]  # (3, 3) float32, model pixels to main camera pixels
    extra_transform: NDArray[np.float32]  # (3, 3) float32, model pixels to extra camera pixels
    desire_pulse: NDArray[np.float32]  # (8,) float32
    traffic_convention: NDArray[np.float32]  # (1, 2) float32
    # (1, 2) float32, speed in m/s and lateral delay in s
    lateral_control_params: NDArray[np.float32]
    # (1, 2) float32, delays in s until curvature and acceleration take effect
    action_t: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ModelResult:
    """The result of one run."""

    outputs: DrivingOutputs  # parsed outputs; those of the last finite run if this one is not
    message: ModelMessage  # fills the ``modelV2`` of these outputs
    # Raw vectors by role, in the order in which the models run; overwritten by the next run.
    raw: Mapping[str, NDArray[np.float32]]
    finite: bool  # all raw values are finite
    execution_time_s: float  # time from inputs ready to outputs parsed
    failed: bool = False  # the device did not finish the run

    def raw_bytes(self) -> bytes:
        """Return all raw vectors as float32 bytes, in the order in which the models run."""
        return b"".join(vector.tobytes() for vector in self.raw.values())


class DrivingModel:
    """The model of one driving artifact. It accepts frames of any format that fit its buffers.

    Attributes:
        interface: The model's interface from the artifact's metadata.
        skip_on_drop: After dropped frames, the model is not run; only its histories of images and
            desires advance.
        checkpoints: Name of each network's checkpoint, by role.
        history_runs: Number of runs that fill all histories.
    """

    def __init__(self, program: DrivingProgram) -> None:
        """Check the artifact's interface and entry points.

        Raises ModelInterfaceError if the artifact is not a driving model, cannot fill the messages
        or lacks an entry.
        """
        self.interface = check_interface(program.metadata)
        self.skip_on_drop = self.interface.drop_policy == "skip"
        self.checkpoints = {part.role: part.checkpoint for part in self.interface.models}
        self.history_runs = _history_runs(self.interface)
        self._program = program
        for entry in (RUN, PREPARE) if self.skip_on_drop else (RUN,):
            _require_entry(program, entry)
        capacity = {spec.name: int(np.prod(spec.shape)) for spec in program.entry_inputs(RUN)}
        self._road = CameraInput("road", capacity.get("road_frame", 0))
        self._wide = CameraInput("wide", capacity.get("wide_frame", 0))
        self._parser = OutputParser(self.interface)
        self._message = ModelMessage(self._parser.outputs)
        self._widths = {part.role: part.width for part in self.interface.models}

    def check_frames(self, frames: FramePair) -> None:
        """Check that the program can use a pair of frames.

        Raises CameraSizeError if a frame is shorter than its geometry requires, or larger than the
        program's buffer.
        """
        self._road.payload(frames.main)
        self._wide.payload(frames.extra)

    def prepare(self, inputs: ModelInputs) -> None:
        """Advance the image and desire queues without inference; raise as `check_frames`."""
        self._program.run(self._named(inputs), entry=PREPARE)

    def run(self, inputs: ModelInputs) -> ModelResult:
        """Run the model on one frame; raise as `check_frames`.

        Non-finite outputs are not parsed. They also reset the queues, which would otherwise feed
        them back for seconds (see ADR 0020).
        """
        start_ns = time.perf_counter_ns()
        named = self._named(inputs)
        for name in self.interface.host_inputs:
            named[name] = getattr(inputs, name)
        results = self._program.run(named, entry=RUN)
        raw = {role: results[f"{role}_outputs"] for role in self._widths}
        finite = all(bool(np.isfinite(vector).all()) for vector in raw.values())
        if finite:
            self._parser.parse(raw)
        else:
            self._program.reset()
        elapsed_s = (time.perf_counter_ns() - start_ns) * 1e-9
        return ModelResult(self._parser.outputs, self._message, raw, finite, elapsed_s)

    def reset(self) -> None:
        """Empty the histories of images, desires and features."""
        self._program.reset()

    def failed(self) -> ModelResult:
        """Return the result of a run that the device did not finish: the last finite outputs."""
        return ModelResult(
            self._parser.outputs,
            self._message,
            {},
            finite=False,
            execution_time_s=0.0,
            failed=True,
        )

    def warm_up(self) -> float:
        """Run once on zeros, because the first run is slow, and reset the state.

        Returns the duration of the run in seconds. Raises ModelInterfaceError if the outputs do not
        have the sizes given in the metadata.
        """
        black = Frame(np.zeros(_WARM_UP_FORMAT.size, np.uint8), _WARM_UP_FORMAT, 0, 0, 0)
        transform = np.zeros((3, 3), np.float32)
        host = {name: np.zeros(shape, np.float32) for name, shape in HOST_INPUTS.items()}
        inputs = ModelInputs(
            FramePair(black, black),
            transform,
            transform,
            np.zeros(DESIRE_WIDTH, np.float32),
            **host,
        )
        start_ns = time.perf_counter_ns()
        named = self._named(inputs)
        named.update((name, host[name]) for name in self.interface.host_inputs)
        results = self._program.run(named, entry=RUN)
        elapsed_s = (time.perf_counter_ns() - start_ns) * 1e-9
        for role, width in self._widths.items():
            check_vector(results, f"{role}_outputs", width, RUN)
        self._program.reset()
        return elapsed_s

    def _named(self, inputs: ModelInputs) -> dict[str, NDArray[Any]]:
        """Return the inputs of the prepare entry under the program's names."""
        return {
            # These are views of the cameras' memory; the pixels are not copied.
            "road_frame": self._road.payload(inputs.frames.main),
            "wide_frame": self._wide.payload(inputs.frames.extra),
            "road_geometry": self._road.geometry,
            "wide_geometry": self._wide.geometry,
            "road_transform": inputs.main_transform,
            "wide_transform": inputs.extra_transform,
            "desire": inputs.desire_pulse,
        }


def try_driving(program: DrivingProgram) -> None:
    """Run a program once as a driving model, then reset its states.

    Raises as `DrivingModel` and `DrivingModel.warm_up`.
    """
    DrivingModel(program).warm_up()


def check_interface(metadata: Mapping[str, Any]) -> Interface:
    """Return the interface in a driving artifact's metadata.

    Raises ModelInterfaceError if it is not a driving model or cannot fill the messages.
    """
    if "interface" not in metadata:
        raise ModelInterfaceError(
            "artifact metadata: expected the interface of a driving model, found none; compile the "
            "model without --plain"
        )
    try:
        interface = parse_interface(metadata["interface"])
    except ArtifactError as error:
        raise ModelInterfaceError(f"artifact {error}") from error
    check_heads(interface)
    return interface


def _history_runs(interface: Interface) -> int:
    """Return the number of runs that fill all histories, on the device and in the model."""
    rules = (interface.desire, interface.features, interface.curvature)
    kept = [rule.frames for rule in rules if rule is not None]
    kept += [
        part.inputs[name][0][0]
        for part in interface.models
        for name in interface.states
        if name in part.inputs and part.inputs[name][0]
    ]
    return max([interface.image.gap + 1, *kept])


def _require_entry(program: DrivingProgram, name: str) -> None:
    if name not in program.entries:
        raise ModelInterfaceError(
            f"artifact: expected entry {name!r}, got {', '.join(program.entries) or 'none'}; "
            "recompile the artifact"
        )
