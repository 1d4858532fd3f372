"""Options of commands that compile a model: `--bind`, `--constant` and `--note`.

`--bind NAME=SIZE` sets the size of a symbolic dimension, `--constant INPUT=VALUE` fixes an input,
and `--note NAME=VALUE` adds to the lineage, the record of a model's origin in its artifact. The
module also compiles ONNX models for commands that accept them in place of an artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from runtime.format.parts import (
    MAX_FACT_TEXT,
    MAX_FACTS,
    fitted_lineage,
    lineage_problem,
)
from tools.errors import UsageError
from tools.lib.named_file import kind_of
from tools.lib.terminal import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from scheduler.compile import CompileOptions
    from scheduler.onnx_import import OnnxModel

# Largest size of a dimension. Indices are 32-bit, so a larger size is a typing error.
MAX_SIZE = 2**31 - 1


def add_bind(parser: argparse._ActionsContainer) -> None:
    """Declare `--bind`."""
    parser.add_argument(
        "--bind",
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="size of a symbolic dimension of an ONNX model, repeatable; INPUT:AXIS=SIZE for one "
        "without a name (default: 1)",
    )


def parse_bindings(texts: Sequence[str]) -> dict[str, int]:
    """Return the sizes by name from the texts NAME=SIZE.

    Raises:
        UsageError: A text is malformed, a size is out of range, or a name is given twice.
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


def add_constant(parser: argparse._ActionsContainer) -> None:
    """Declare `--constant`."""
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
    """Return a model with inputs fixed by `texts`, INPUT=VALUE, and the sizes that still apply.

    The sizes are those of `bound` without the dimensions that the fixed inputs removed.

    Raises:
        UsageError: A text is not INPUT=VALUE, or an input is given twice.
        ModelError: An input does not exist, or the value does not fit it.
    """
    if not texts:
        return model, dict(bound)
    from scheduler.onnx_import.binding import open_names, parse_value, specialise

    values = {}
    for text in texts:
        name, equals, numbers = text.rpartition("=")
        if not equals or not name or not numbers:
            raise UsageError(f"--constant {text}: expected INPUT=VALUE, such as rate=16000")
        if name in values:
            raise UsageError(f"--constant {text}: {name} is given twice")
        values[name] = parse_value(model, name, numbers.split(","), bound)
    fixed = specialise(model, values)
    # A name that no dimension ever had stays, so a later check reports it with the known names.
    gone = open_names(model) - open_names(fixed)
    return fixed, {name: size for name, size in bound.items() if name not in gone}


class Changes(NamedTuple):
    """Changes to a model before it is compiled."""

    bind: Sequence[str] = ()  # texts of ``--bind``
    constant: Sequence[str] = ()  # texts of ``--constant``
    dump: Sequence[str] = ()  # names of tensors to add as outputs


UNCHANGED: Final = Changes()


def is_onnx(path: Path) -> bool:
    """Return whether a file is an ONNX model.

    Raises:
        FileKindError: It cannot be read, or its kind is unknown.
    """
    return kind_of(path) == "onnx"


def compiled_here(
    paths: Sequence[Path],
    target: Path,
    device: str | None,
    changes: Changes = UNCHANGED,
    *,
    build: bool = False,
) -> Path:
    """Compile ONNX files for a device of this machine, as ``modeld compile`` does; return `target`.

    `paths` is one model, compiled as a plain artifact, or the models of a driving program. With
    `build`, the artifact includes built kernels; otherwise they are built, or taken from the cache,
    when it is loaded.

    Raises:
        UsageError: There are several models with `changes`; a driving program fixes its inputs.
        ModelError: The models cannot be compiled.
    """
    from scheduler.compile import compile_driving, compile_plain
    from scheduler.onnx_import import load_model
    from scheduler.onnx_import.importer import with_outputs

    options = options_here(device)
    if len(paths) == 1:
        model, sizes = with_constants(
            load_model(paths[0]), changes.constant, parse_bindings(changes.bind)
        )
        if changes.dump:
            model = with_outputs(model, changes.dump)
        compiled = compile_plain(model, bind=sizes, **options)
    elif any(changes):
        raise UsageError(
            "--bind and --constant need one model; a driving program fixes all its inputs"
        )
    else:
        compiled = compile_driving(paths, **options)
    if build:
        compiled = compiled.build(device)
    compiled.write(target)
    return target


def options_here(device: str | None) -> CompileOptions:
    """Return the compile options for a device of this machine, with its tuned table."""
    from runtime.opencl.device import choose_device
    from scheduler.device.targets import AUTO, target_for
    from scheduler.device.tuned_table import table_for

    info = choose_device(device).info
    return {
        "target": target_for(AUTO, device),
        "tables": lambda _, context: table_for(context.spec.target, info.name, info.driver),
    }


def add_note(parser: argparse._ActionsContainer) -> None:
    """Declare `--note`."""
    parser.add_argument(
        "--note",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="where the model came from, such as commit=1a2b3c or data=drives-2026-11, repeatable; "
        f"the artifact keeps it (a value of at most {MAX_FACT_TEXT} characters)",
    )


def with_notes(found: Mapping[str, str], texts: Sequence[str]) -> dict[str, str]:
    """Return the lineage `found` with the notes in `texts` added; notes have priority.

    Raises:
        UsageError: A text is not NAME=VALUE, too long or not printable, a name is given twice, or
            there are too many notes.
    """
    notes: dict[str, str] = {}
    for text in texts:
        name, _, value = text.partition("=")
        problem = "" if value else "expected NAME=VALUE, such as commit=1a2b3c"
        problem = problem or lineage_problem(name, value)
        if name in notes:
            problem = f"{name} is given already, as {notes[name]}"
        if problem:
            raise UsageError(f"--note {printable(text)[:80]}: {problem}")
        notes[name] = value
    if len(notes) > MAX_FACTS:
        raise UsageError(f"--note: expected at most {MAX_FACTS}, found {len(notes)}")
    others = {name: value for name, value in found.items() if name not in notes}
    return dict(sorted({**fitted_lineage(others, MAX_FACTS - len(notes)), **notes}.items()))


def lineage_text(lineage: Mapping[str, str]) -> str:
    """Return a lineage on one line; "" if it is empty."""
    return printable(", ".join(f"{name}={value}" for name, value in lineage.items()))
