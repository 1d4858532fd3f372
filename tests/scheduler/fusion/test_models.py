"""Launches of the example models: the bars that fusion has to keep."""

from __future__ import annotations

from pathlib import Path

import onnx

from scheduler.onnx_import import import_model, load_model
from tests.scheduler.support.programs import plan_of
from tools.make_model import write_models


def launches_and_graph(role: str, directory: Path) -> tuple[int, onnx.GraphProto]:
    ((path, _),) = write_models(directory, (role,))
    plan = plan_of(import_model(load_model(path)).outputs)
    return len(plan.launches), onnx.load(path).graph


def test_the_vision_model_takes_one_per_convolution_and_ten_more(tmp_path: Path) -> None:
    launches, graph = launches_and_graph("vision", tmp_path)
    convolutions = sum(node.op_type == "Conv" for node in graph.node)
    assert convolutions == 60
    assert launches <= convolutions + 10


def test_the_policy_model_takes_at_most_twenty_four(tmp_path: Path) -> None:
    launches, _ = launches_and_graph("policy", tmp_path)
    assert launches <= 24
