"""Faults in the program: each is caught, and --explain names the kernel that has it."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from modeld.outputs.fill_message import fill_camera_odometry
from runtime.format.interfaces import HistoryRule
from scheduler.driving import program, warp
from scheduler.driving.program import push, rows_seen
from scheduler.driving.warp import model_image
from scheduler.tensor.tensor import Tensor
from tests.tools.conftest import Modeld
from tests.tools.regress.planted import Planted, add_to_weight

pytestmark = [pytest.mark.opencl, pytest.mark.slow]

WEIGHT_NODE = "/stages.1/blocks.0/mlp.fc2/Conv"
FIRST = r"first kernel that differs: \w+, .* nodes [^\n]*"
POSITION = r"modelV2\.position\.x: value in \d+ frames from \d+ on"
ANY_OUTPUT = r"modelV2\.\S+: \w+ in 4\d frames from 0 on"


def explained(planted: Planted, modeld: Modeld, *more: object, model: Any = None) -> str:
    """Return what a regression says that finds a fault and looks for it."""
    return modeld(1, *planted.words("--explain", *more, model=model)).out


def test_a_weight_changed_by_a_thousandth(planted: Planted, modeld: Modeld) -> None:
    model = planted.artifact("a.pkl", lambda vision, _: add_to_weight(vision, WEIGHT_NODE, 1e-3))
    more = ("--baseline", planted.model, "--onnx", *planted.onnx)
    text = explained(planted, modeld, *more, model=model)
    for pattern in (
        r"modelV2\.\S+: \w+ in \d+ frames from 0 on",
        "all inputs of the program equal the reference's",
        rf"first kernel that differs: \w+, launch \d+ of \d+, nodes {WEIGHT_NODE}",
        r"its source is the same; its weights differ: \w+ float32\[.*\], 1 of \d+ values differ",
        r"1 of \d+ values differ, by at most 0\.001 ",
        "interpreter agrees with the reference artifact, not with this one",
    ):
        assert re.search(pattern, text), pattern


def one_too_far(queue: Tensor, newest: Tensor) -> Tensor:
    if queue.shape != (100, 512):
        return push(queue, newest)
    return queue.assign(Tensor.cat([queue[1:-1], newest.unsqueeze(0), queue[-1:]], 0))


def late(history: Tensor, rule: HistoryRule) -> Tensor:
    """As if the models saw the history before this frame was pushed."""
    return rows_seen(Tensor.of(history.node.src[0]), rule)


def swapped(*given: Any) -> Tensor:
    made = model_image(*given)
    return Tensor.cat([made[0:4], made[5:6], made[4:5]], 0)


def corners(transform: Tensor) -> Tensor:
    """As if the centres of chroma pixels were those of every second luma pixel."""
    c0, c1, c2 = (transform[:, i : i + 1] for i in range(3))
    wide = Tensor.cat([c0 * 2.0, c1 * 2.0, c2], 1)
    r0, r1, r2 = (wide[i : i + 1] for i in range(3))
    return Tensor.cat([r0 * 0.5, r1 * 0.5, r2], 0).contiguous()


@pytest.mark.parametrize(
    ("module", "name", "fault", "found"),
    [
        pytest.param(
            *(program, "push", one_too_far),
            (
                POSITION,
                r"after it differ (policy_outputs, )?features\b",
                rf"{FIRST}queue/features",
                "its source differs",
            ),
            id="off by one in the feature queue",
        ),
        pytest.param(
            *(program, "rows_seen", late),
            (POSITION, rf"{FIRST}queue/features", r"after it differ(?!.*vision_outputs)"),
            id="features one frame late",
        ),
        pytest.param(
            *(program, "model_image", swapped),
            (
                ANY_OUTPUT,
                rf"{FIRST}(warp|queue)/(road|wide)",
                "after it differ",
                "road_images, wide_images",
            ),
            id="swapped chroma planes",
        ),
        pytest.param(
            *(warp, "half_resolution", corners),
            (ANY_OUTPUT, rf"{FIRST}warp/(road|wide)"),
            id="chroma half a pixel off",
        ),
    ],
)
def test_a_fault_of_the_compiler(
    planted: Planted,
    modeld: Modeld,
    module: Any,
    name: str,
    fault: Callable[..., Tensor],
    found: Any,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, fault)
        model = planted.artifact("faulty.pkl")
    text = explained(planted, modeld, "--baseline", planted.model, model=model)
    for pattern in found:
        assert re.search(pattern, text), pattern


def test_the_clean_program_is_what_its_models_say(
    planted: Planted, modeld: Modeld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault behind the program, seen beside the reference artifact and beside the interpreter."""

    def zeroing(event: Any, *rest: Any) -> None:
        fill_camera_odometry(event, *rest)
        event.cameraOdometry.trans = [0.0, 0.0, 0.0]

    monkeypatch.setattr("modeld.daemon.fill_camera_odometry", zeroing)
    text = explained(planted, modeld, "--baseline", planted.model)
    assert "the cause is after the program" in text
    assert "cameraOdometry.trans" in text
    text = explained(planted, modeld, "--onnx", *planted.onnx)
    found = re.search(r"(\d+) of (\d+) results of kernels are equal to the numpy interpreter", text)
    assert found
    assert found[1] == found[2]
    wanted = "use --baseline ARTIFACT (the reference was made by"
    assert wanted in explained(planted, modeld)
