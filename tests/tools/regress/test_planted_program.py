"""Faults in the program: each is caught, and --explain names the kernel that has it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from modeld.fill_message import fill_camera_odometry
from runtime.driving_interface import HistoryRule
from scheduler.driving import program, warp
from scheduler.driving.memory import push, rows_seen
from scheduler.driving.warp import model_image
from scheduler.onnx_import import OnnxModel
from scheduler.tensor.tensor import Tensor
from tests.tools.regress.planted import Planted, add_to_weight

pytestmark = pytest.mark.opencl

WEIGHT_NODE = "/stages.1/blocks.0/mlp.fc2/Conv"


def explained(planted: Planted, capsys: pytest.CaptureFixture[str], model: Any, *more: str) -> str:
    """Return what a regression says that finds a fault and looks for it."""
    capsys.readouterr()
    clean = ("--explain", "--baseline", str(planted.model))
    assert planted.regress(*clean, *more, model=model) == 1
    return capsys.readouterr().out


def test_a_weight_changed_by_a_thousandth(
    planted: Planted, capsys: pytest.CaptureFixture[str]
) -> None:
    def edit(vision: OnnxModel, _policy: OnnxModel) -> None:
        add_to_weight(vision, WEIGHT_NODE, 1e-3)

    model = planted.artifact("weight.pkl", edit)
    text = explained(planted, capsys, model, "--onnx", *map(str, planted.onnx))
    assert re.search(r"modelV2\.\S+: \w+ in \d+ frames from 0 on", text)
    assert "all inputs of the program are those of the reference" in text
    assert re.search(
        rf"first kernel that differs: \w+, launch \d+ of \d+, nodes {WEIGHT_NODE}", text
    )
    assert re.search(
        r"its source is the same; its weights differ: \w+ float32\[.*\], 1 of \d+ values differ, "
        r"by at most 0\.001 ",
        text,
    )
    assert "interpreter agrees with the reference artifact, not with this one" in text


def test_off_by_one_in_the_feature_queue(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one_too_far(queue: Tensor, newest: Tensor) -> Tensor:
        if queue.shape != (100, 512):
            return push(queue, newest)
        row = newest.unsqueeze(0)
        return queue.assign(Tensor.cat([queue[1:-1], row, queue[-1:]], 0))

    with monkeypatch.context() as patch:
        patch.setattr(program, "push", one_too_far)
        model = planted.artifact("queue.pkl")
    text = explained(planted, capsys, model)
    assert re.search(r"modelV2\.position\.x: value in \d+ frames from \d+ on", text)
    assert re.search(r"after it differ (policy_outputs, )?features\b", text)
    assert re.search(r"first kernel that differs: \w+, .* nodes [^\n]*queue/features", text)
    assert "its source differs" in text


def test_features_one_frame_late(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def late(history: Tensor, rule: HistoryRule) -> Tensor:
        """As if the models saw the history before this frame was pushed."""
        return rows_seen(Tensor.of(history.node.src[0]), rule)

    with monkeypatch.context() as patch:
        patch.setattr(program, "rows_seen", late)
        model = planted.artifact("late.pkl")
    text = explained(planted, capsys, model)
    assert re.search(r"modelV2\.position\.x: value in \d+ frames from \d+ on", text)
    assert re.search(r"first kernel that differs: \w+, .* nodes [^\n]*queue/features", text)
    assert "vision_outputs" not in text.partition("after it differ")[2].splitlines()[0]


def test_swapped_chroma_planes(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:

    def swapped(*given: Any) -> Tensor:
        made = model_image(*given)
        return Tensor.cat([made[0:4], made[5:6], made[4:5]], 0)

    with monkeypatch.context() as patch:
        patch.setattr(program, "model_image", swapped)
        model = planted.artifact("swapped.pkl")
    text = explained(planted, capsys, model)
    assert re.search(r"modelV2\.\S+: \w+ in 4\d frames from 0 on", text)
    assert re.search(
        r"first kernel that differs: \w+, .* nodes [^\n]*(warp|queue)/(road|wide)", text
    )
    assert "after it differ" in text
    assert "road_images, wide_images" in text


def test_chroma_half_a_pixel_off(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def corners(transform: Tensor) -> Tensor:
        """As if the centres of chroma pixels were those of every second luma pixel."""
        c0, c1, c2 = (transform[:, i : i + 1] for i in range(3))
        wide = Tensor.cat([c0 * 2.0, c1 * 2.0, c2], 1)
        r0, r1, r2 = (wide[i : i + 1] for i in range(3))
        return Tensor.cat([r0 * 0.5, r1 * 0.5, r2], 0).contiguous()

    with monkeypatch.context() as patch:
        patch.setattr(warp, "half_resolution", corners)
        model = planted.artifact("half.pkl")
    text = explained(planted, capsys, model)
    assert re.search(r"modelV2\.\S+: \w+ in 4\d frames from 0 on", text)
    assert re.search(r"first kernel that differs: \w+, .* nodes [^\n]*warp/(road|wide)", text)


def test_the_clean_program_is_what_its_models_say(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault behind the program, seen beside the reference artifact and beside the interpreter."""

    def zeroing(event: Any, *rest: Any) -> None:
        fill_camera_odometry(event, *rest)
        event.cameraOdometry.trans = [0.0, 0.0, 0.0]

    monkeypatch.setattr("modeld.daemon.fill_camera_odometry", zeroing)
    text = explained(planted, capsys, planted.model)
    assert "the cause lies after the program" in text
    assert "cameraOdometry.trans" in text
    capsys.readouterr()
    assert planted.regress("--explain", "--onnx", *map(str, planted.onnx)) == 1
    text = capsys.readouterr().out
    found = re.search(r"(\d+) of (\d+) results of kernels are those of the numpy interpreter", text)
    assert found
    assert found[1] == found[2]
    assert planted.regress("--explain") == 1
    assert "that takes --baseline ARTIFACT (the reference was made by" in capsys.readouterr().out
