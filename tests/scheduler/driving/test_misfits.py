"""Models that do not fit the interface they are compiled by: one line says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from runtime.driving_interface import HistoryRule, Interface
from scheduler.driving.program import driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, load_model
from tools.make_model import write_interface

NAMES = ("split-2025", "history-2026", "supercombo-0.9.7")
Models = dict[str, tuple[Interface, tuple[OnnxModel, ...]]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Models:
    found = {}
    for name in NAMES:
        files = write_interface(tmp_path_factory.mktemp("models"), name)
        interface, models, _ = recognise_driving([load_model(path) for path, _ in files], name)
        found[name] = (interface, models)
    return found


def without_slice(interface: Interface, head: str) -> Interface:
    parts = tuple(
        replace(part, slices={n: b for n, b in part.slices.items() if n != head})
        for part in interface.models
    )
    return replace(interface, models=parts)


def with_slice(interface: Interface, head: str, start: int, stop: int) -> Interface:
    first, *others = interface.models
    return replace(
        interface, models=(replace(first, slices={**first.slices, head: (start, stop)}), *others)
    )


def wider(interface: Interface) -> Interface:
    first, *others = interface.models
    return replace(interface, models=(replace(first, width=first.width + 1), *others))


ODD = HistoryRule(7, 4, current=True, newest=True)
CASES: list[tuple[str, Callable[[Interface], Interface], str]] = [
    (
        "history-2026",
        lambda i: replace(i, drop_policy="skip"),
        r'drop policy "skip" needs queues .* declare drop_policy = "run"',
    ),
    (
        "history-2026",
        lambda i: replace(i, states=(*i.states, "state_more")),
        r'state "state_more": expected one model with this input, found none',
    ),
    (
        "history-2026",
        lambda i: replace(i, states=i.states[1:]),
        r"supercombo.onnx: no value for the inputs \['state_img_q'\]",
    ),
    (
        "split-2025",
        lambda i: replace(i, features=ODD),
        r"features: expected an input features_buffer \(1, 7, ...\), found \(1, 25, 512\)",
    ),
    (
        "split-2025",
        lambda i: replace(i, desire=ODD),
        r'policy.onnx: input "desire_pulse": expected float32 \[1, 25, 8\], found .*\[1, 7, 8\]',
    ),
    (
        "split-2025",
        lambda i: replace(i, host_inputs=()),
        r"policy.onnx: no value for the inputs \['traffic_convention'\] when the policy model runs",
    ),
    (
        "split-2025",
        lambda i: without_slice(i, "hidden_state"),
        "features: expected a model with the output slice hidden_state, found none",
    ),
    (
        "split-2025",
        lambda i: with_slice(i, "hidden_state", 0, 500),
        r"vision model: hidden_state: expected 512 values, a row .* found 500",
    ),
    ("split-2025", wider, r"vision.onnx: expected one output, .* of shape \(1, \d+\); found"),
    (
        "supercombo-0.9.7",
        lambda i: without_slice(i, "desired_curvature"),
        "curvature: expected a model with the output slice desired_curvature, found none",
    ),
    (
        "supercombo-0.9.7",
        lambda i: with_slice(i, "desired_curvature", 0, 5),
        r"desired_curvature: expected 1 or 2 values, .* found 5",
    ),
]


@pytest.mark.parametrize(("name", "edit", "message"), CASES, ids=[c[2][:40] for c in CASES])
def test_an_interface_that_does_not_fit_is_one_line(
    known: Models, name: str, edit: Callable[[Interface], Interface], message: str
) -> None:
    interface, models = known[name]
    with pytest.raises(ModelError, match=message) as failed:
        driving_entries(edit(interface), models, 1 << 20)
    assert "\n" not in str(failed.value)
