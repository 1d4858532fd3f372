"""Writes the files of a trained model: both networks as ONNX, and the model card.

The graphs are built node by node from the weights, so they contain only operators that the importer
supports. Norms and units are folded into the weights, and heads are in their published order. The
card describes the model, its training data, its accuracy and its limits. Its metrics are also
written as JSON, for comparison with later trainings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from runtime.files.user_file import whole_file
from tools.errors import TrainingError
from tools.example_models.graph import Value
from tools.example_models.outputs import POLICY_PAD, model_metadata, policy_slices, vision_slices
from tools.lib.json_output import json_text
from tools.simulator.training.figures import SITUATIONS, Figures
from tools.simulator.training.heads import (
    DESIRE_STATE,
    HIDDEN_WIDTH,
    HISTORY_ROWS,
    PLAN,
    VISION_HEADS,
    VISION_TARGETS,
    Head,
    Scaling,
    fold,
    part_of,
)
from tools.simulator.training.networks.architecture import HEAD_GROUPS, MIDDLE, SPREAD, VIEW_SHAPE
from tools.simulator.training.onnx_graphs import Layer, WeightedGraph, Weights, linear, trunk
from tools.simulator.training.options import TrainingOptions
from tools.simulator.training.samples.situations import HEIGHTS_M, SHARP_SHARE

_PRODUCER = "modeld-train"
VISION_FILE, POLICY_FILE = "vision.onnx", "policy.onnx"
CARD_NAME = "README.md"
FIGURES_NAME = "figures.json"
# Limit of the size of both files together.
MOST_BYTES = 5_000_000
MOST_PARAMETERS = 2_000_000
MOST_FLOP = 500_000_000
"""Limits of the model, which must be small enough for the repository, and run on two cores."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights of both networks by name; the last part of `scaling` is the plan's."""

    name: str
    vision: Weights
    policy: Weights
    scaling: Scaling


@dataclass(frozen=True, slots=True)
class Written:
    """The size of both models in bytes, parameters and floating-point operations.

    `stored` is the type of their matrices.
    """

    bytes: int
    parameters: int
    flop: int
    stored: str


def vision_model(
    trained: Trained, graph: type[WeightedGraph] = WeightedGraph
) -> tuple[onnx.ModelProto, int, int]:
    """Return the vision model, its number of parameters, and its multiply-adds."""
    w = trained.vision
    g = graph("vision")
    views = []
    for name in ("img", "big_img"):
        x = g.input(name, (1, *VIEW_SHAPE), onnx.TensorProto.UINT8)
        views.append(g.node("Cast", (x,), x.shape, to=onnx.TensorProto.FLOAT))
    x = g.node("Concat", views, (2, *VIEW_SHAPE), axis=0)
    x = g.elementwise("Mul", g.elementwise("Sub", x, g.scalar(MIDDLE)), g.scalar(1.0 / SPREAD))
    hidden = trunk(g, w, x)
    found = _vision_heads(g, trained, hidden)
    parts = [found[head.name] for head in VISION_HEADS]
    outputs = g.node("Concat", [*parts, hidden], (1, sum(p.shape[1] for p in parts) + 512), axis=1)
    return _finish(g, outputs, trained.name, vision_slices()), g.parameters, g.multiply_adds


def policy_model(
    trained: Trained, graph: type[WeightedGraph] = WeightedGraph
) -> tuple[onnx.ModelProto, int, int]:
    """Return the policy model, its number of parameters, and its multiply-adds."""
    w = trained.policy
    g = graph("policy")
    kind = onnx.TensorProto.FLOAT
    desires = g.input("desire_pulse", (1, HISTORY_ROWS, 8), kind)
    convention = g.input("traffic_convention", (1, 2), kind)
    features = g.input("features_buffer", (1, HISTORY_ROWS, HIDDEN_WIDTH), kind)
    with g.scope("row"):
        rows = g.relu(g.dense_rows(features, linear(w, "row")))
    with g.scope("lead.first"):
        lead = g.relu(g.dense_rows(features, linear(w, "lead.first")))
    with g.scope("lead.last"):
        lead = g.dense_rows(lead, linear(w, "lead.last"))
    seen = [*(g.flatten(part) for part in (rows, lead, desires)), convention]
    x = g.node("Concat", seen, (1, sum(value.shape[1] for value in seen)), axis=1)
    for name in ("past", "mix"):
        with g.scope(name):
            x = g.relu(g.dense(x, linear(w, name)))
    with g.scope("desire"):
        desire = g.dense(x, linear(w, "desire"))
    with g.scope("bend"):
        bend = g.dense(x, linear(w, "bend"))
    last = g.node("Gather", (features, g.constant(np.int64(-1))), (1, HIDDEN_WIDTH), axis=1)
    with g.scope("plan"):
        plan = _plan(g, w, last, bend, part_of(VISION_TARGETS, trained.scaling, (PLAN,)))
    pad = g.constant(np.zeros((1, POLICY_PAD), np.float32))
    width = PLAN.width + DESIRE_STATE.width + POLICY_PAD
    outputs = g.node("Concat", (plan, desire, pad), (1, width), axis=1)
    return _finish(g, outputs, trained.name, policy_slices()), g.parameters, g.multiply_adds


def build_models(
    trained: Trained, graph: type[WeightedGraph] = WeightedGraph
) -> tuple[dict[str, bytes], Written]:
    """Return the files of both models by name, and their size.

    Raises:
        TrainingError: the models exceed a limit.
    """
    files, parameters, multiply_adds = {}, 0, 0
    for name, build in ((VISION_FILE, vision_model), (POLICY_FILE, policy_model)):
        model, count, work = build(trained, graph)
        files[name] = model.SerializeToString(deterministic=True)
        parameters, multiply_adds = parameters + count, multiply_adds + work
    size = sum(map(len, files.values()))
    written = Written(size, parameters, 2 * multiply_adds, graph.STORED)
    for what, found, most in (
        ("parameters", written.parameters, MOST_PARAMETERS),
        ("floating-point operations a frame", written.flop, MOST_FLOP),
        ("bytes of both files", written.bytes, MOST_BYTES),
    ):
        if found > most:
            raise TrainingError(
                f"the driving model: expected at most {most} {what}, found {found}; make the "
                "networks smaller in tools/simulator/training/networks/architecture.py"
            )
    return files, written


def write_models(
    directory: Path, trained: Trained, graph: type[WeightedGraph] = WeightedGraph
) -> Written:
    """Write both models, each atomically; the directory is created with its parents.

    Raises:
        TrainingError: the models exceed a limit, or a file cannot be written.
    """
    files, written = build_models(trained, graph)
    for name, data in files.items():
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with whole_file(directory / name) as file:
                file.write(data)
        except OSError as error:
            raise TrainingError(
                f"{directory / name}: cannot be written ({error.strerror or error}); name another "
                "directory; what was trained is kept"
            ) from error
    return written


def _vision_heads(g: WeightedGraph, trained: Trained, hidden: Value) -> dict[str, Value]:
    """Return the output of each head; the last layer of a group is split into its heads."""
    w, found = trained.vision, {}
    for group, heads in HEAD_GROUPS.items():
        last = _scaled(heads, trained.scaling, linear(w, f"heads.{group}.last"))
        with g.scope(f"heads.{group}"):
            x = g.relu(g.dense(hidden, linear(w, f"heads.{group}.first")))
            start = 0
            for head in heads:
                rows = slice(start, start + head.width)
                start += head.width
                with g.scope(head.name):
                    found[head.name] = g.dense(x, Layer(last.weight[rows], last.bias[rows]))
    return found


def _plan(g: WeightedGraph, w: Weights, last: Value, bend: Value, scaling: Scaling) -> Value:
    with g.scope("first"):
        x = g.relu(g.dense(last, linear(w, "plan.first")))
    with g.scope("second"):
        x = g.dense(x, linear(w, "plan.second"))
    x = g.relu(g.elementwise("Add", x, bend))
    weight, bias = fold((PLAN,), scaling, *linear(w, "plan.last"))
    with g.scope("last"):
        return g.dense(x, Layer(weight, bias))


def _scaled(heads: tuple[Head, ...], scaling: Scaling, layer: Layer) -> Layer:
    return Layer(*fold(heads, part_of(VISION_TARGETS, scaling, heads), layer.weight, layer.bias))


def _finish(
    g: WeightedGraph, outputs: Value, name: str, slices: Mapping[str, slice]
) -> onnx.ModelProto:
    model = g.finish({"outputs": outputs}, model_metadata(f"{_PRODUCER}/{name}", slices))
    model.producer_name = _PRODUCER
    return model


# --- The card ------------------------------------------------------------------------------------

_CANNOT = f"""\
## What it cannot do

- It must not drive a car. It exists to test this software with a model that sees.
- It has seen no real picture, and real roads resemble rendered ones in geometry only.
- It was taught to follow lanes, slow for curves, keep its distance, stop behind cars, and change
  lanes when asked ([how well](../../docs/closed-loop.md#a-trained-model)). It knows no junctions,
  roundabouts, traffic lights, signs, pedestrians, bicycles, road works, tunnels or snow.
- It has no map and no speed limit. It drives as fast as similar roads were driven in training.
- It has never seen lanes wider than 3.9 m or narrower than 2.7 m, curves tighter than those of its
  worlds, or cameras lower than {HEIGHTS_M[0]} m or higher than {HEIGHTS_M[1]} m.
"""


def write_card(
    directory: Path,
    options: TrainingOptions,
    written: Written,
    figures: Mapping[str, Figures],
    facts: Mapping[str, str],
    command: str | None = None,
) -> None:
    """Write the card next to the models, and the metrics to `FIGURES_NAME`.

    `figures` are errors by class of scenery, `all` first. `facts` are additional rows of the first
    table. `command` is the command that made the models, if it was not that of `options`.

    Raises:
        OSError: a file cannot be written.
    """
    rows = {
        "interface": "`split-2025`: `vision.onnx`, `policy.onnx`",
        "size": (
            f"{written.parameters / 1e6:.2f} M parameters, {written.flop / 1e9:.2f} GFLOP a frame, "
            f"{written.bytes / 1e6:.1f} MB ({written.stored})"
        ),
        "trained on": f"rendered worlds of seeds {options.worlds}, half of them mirrored; "
        f"{SHARP_SHARE:.0%} have roads with sharper curves",
        "judged on": f"rendered worlds of seeds from {options.held_out.first} on, never trained on",
        "seed": str(options.seed),
        **facts,
    }
    command = command or f"modeld train --minutes {options.minutes:g} --seed {options.seed}"
    text = (
        "# The driving model\n\n"
        "Trained from scratch in the simulated world of this repository by "
        f"`{command}` ([training](../../docs/training.md)).\n\n"
        f"{_table(('', ''), rows.items())}\n"
        "## How well it does\n\n"
        "Mean absolute errors of the vision on single moments of held-out worlds. Nearly half are "
        "up to 1.5 m and 4 degrees off the lane's centre, with the expert's way back as the path. "
        f"{SITUATIONS}\n\n"
        f"{_figures_table(figures)}\n"
        f"{_CANNOT}"
    )
    held_out = {kind: one.as_json() for kind, one in figures.items()}
    found = {"minutes": options.minutes, "seed": options.seed, "held_out": held_out}
    for name, content in ((CARD_NAME, text), (FIGURES_NAME, json_text(found, 1) + "\n")):
        with whole_file(directory / name) as file:
            file.write(content.encode())


def _figures_table(figures: Mapping[str, Figures]) -> str:
    names = list(figures["all"].rows())
    head = ("", *(f"{kind} ({f.samples})" for kind, f in figures.items()))
    rows = [(name, *(_text(f.rows()[name]) for f in figures.values())) for name in names]
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.2f}"
