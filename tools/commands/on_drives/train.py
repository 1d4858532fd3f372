"""``modeld train``: train the driving model on rendered worlds and export it.

The output directory gets checkpoints, the history and a page of curves. At the end the models and
their model card are written to its folder ``model``. Needs the extra ``train``.

Example::

    modeld train build/training
    modeld train build/training --resume
    modeld train build/short --minutes 5 --seed 1 --export models
    modeld train build/training --eight-bits 3
    modeld compile build/training/model/*.onnx -o driving.pkl
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.errors import UsageError
from tools.lib.json_output import print_json
from tools.lib.options import MOST_COUNT, MOST_S, MOST_SEED, real, whole
from tools.simulator.training.options import (
    DEFAULT_SLOTS,
    RECIPE,
    TrainingOptions,
    parse_seeds,
    recipe_of,
    resumed,
    share_cores,
)

if TYPE_CHECKING:
    import argparse

_DEFAULTS = TrainingOptions(Path())


class _Option(NamedTuple):
    """An option with a default value that its help text shows.

    Options of the recipe are parsed with the default None, because a resumed training keeps the
    values of its checkpoint.
    """

    name: str
    metavar: str
    what: str  # help text
    default: float | str
    said: str = "default"  # word before the default in the help text


_LEARNS_FROM = (
    _Option("--worlds", "FIRST:END", "seeds of the worlds to train on", str(_DEFAULTS.worlds)),
    _Option(
        "--held-out", "FIRST:END", "seeds of the worlds to judge it on", str(_DEFAULTS.held_out)
    ),
    _Option("--slots", "N", "rendered samples to keep, 0.8 MB each", DEFAULT_SLOTS),
)


def _how() -> tuple[_Option, ...]:
    workers, threads = share_cores()
    return (
        _Option("--workers", "N", "rendering processes", workers, "default here"),
        _Option("--threads", "N", "training threads", threads, "default here"),
        _Option("--batch", "N", "samples per step", _DEFAULTS.batch),
        _Option(
            "--learning-rate",
            "X",
            "highest learning rate of the vision model",
            _DEFAULTS.learning_rate,
        ),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        type=Path,
        nargs="?",
        default=Path("build/training"),
        help="output directory, created if missing (default: build/training)",
    )
    _add(parser, _Option("--minutes", "N", "time limit in minutes", _DEFAULTS.minutes))
    _add(parser, _Option("--seed", "N", "seed of weights and situations", _DEFAULTS.seed))
    parser.add_argument(
        "--resume", action="store_true", help="continue from the last checkpoint in DIR"
    )
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="also write the models and their card there"
    )
    parser.add_argument(
        "--eight-bits",
        type=real("--eight-bits", 0, MOST_S),
        metavar="N",
        help="instead of training, round the weights of the finished training in DIR to 8 bits, "
        "and train them for N minutes to match the original (0: only round); writes DIR/eight-bits",
    )
    for title, options in (("training data", _LEARNS_FROM), ("training", _how())):
        group = parser.add_argument_group(title)
        for option in options:
            _add(group, option)


def _add(group: argparse._ActionsContainer, option: _Option) -> None:
    default = option.default
    shown = f"{default:g}" if isinstance(default, float) else default
    of_recipe = option.name.lstrip("-").replace("-", "_") in RECIPE
    group.add_argument(
        option.name,
        type=_type(option),
        default=None if of_recipe else default,
        metavar=option.metavar,
        help=f"{option.what} ({option.said}: {shown})",
    )


def _type(option: _Option) -> Callable[[str], float | str]:
    """Return the parser of an option's values; `TrainingOptions.check` checks their bounds."""
    if isinstance(option.default, str):
        return str
    if isinstance(option.default, int):
        return whole(option.name, 0, MOST_SEED if option.name == "--seed" else MOST_COUNT)
    return real(option.name, 0, MOST_S)


def run(args: argparse.Namespace) -> int:
    """Train, export the models, print the results and return exit code 0.

    Raises:
        UsageError: options contradict each other or are out of bounds.
        TrainingError: the training diverged, or cannot be resumed.
    """
    if args.eight_bits is not None:
        return _eight_bits(args)
    options = _options_of(args, resume=args.resume)
    # torch takes seconds to import, so errors in the options are reported first.
    from tools.simulator.training.model_files import write_card, write_models
    from tools.simulator.training.training import Training

    outcome = Training(options, resume=args.resume, show=args.verbosity >= 0).run()
    directories = [options.directory / "model", *([args.export] if args.export else [])]
    steps = f"{outcome.steps} of {options.batch} samples"
    facts = {"steps": f"{steps}; then {outcome.drives} drives of up to 35 s"}
    for directory in directories:
        written = write_models(directory, outcome.trained)
        write_card(directory, options, written, outcome.figures, facts)
    if args.json:
        print_json(
            {
                "directory": str(directories[-1]),
                "steps": outcome.steps,
                "held_out": {kind: f.as_json() for kind, f in outcome.figures.items()},
            }
        )
        return 0
    _print_table("held out", {kind: f.rows() for kind, f in outcome.figures.items()})
    curves = f"{options.directory}/curves.html and curves.svg"
    print(f"written: {', '.join(map(str, directories))}; curves: {curves}")
    return 0


def _options_of(args: argparse.Namespace, *, resume: bool) -> TrainingOptions:
    """Return the training options; with `resume`, the checkpoint gives those of the recipe."""
    given = {name: getattr(args, name) for name in RECIPE}
    if not resume:
        return _checked(
            args, recipe_of(_DEFAULTS) | {k: v for k, v in given.items() if v is not None}
        )
    from tools.simulator.training import checkpoint

    saved = checkpoint.load(args.directory)["options"]
    return _checked(args, resumed(given, saved, args.directory))


def _checked(args: argparse.Namespace, recipe: Mapping[str, Any]) -> TrainingOptions:
    """Return the options of a recipe, with this machine's workers, threads and slots."""
    seeds = {
        name: parse_seeds(f"--{name.replace('_', '-')}", recipe[name])
        for name in ("worlds", "held_out")
    }
    options = TrainingOptions(
        directory=args.directory,
        workers=args.workers,
        threads=args.threads,
        slots=args.slots,
        **{**recipe, **seeds},
    )
    options.check()
    return options


def _eight_bits(args: argparse.Namespace) -> int:
    """Round the trained weights to 8 bits, distil, export the models and print the results."""
    minutes = args.eight_bits
    if args.resume:
        raise UsageError(
            "--eight-bits: expected no --resume, found it; a distillation begins with the finished "
            "training each time"
        )
    options = _options_of(args, resume=True)
    from tools.simulator.training.distillation import FOLDER, distil
    from tools.simulator.training.model_files import write_card, write_models
    from tools.simulator.training.onnx_graphs import EightBitGraph

    found = distil(options, minutes, show=args.verbosity >= 0)
    last = list(found.apart)[-1]
    facts = {
        "made of": f"a training whose weights were rounded to 8 bits, and then followed it for "
        f"{found.steps[0]} steps of {options.batch} moments (vision) and {found.steps[1]} of the "
        "policy",
        "apart from it": ", ".join(f"{k} {v:.3f}" for k, v in found.apart[last].items()),
    }
    command = f"modeld train --eight-bits {minutes:g} --seed {options.seed}"
    directories = [options.directory / FOLDER, *([args.export] if args.export else [])]
    for directory in directories:
        written = write_models(directory, found.trained, EightBitGraph)
        write_card(directory, options, written, found.figures, facts, command)
    if args.json:
        print_json({"directory": str(directories[-1]), "steps": found.steps, "apart": found.apart})
        return 0
    _print_table("apart from the training", found.apart)
    print(f"steps: {found.steps[0]} of the vision, {found.steps[1]} of the policy")
    print(f"written: {', '.join(map(str, directories))}")
    return 0


def _print_table(title: str, columns: Mapping[str, Mapping[str, float]]) -> None:
    names = list(next(iter(columns.values())))
    width = max(map(len, (title, *names)))
    print(f"{title:{width}}", *(f"{name:>9}" for name in columns))
    for name in names:
        print(f"{name:{width}}", *(f"{rows[name]:9.3f}" for rows in columns.values()))
