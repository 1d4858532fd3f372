"""What the commands say of a model of one node: units that fit, one of each, no rounded zeros."""

import json
from pathlib import Path

import pytest
from onnx import helper

from cereal.schema import new_event, read_event
from tests.scheduler.onnx_import.tiny_models import model_of, value
from tests.tools.conftest import Modeld
from tools.commands.subscribe import describe


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = relu(x) of four elements: four operations, 32 bytes moved."""
    path = tmp_path / "tiny.onnx"
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    proto = model_of([node], [value("x", (1, 4))], [value("y", (1, 4))])
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.opencl
def test_a_small_model_is_counted_in_small_units_and_traced_by_its_nodes(
    model: Path, tmp_path: Path, modeld: Modeld
) -> None:
    out, trace = tmp_path / "tiny.pkl", tmp_path / "trace.json"
    compile_it = ("compile", "--plain", model, "-o", out, "--no-binary")
    text = modeld(0, *compile_it).out
    assert (
        ": 1 kernel, 4 FLOP, 0 B of weights, activations 0 B (0 B without buffer reuse), " in text
    )
    assert "  run: 1 launch\n" in text
    assert modeld(0, *compile_it, "--json").json["flops"] == 4
    for options in ([], ["--schedule"]):
        text = modeld(0, "inspect", *options, out).out
        assert " FLOP " in text
        assert "MFLOP" not in text
        assert "0.000" not in text
    text = modeld(0, "inspect", model).out
    assert "\nwork        4 FLOP\n" in text
    assert "\n1 node\n" in text
    text = modeld(0, "bench", out, "--iters", 3, "--no-load", "--trace", trace).out
    assert f"trace: {trace}, 3 of 3 runs" in text
    events = json.loads(trace.read_text())["traceEvents"]
    launches = [event for event in events if event.get("cat") == "map"]
    assert [event["name"] for event in launches] == ["relu"] * 3
    args = launches[0]["args"]
    assert (args["nodes"], args["flops"], args["bytes"]) == (["relu"], 4, 32)
    assert args["arguments"] == ["output float32[1, 4] y", "input float32[1, 4] x"]


def test_a_rounded_zero_has_no_minus_sign() -> None:
    odometry, driving = (
        new_event(service, mono_time_ns=1, valid=True)
        for service in ("cameraOdometry", "drivingModelData")
    )
    odometry.cameraOdometry.trans = [15.0, -0.001, -0.0]
    driving.drivingModelData.action.desiredCurvature = -1e-7
    for event, said in (
        (odometry, "velocity 15.00 +0.00 +0.00 m/s"),
        (driving, "curvature +0.00000 1/m"),
    ):
        assert said in describe(str(event.which()), read_event(event.to_bytes()))
