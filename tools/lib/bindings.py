"""`--bind NAME=SIZE`: sizes of symbolic dimensions, as the command line gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

# 2^31 - 1: more is a typing error, and no index of ours.
MAX_SIZE = 2**31 - 1


def add_bind(parser: argparse._ActionsContainer) -> None:
    """Declare the option."""
    parser.add_argument(
        "--bind",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="size of a symbolic dimension of an ONNX model, repeatable; INPUT:AXIS=SIZE for one "
        "without a name (default: 1)",
    )


def parse_bindings(texts: Sequence[str]) -> dict[str, int]:
    """Return name -> size.

    Raises:
        UsageError: a text is not NAME=SIZE, a size is out of range, or a name is given twice.
    """
    sizes: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        if not equals or not name or not (number.isascii() and number.isdigit()):
            raise UsageError(f"--bind {text}: expected NAME=SIZE, such as batch=1")
        if len(number) > 10 or not 1 <= int(number) <= MAX_SIZE:
            raise UsageError(f"--bind {text}: expected a size from 1 to {MAX_SIZE}")
        if name in sizes:
            raise UsageError(f"--bind {text}: {name} is bound already, to {sizes[name]}")
        sizes[name] = int(number)
    return sizes
