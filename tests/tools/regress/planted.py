"""A small driving program, a short rendered drive and their reference; faults are planted in them.

Everything is made once in a run, by the real compiler, renderer and regression; what a test plants
is a fault in the real code or in the models, never in what judges it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tools.commands.on_drives.regress_drives
import tools.simulator.render.script
from scheduler.compile import CompiledModel, compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from scheduler.onnx_import import OnnxModel, load_model
from tests.support.built import built
from tools.cli import main
from tools.example_models.driving import PolicyConfig, VisionConfig, build_policy, build_vision
from tools.regress.job import Job, JobResult, ModelHolder, run_job
from tools.regress.pool import OnResult, WorkDirectory

FRAMES = 48
# In frame 27 the driver's hand is seen and the lane change starts. Frame 28 is lost; so the desire
# has its edge in frame 29, in which only the queues advance.
LANE_CHANGE_S = 1.75
LOST_FRAME = 28
EDGE_FRAME = 29

# Modifies the models as they were read, before they are compiled.
Edit = Callable[[OnnxModel, OnnxModel], None]


@dataclass(frozen=True)
class Planted:
    """What tests share in a directory, and the place where one of them writes."""

    directory: Path
    place: Path

    @property
    def model(self) -> Path:
        """The clean artifact."""
        return self.directory / "clean.pkl"

    @property
    def drive(self) -> Path:
        (found,) = (self.directory / "drives").iterdir()
        return found

    @property
    def onnx(self) -> tuple[Path, Path]:
        """Vision and policy."""
        return self.directory / "vision.onnx", self.directory / "policy.onnx"

    def compiled(self, edit: Edit | None = None, **options: Any) -> CompiledModel:
        vision, policy = (load_model(path) for path in options.pop("onnx", self.onnx))
        if edit is not None:
            edit(vision, policy)
        flags = replace(Flags.from_environment(), tuned=False)
        options = {"target": target_for("cpu"), "flags": flags, **options}
        return compile_driving([vision, policy], **options)

    def artifact(self, name: str, edit: Edit | None = None, **options: Any) -> Path:
        """Compile as it is now, faults included, and write it."""
        path = self.place / name
        self.compiled(edit, **options).write(path)
        return path

    def words(self, *more: object, model: Path | None = None) -> list[object]:
        place = ("--drives", self.drive, "--reference", self.directory / "references")
        return ["regress", "--model", model or self.model, *place, "--no-timing", *more]


def shared(place: Path) -> Planted:
    """Return what is made once in a run, for a test that writes into its own place."""
    return Planted(built("planted", _make), place)


@contextmanager
def jobs_here(kept: ModelHolder | None = None) -> Iterator[None]:
    """Run jobs in this process, where faults reach them; `kept` keeps the clean program loaded."""

    def run_here(
        _processes: int, jobs: Sequence[Job], _work: WorkDirectory, on_result: OnResult
    ) -> list[JobResult]:
        results, own = [], ModelHolder()
        for position, job in enumerate(jobs):
            holder = kept if kept and job.artifact.name == "clean.pkl" else own
            results.append(run_job(job, holder))
            on_result(position, results[-1])
        own.close()
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tools.commands.on_drives.regress_drives, "_run_jobs", run_here)
        yield


def _make(directory: Path) -> None:
    """Make models, program, drive and reference."""
    vision, _ = build_vision(
        0, VisionConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), expansion=2, head_width=32)
    )
    policy, _ = build_policy(0, PolicyConfig(layers=1, heads=2, feed_forward=64, head_width=32))
    for name, proto in (("vision", vision), ("policy", policy)):
        (directory / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    with pytest.MonkeyPatch.context() as patch:
        # The same manoeuvre as in every rendered drive, sooner.
        patch.setattr(tools.simulator.render.script, "FIRST_LANE_CHANGE_S", LANE_CHANGE_S)
        lost = ("--drop", str(LOST_FRAME), "--workers", "1", "--seed", "1")
        words = ["make-drive", str(directory / "drives"), "--seconds", str(FRAMES / 20), *lost]
        assert main(words) == 0
    planted = Planted(directory, directory)
    planted.artifact("clean.pkl")
    with jobs_here():
        assert main([*map(str, planted.words("--update", "--reason", "the first one"))]) == 0


def add_to_weight(model: OnnxModel, node: str, amount: float, index: int = 7) -> None:
    """Add to one value of the weight of a node, after the file was read and its digest taken."""
    (found,) = [n for n in model.proto.graph.node if n.name == node]
    name = found.input[1]
    assert isinstance(model.constants, dict)
    values: Any = np.array(model.constants[name])
    values.reshape(-1)[index] += np.float32(amount)
    model.constants[name] = values
