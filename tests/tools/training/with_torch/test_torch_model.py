"""Example models in torch, operator by operator, beside onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from tools.commands.make_model import BENCHMARKS, MODELS
from tools.example_models import build_example
from tools.timing.torch_model import OperatorError, TorchModel

TRAINED = Path(__file__).parents[4] / "tools/models"


@pytest.mark.parametrize("name", [*MODELS, *BENCHMARKS, "trained policy"])
def test_outputs_are_those_of_onnxruntime(name: str, tmp_path: Path) -> None:
    path = TRAINED / f"{name.split()[-1]}.onnx"
    if not name.startswith("trained"):
        path = tmp_path / "m.onnx"
        path.write_bytes(build_example(name, 0).data)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options)
    rng = np.random.default_rng(0)
    feeds = {}
    for i in session.get_inputs():
        whole = i.type == "tensor(uint8)"
        drawn = rng.integers(0, 256, i.shape) if whole else rng.standard_normal(i.shape)
        feeds[i.name] = drawn.astype(np.uint8 if whole else np.float32)
    wanted = session.run(None, feeds)
    with torch.inference_mode():
        given = {k: torch.from_numpy(v) for k, v in feeds.items()}
        got = TorchModel(path, "cpu")(given)
    for output, value in zip(session.get_outputs(), wanted, strict=True):
        worst = np.abs(got[output.name].numpy() - value).max() / np.abs(value).max()
        assert worst < 1e-4, (output.name, worst)


def test_an_operator_that_is_not_there_is_named(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Sinh", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    with pytest.raises(OperatorError, match="Sinh"):
        TorchModel(tmp_path / "m.onnx", "cpu")
