"""Facts of a model that is loaded, of both kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

import runtime
from modeld.health_facts import facts_of, versions
from modeld.health_snapshot import SelfTestFacts
from modeld.load_models import LoadedModel
from tests.tools.small_monitoring import write_small_monitoring
from tests.tools.tiny_driving import write_tiny_driving


def test_versions_begin_with_ours() -> None:
    assert list(versions()) == ["modeld", "python", "numpy", "pyopencl"]
    assert all(versions().values())


@pytest.mark.opencl
def test_facts_of_a_driving_model(tmp_path: Path) -> None:
    path = tmp_path / "tiny.pkl"
    write_tiny_driving(path)
    artifact = runtime.read_artifact(path)
    with runtime.load_program(artifact) as program:
        facts = facts_of(LoadedModel(path, artifact.sha256, program, SelfTestFacts()), started_ns=7)
        assert (facts.device, facts.driver) == (program.stats.device, program.stats.driver)
    assert (facts.kind, facts.model, facts.started_ns) == ("driving", str(path), 7)
    assert (len(facts.sha256), facts.sha256) == (64, artifact.sha256)
    assert facts.checkpoints == {"vision": "tiny-vision", "policy": "tiny-policy"}
    assert facts.driver


@pytest.mark.opencl
def test_facts_of_a_monitoring_model(tmp_path: Path) -> None:
    path = write_small_monitoring(tmp_path / "small.pkl")
    artifact = runtime.read_artifact(path)
    with runtime.load_program(artifact) as program:
        facts = facts_of(LoadedModel(path, artifact.sha256, program, SelfTestFacts()))
    assert facts.kind == "monitoring"
    assert len(facts.checkpoints) == 1
