"""`--constant INPUT=VALUE`: inputs of an ONNX model that are fixed while compiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from scheduler.onnx_import import OnnxModel


def add_constant(parser: argparse._ActionsContainer) -> None:
    """Declare the option."""
    parser.add_argument(
        "--constant",
        action="append",
        default=[],
        metavar="INPUT=VALUE",
        help="fix an input while compiling, repeatable: a number for all elements, or all of them "
        "separated by commas; for inputs that carry shapes or choose branches",
    )


def with_constants(
    model: OnnxModel, texts: Sequence[str], bound: Mapping[str, int]
) -> tuple[OnnxModel, dict[str, int]]:
    """Return a model whose inputs are fixed as the option says, and the sizes it still leaves open.

    Args:
        model: as it was read.
        texts: of the option.
        bound: sizes of symbolic dimensions; those of the inputs that are fixed are not returned.

    Raises:
        UsageError: a text is not INPUT=VALUE, or names an input twice.
        ModelError: an input does not exist, or the value does not fit it.
    """
    if not texts:
        return model, dict(bound)
    from scheduler.onnx_import.binding import open_names
    from scheduler.onnx_import.specialise import parse_value, specialise

    values = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        if not equals or not name or not numbers:
            raise UsageError(f"--constant {text}: expected INPUT=VALUE, such as rate=16000")
        if name in values:
            raise UsageError(f"--constant {text}: {name} is given twice")
        values[name] = parse_value(model, name, numbers.split(","), bound)
    fixed = specialise(model, values)
    # A name that no dimension had is refused later, with those that there are.
    gone = open_names(model) - open_names(fixed)
    return fixed, {name: size for name, size in bound.items() if name not in gone}
