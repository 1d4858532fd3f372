"""Finds which of weights, graph, code generation or driver makes two artifacts differ.

It first compares the manifests: digests of models and weights, ONNX nodes, kernel texts, device
row, and device and driver of the binaries. Then it plays a drive once with several programs on the
same inputs: A and B; A's kernels with B's weights, if they fit; and both built from source, without
their binaries. `Bisection` has the facts, the experiments and the conclusion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from modeld.daemon import StepResult
from modeld.service.config import Config
from runtime import load_program
from runtime.format.artifact import Artifact
from runtime.opencl.device import Device, choose_device
from runtime.texts import count_text
from tools.drives.drive import Moment
from tools.drives.open_drive import DriveOptions, expand_drives, open_drive
from tools.errors import UsageError
from tools.lib.wrapped_program import WrappedProgram
from tools.playback.model import check_fits, read_driving_artifact
from tools.regress.explain.artifact_facts import (
    CAUSES,
    Cause,
    Fact,
    code_facts,
    driver_facts,
    fits,
    model_facts,
    weight_facts,
)
from tools.regress.explain.launch_values import ROUNDING, Difference, compare_arrays

Array = NDArray[Any]
# Number of frames played after the first difference between A and B, to measure its extent.
FRAMES_AFTER: Final = 20


@dataclass(frozen=True, slots=True)
class Experiment:
    """The comparison of two programs on the same inputs."""

    name: str  # the two programs
    first_frame: int  # first frame whose outputs differ in any bit; -1: none
    frames: int  # number of frames that differ
    played: int  # number of frames played
    worst: Difference | None  # largest difference; None if there is none

    @property
    def text(self) -> str:
        """The result in one line."""
        if self.worst is None:
            return f"{self.name}: the same bits in {count_text(self.played, 'frame')}"
        return (
            f"{self.name}: differ in {self.frames} of {count_text(self.played, 'frame')}, from "
            f"frame {self.first_frame} on; at the worst {self.worst.text}"
        )


@dataclass(frozen=True, slots=True)
class Bisection:
    """The result of a bisection."""

    causes: tuple[Cause, ...]  # causes that facts support and no experiment excludes
    facts: tuple[Fact, ...]  # findings from the manifests
    experiments: tuple[Experiment, ...]  # comparisons on the drive
    conclusion: str  # one line for the user

    @property
    def is_same(self) -> bool:
        """Whether all outputs of A and B have the same bits."""
        return self.experiments[0].worst is None

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values."""
        return asdict(self)


def bisect(
    artifacts: tuple[Path, Path], drive: str, options: DriveOptions, device: str | None
) -> Bisection:
    """Find the causes of the difference between two artifacts.

    `artifacts`: A, the older one, and B. `drive`: one drive, as text for `open_drive`. `options`:
    options for opening the drive. `device`: OpenCL device; None: the best.

    Raises:
        ToolError: an artifact or the drive cannot be used.
        RuntimeFault: an artifact does not run on this device.
    """
    sides = read_driving_artifact(artifacts[0]), read_driving_artifact(artifacts[1])
    opened = choose_device(device)
    manifests = sides[0].manifest, sides[1].manifest
    facts = [*model_facts(*manifests), *weight_facts(*sides), *code_facts(*manifests)]
    facts += driver_facts(*manifests)
    experiments = _experiment(sides, artifacts[0], drive, options, opened)
    return _conclude(facts, experiments)


class _ParallelPrograms(WrappedProgram):
    """Several programs on the same inputs; the daemon receives the first one's outputs.

    `programs`: programs by name. `pairs`: experiment -> names of the two programs to compare.
    """

    def __init__(self, programs: Mapping[str, Any], pairs: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(next(iter(programs.values())))
        self._programs, self._pairs = programs, pairs
        self.now: dict[str, Difference] = {}

    def run(self, inputs: Mapping[str, Array], entry: str | None = None) -> Mapping[str, Array]:
        """Run all programs and compare their outputs."""
        said = {name: program.run(inputs, entry) for name, program in self._programs.items()}
        self.now = {}
        for experiment, (one, other) in self._pairs.items():
            apart = [
                compare_arrays(said[other][name].ravel(), array.ravel())
                for name, array in said[one].items()
            ]
            differing = [found for found in apart if found.elements]
            if differing:
                self.now[experiment] = max(differing, key=lambda found: found.largest)
        first: Mapping[str, Array] = next(iter(said.values()))
        return first

    def reset(self) -> None:
        """Reset the state buffers of all programs."""
        for program in self._programs.values():
            program.reset()


class _StopError(Exception):
    """Enough frames were compared; ends the drive."""


def _variants(a: Artifact, b: Artifact) -> tuple[dict[str, Artifact], dict[str, tuple[str, str]]]:
    """Return the artifacts to run, and the pairs to compare."""
    programs = {"A": a, "B": b}
    pairs = {"A and B": ("A", "B")}
    if fits(a, b):
        programs["A with B's weights"] = replace(a, data=b.data)
        pairs["A and A with B's weights"] = ("A", "A with B's weights")
        pairs["B and A with B's weights"] = ("B", "A with B's weights")
    for name, one in (("A", a), ("B", b)):
        if any(program.binary for program in one.manifest.programs):
            programs[f"{name} from source"] = _from_source(one)
            pairs[f"{name} and {name} from source"] = (name, f"{name} from source")
    return programs, pairs


def _from_source(artifact: Artifact) -> Artifact:
    manifest = artifact.manifest
    programs = tuple(replace(program, binary=b"") for program in manifest.programs)
    return replace(artifact, manifest=replace(manifest, programs=programs))


def _experiment(
    sides: tuple[Artifact, Artifact], path: Path, text: str, options: DriveOptions, device: Device
) -> list[Experiment]:
    from tools.playback.run_drive import PlaybackOptions, play
    from tools.playback.session import Programs

    artifacts, pairs = _variants(*sides)
    first: dict[str, int] = {}
    counts, worst = dict.fromkeys(pairs, 0), dict[str, Difference]()
    played = 0
    with ExitStack() as stack:
        drive = open_drive(_single(text, options), options)
        stack.callback(drive.close)
        for artifact in sides:
            check_fits(artifact.path or path, artifact, drive.info)
        programs = {
            name: stack.enter_context(load_program(artifact, device))
            for name, artifact in artifacts.items()
        }
        several = _ParallelPrograms(programs, pairs)

        def compare_frame(_moment: Moment, result: StepResult | None) -> None:
            nonlocal played
            if result is None:
                return
            played += 1
            for name, apart in several.now.items():
                first.setdefault(name, result.frame_id)
                counts[name] += 1
                if name not in worst or apart.largest > worst[name].largest:
                    worst[name] = apart
            if counts["A and B"] > FRAMES_AFTER:
                raise _StopError

        config = Config(demo=True, send_raw_predictions=False)
        with suppress(_StopError):
            play(
                drive,
                Programs(several),
                _discard,
                PlaybackOptions(config=config, on_moment=compare_frame),
            )
    return [
        Experiment(name, first.get(name, -1), counts[name], played, worst.get(name))
        for name in pairs
    ]


def _discard(_data: bytes) -> None:
    """Discard an event."""


def _single(text: str, options: DriveOptions) -> str:
    found = expand_drives([text], options)
    if len(found) != 1:
        raise UsageError(f"--drives: expected one drive with --bisect, found {len(found)}")
    return found[0]


def _conclude(facts: Sequence[Fact], experiments: Sequence[Experiment]) -> Bisection:
    said = {experiment.name: experiment for experiment in experiments}
    supported = [fact.about for fact in facts if fact.differs]
    causes: list[Cause] = [cause for cause in CAUSES if cause in supported]
    main = said["A and B"]
    if main.worst is None:
        text = "A and B give the same bits here: their differences have no effect"
        if causes:
            text += f" ({', '.join(causes)})"
        return Bisection((), tuple(facts), tuple(experiments), text)
    excluded: list[str] = []
    notes: list[str] = []
    with_weights = said.get("B and A with B's weights")
    own_weights = said.get("A and A with B's weights")
    if with_weights is not None and with_weights.worst is None:
        notes.append("A's kernels with B's weights give the same bits as B")
        causes = ["weights"]
    elif own_weights is not None and own_weights.worst is None:
        excluded.append("weights")
        notes.append("B's weights change nothing in A")
    rebuilt = [said[name] for name in said if name.endswith("from source")]
    if rebuilt and all(experiment.worst is None for experiment in rebuilt):
        excluded.append("driver")
        notes.append("both give the same bits when built from source by this driver")
    elif rebuilt:
        notes.append("an artifact built from source here gives other bits than its binaries")
        causes = [*causes, "driver"] if "driver" not in causes else causes
    if "code generation" in causes and "graph" not in causes:
        kind = "roundings" if not main.worst.exceeds(ROUNDING) else "more than roundings"
        notes.append(
            f"kernels of the same nodes differ in text, and results by {kind}"
            + ("" if kind == "roundings" else ": they do not compute the same")
        )
    left = [cause for cause in causes if cause not in excluded]
    names = " and ".join(left) or "nothing that the artifacts show"
    return Bisection(
        tuple(left),
        tuple(facts),
        tuple(experiments),
        f"{names} changed: {'; '.join(notes)}" if notes else f"{names} changed",
    )
