"""A small driving program, a short rendered drive and their reference; faults are planted in them.

Everything is made once a session, by the real compiler, renderer and regression; what a test plants
is a fault in the real code or in the models, never in what judges it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tools.regress_drives
import tools.render.world
from scheduler.compile import CompiledModel, compile_driving
from scheduler.device.targets import target_for
from scheduler.flags import Flags
from scheduler.onnx_import import OnnxModel, load_model
from tools.cli import main
from tools.example_models.policy import PolicyConfig, build_policy
from tools.example_models.vision import VisionConfig, build_vision
from tools.regress.job import Job, JobResult, ModelHolder, run_job
from tools.regress.pool import OnResult, WorkDirectory

SIZE = (1344, 760)
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
    """What tests share.

    Attributes:
        directory: holds the models, the drive and the references.
        model: clean artifact.
        drive: segment directory.
        references: made by the clean artifact.
        holder: keeps the clean program loaded.
    """

    directory: Path
    model: Path
    drive: Path
    references: Path
    holder: ModelHolder

    @property
    def onnx(self) -> tuple[Path, Path]:
        """Vision and policy."""
        return self.directory / "vision.onnx", self.directory / "policy.onnx"

    def compiled(self, edit: Edit | None = None) -> CompiledModel:
        """Compile the models, which say that they are those of the files."""
        vision, policy = (load_model(path) for path in self.onnx)
        if edit is not None:
            edit(vision, policy)
        flags = replace(Flags.from_environment(), tuned=False)
        return compile_driving([vision, policy], target=target_for("cpu"), flags=flags)

    def artifact(self, name: str, edit: Edit | None = None) -> Path:
        """Compile as it is now, faults included, and write it."""
        path = self.directory / name
        self.compiled(edit).write(path)
        return path

    def regress(self, *more: str, model: Path | None = None) -> int:
        """Regress the drive as the command does, in this process."""
        return main(
            [
                "regress",
                *("--model", str(model or self.model), "--drives", str(self.drive)),
                *("--reference", str(self.references)),
                "--no-timing",
                *more,
            ]
        )


@contextmanager
def jobs_here(patch: pytest.MonkeyPatch, shared: ModelHolder) -> Iterator[None]:
    """Run jobs in this process: planted faults reach them, and nothing has to start."""

    def run_here(
        _processes: int, jobs: Sequence[Job], _work: WorkDirectory, on_result: OnResult
    ) -> list[JobResult]:
        results = []
        for position, job in enumerate(jobs):
            is_clean = job.artifact.name == "clean.pkl"
            holder = shared if is_clean else ModelHolder()
            results.append(run_job(job, holder))
            on_result(position, results[-1])
            if not is_clean:
                holder.close()
        return results

    with patch.context() as context:
        context.setattr(tools.regress_drives, "_run_jobs", run_here)
        yield


def make_planted(directory: Path, patch: pytest.MonkeyPatch) -> Planted:
    """Make models, program, drive and reference."""
    vision, _ = build_vision(
        0, VisionConfig(dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), expansion=2, head_width=32)
    )
    policy, _ = build_policy(0, PolicyConfig(layers=1, heads=2, feed_forward=64, head_width=32))
    for name, proto in (("vision", vision), ("policy", policy)):
        (directory / f"{name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    with patch.context() as context:
        # The same manoeuvre as in every rendered drive, sooner.
        context.setattr(tools.render.world, "FIRST_LANE_CHANGE_S", LANE_CHANGE_S)
        rendered = directory / "drives"
        lost = ("--drop", str(LOST_FRAME), "--workers", "1", "--seed", "1")
        assert main(["make-drive", str(rendered), "--seconds", str(FRAMES / 20), *lost]) == 0
    (drive,) = rendered.iterdir()
    planted = Planted(
        directory, directory / "clean.pkl", drive, directory / "references", ModelHolder()
    )
    planted.artifact("clean.pkl")
    with jobs_here(patch, planted.holder):
        assert planted.regress("--update", "--reason", "the first one") == 0
    return planted


def remove(planted: Planted) -> None:
    """Give back what it holds."""
    planted.holder.close()
    shutil.rmtree(planted.directory, ignore_errors=True)


def add_to_weight(model: OnnxModel, node: str, amount: float, index: int = 7) -> None:
    """Add to one value of the weight of a node, after the file was read and its digest taken."""
    (found,) = [n for n in model.proto.graph.node if n.name == node]
    name = found.input[1]
    assert isinstance(model.constants, dict)
    values: Any = np.array(model.constants[name])
    values.reshape(-1)[index] += np.float32(amount)
    model.constants[name] = values
