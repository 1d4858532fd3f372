"""The card of a trained model: what it is, what it has seen, how well it does, what it cannot do.

Its figures are also written for programs: a later training compares with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from runtime.files.user_file import whole_file
from tools.lib.json_output import json_text
from tools.training.export.export import Written
from tools.training.figures import SITUATIONS, Figures
from tools.training.options import TrainingOptions
from tools.training.samples.views import HEIGHTS_M, SHARP_SHARE

NAME = "README.md"
FIGURES_NAME = "figures.json"
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
    """Write the card next to the models, and the figures in `FIGURES_NAME`.

    `figures` are errors by class of scenery, `all` first; `facts` are more rows of the first table.
    `command` made the models, if it was not that of the options.

    Raises:
        OSError: it cannot be written.
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
    for name, content in ((NAME, text), (FIGURES_NAME, json_text(found, 1) + "\n")):
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
