"""``modeld train``: train the driving model on painted worlds and export it.

The training's directory keeps checkpoints, the history and a page of curves; the models and their
card come last, in its folder ``model``. Needs the extra ``train``.

Example::

    modeld train build/training
    modeld train build/training --resume
    modeld train build/short --minutes 5 --seed 1 --export models
    modeld compile build/training/model/*.onnx -o driving.pkl
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tools.lib.json_output import print_json
from tools.training.options import (
    DEFAULT_SLOTS,
    TrainingOptions,
    parse_seeds,
    share_cores,
)

if TYPE_CHECKING:
    import argparse

    from tools.training.figures import Figures

_DEFAULTS = TrainingOptions(Path())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    workers, threads = share_cores()
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        nargs="?",
        default=Path("build/training"),
        help="of the training's files (default: build/training); made",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=_DEFAULTS.minutes,
        metavar="N",
        help=f"how long it may take (default: {_DEFAULTS.minutes:g})",
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of weights and situations (default: 0)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from the last checkpoint in DIR"
    )
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="also write the models and their card there"
    )
    data = parser.add_argument_group("what it learns from")
    data.add_argument(
        "--worlds",
        metavar="FIRST:END",
        default=str(_DEFAULTS.worlds),
        help=f"seeds of worlds that are trained on (default: {_DEFAULTS.worlds})",
    )
    data.add_argument(
        "--held-out",
        metavar="FIRST:END",
        default=str(_DEFAULTS.held_out),
        help=f"seeds that it is judged on (default: {_DEFAULTS.held_out})",
    )
    data.add_argument(
        "--slots",
        type=int,
        default=DEFAULT_SLOTS,
        metavar="N",
        help=f"painted samples that are kept, 0.8 MB each (default: {DEFAULT_SLOTS})",
    )
    how = parser.add_argument_group("how")
    how.add_argument(
        "--workers",
        type=int,
        default=workers,
        metavar="N",
        help=f"processes that paint (default here: {workers})",
    )
    how.add_argument(
        "--threads",
        type=int,
        default=threads,
        metavar="N",
        help=f"threads that learn (default here: {threads})",
    )
    how.add_argument(
        "--batch",
        type=int,
        default=_DEFAULTS.batch,
        metavar="N",
        help=f"samples of a step (default: {_DEFAULTS.batch})",
    )
    how.add_argument(
        "--learning-rate",
        type=float,
        default=_DEFAULTS.learning_rate,
        metavar="X",
        help=f"highest rate of the vision (default: {_DEFAULTS.learning_rate:g})",
    )


def run(args: argparse.Namespace) -> int:
    """Train, export, report.

    Raises:
        UsageError: options that cannot work.
        TrainingError: the training diverged, or cannot go on.
    """
    options = TrainingOptions(
        directory=args.directory,
        minutes=args.minutes,
        seed=args.seed,
        worlds=parse_seeds("--worlds", args.worlds),
        held_out=parse_seeds("--held-out", args.held_out),
        workers=args.workers,
        threads=args.threads,
        batch=args.batch,
        learning_rate=args.learning_rate,
        slots=args.slots,
    )
    options.check()
    # torch takes seconds to load; what is wrong with the options is said before.
    from tools.training.card import write_card
    from tools.training.export import write_models
    from tools.training.training import Training

    outcome = Training(options, resume=args.resume, show=args.verbosity >= 0).run()
    directories = [options.directory / "model", *([args.export] if args.export else [])]
    steps = f"{outcome.steps} of {options.batch} samples"
    facts = {"steps": f"{steps}; then {outcome.drives} drives of up to 25 s"}
    for directory in directories:
        written = write_models(directory, outcome.trained)
        write_card(directory, options, written, outcome.figures, facts)
    if args.json:
        figures = {kind: f.rows() for kind, f in outcome.figures.items()}
        print_json({"directory": str(directories[-1]), "steps": outcome.steps, "figures": figures})
        return 0
    _print_figures(outcome.figures)
    print(f"written: {', '.join(map(str, directories))}; curves: {options.directory}/curves.html")
    return 0


def _print_figures(figures: dict[str, Figures]) -> None:
    names = list(figures["all"].rows())
    width = max(map(len, names))
    print(f"{'held out':{width}}", *(f"{kind:>8}" for kind in figures))
    for name in names:
        print(f"{name:{width}}", *(f"{f.rows()[name]:8.3f}" for f in figures.values()))
